"""Serve passes to peers: frames come in over streams that callers keep open, each pass runs on its own."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from swarm.errors import LinkBroken, Overloaded, WireError
from swarm.host.callers import Caller, Callers
from swarm.host.relay import Relay
from swarm.ids import PeerId
from swarm.net.transport import Stream, Transport
from swarm.wire.frames import Tensors, read_frame, write_frame
from swarm.wire.messages import PASS_PROTOCOL, PassRequest, Ping, Pong, Release
from swarm.wire.tensors import byte_view

log = logging.getLogger(__name__)

SentJunk = Callable[[PeerId], Awaitable[None]]


async def _bear(peer: PeerId) -> None:
    """Nobody keeps account of junk."""


async def serve_passes(transport: Transport, relay: Relay, sent_junk: SentJunk = _bear) -> None:
    """Run what comes over every stream that peers open for passes, until the transport closes.

    `sent_junk` is told of each stream that held what does not decode.
    """
    callers = Callers()

    async def handle(stream: Stream) -> None:
        try:
            with callers.stream(stream.peer) as caller:
                await _serve(stream, relay, caller, sent_junk)
        except Overloaded as error:
            log.warning("refused a stream", extra={"fields": {"peer": stream.peer, "reason": str(error)}})

    await transport.serve(PASS_PROTOCOL, handle)


async def _serve(stream: Stream, relay: Relay, caller: Caller, sent_junk: SentJunk) -> None:
    # The group waits for passes that still run when the stream ends: they belong to their coordinator, which may be
    # another peer than the one that pushed.
    async with asyncio.TaskGroup() as passes:
        try:
            await _read_passes(stream, relay, passes, caller)
        except LinkBroken:
            pass
        except WireError as error:
            # Framing is lost once bytes do not decode: end the stream, the caller opens another.
            log.warning("stream ended", extra={"fields": {"peer": stream.peer, "reason": str(error)}})
            await stream.close()
            await sent_junk(stream.peer)


async def _read_passes(stream: Stream, relay: Relay, passes: asyncio.TaskGroup, caller: Caller) -> None:
    async def run(message: PassRequest, tensors: Tensors, size_bytes: int) -> None:
        try:
            await relay.run(message, tensors, stream.peer)
        finally:
            await caller.leave(size_bytes)

    while True:
        message, tensors = await read_frame(stream)
        if isinstance(message, Ping):
            await write_frame(stream, Pong())
            continue
        if isinstance(message, Release):
            relay.release(stream.peer, message.session)
            continue
        if not isinstance(message, PassRequest):
            raise WireError(f"a {message.kind} is not a request")
        if message.start == 0 and message.reply_to != stream.peer:
            raise WireError("a pass from part 0 on is asked for by its coordinator only")
        size_bytes = sum(byte_view(tensor.data).nbytes for tensor in tensors.values())
        # Streams are read on only while few passes of their peer run, so that it cannot fill our memory.
        await caller.enter(size_bytes)
        passes.create_task(run(message, tensors, size_bytes))
