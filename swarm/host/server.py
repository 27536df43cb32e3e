"""Serve passes to peers: frames come in over streams that callers keep open, each pass runs on its own."""

import asyncio
import logging

from swarm.errors import LinkBroken, WireError
from swarm.host.host import MAX_WAITING
from swarm.host.relay import Relay
from swarm.net.transport import Stream, Transport
from swarm.wire.frames import read_frame, write_frame
from swarm.wire.messages import PASS_PROTOCOL, PassRequest, Ping, Pong

log = logging.getLogger(__name__)


async def serve_passes(transport: Transport, relay: Relay) -> None:
    """Run what comes over every stream that peers open for passes, until the transport closes."""

    async def handle(stream: Stream) -> None:
        # The group waits for passes that still run when the stream ends: they belong to their coordinator, which may
        # be another peer than the one that pushed.
        async with asyncio.TaskGroup() as passes:
            try:
                await _read_passes(stream, relay, passes)
            except LinkBroken:
                pass
            except WireError as error:
                # Framing is lost once bytes do not decode: end the stream, the caller opens another.
                log.warning("stream ended", extra={"fields": {"peer": stream.peer, "reason": str(error)}})
                await stream.close()

    await transport.serve(PASS_PROTOCOL, handle)


async def _read_passes(stream: Stream, relay: Relay, passes: asyncio.TaskGroup) -> None:
    # A stream is read on only while few of its passes run, so that its peer cannot fill our memory.
    room = asyncio.Semaphore(MAX_WAITING)
    while True:
        message, tensors = await read_frame(stream)
        if isinstance(message, Ping):
            await write_frame(stream, Pong())
            continue
        if not isinstance(message, PassRequest):
            raise WireError(f"a {message.kind} is not a request")
        if message.start == 0 and message.reply_to != stream.peer:
            raise WireError("a pass from part 0 on is asked for by its coordinator only")
        await room.acquire()
        task = passes.create_task(relay.run(message, tensors, stream.peer))
        task.add_done_callback(lambda _: room.release())
