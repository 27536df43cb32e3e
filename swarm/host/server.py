"""Serve passes to peers: frames in and out of one long-lived stream per caller."""

import logging
from collections.abc import Callable
from typing import NoReturn

from swarm.errors import GlossError, LinkBroken, WireError
from swarm.host.host import SpanHost, refusal_code
from swarm.net.transport import Stream, Transport
from swarm.wire.frames import read_frame, write_frame
from swarm.wire.messages import PASS_PROTOCOL, PassRequest, Refusal

log = logging.getLogger(__name__)


async def serve_passes(
    transport: Transport, host: SpanHost, served: Callable[[float], None] = lambda seconds: None
) -> None:
    """Answer every stream that peers open for passes, until the transport closes.

    `served` is told the compute seconds of each pass.
    """

    async def handle(stream: Stream) -> None:
        try:
            while True:
                await _serve_one(stream, host, served)
        except LinkBroken:
            pass
        except WireError as error:
            # Framing is lost once bytes do not decode: end the stream, the caller opens another.
            log.warning("stream ended", extra={"fields": {"peer": stream.peer, "reason": str(error)}})
        finally:
            await stream.close()

    await transport.serve(PASS_PROTOCOL, handle)


async def _serve_one(stream: Stream, host: SpanHost, served: Callable[[float], None]) -> None:
    message, tensors = await read_frame(stream)
    if not isinstance(message, PassRequest):
        _refuse_kind(message.kind)
    try:
        answer, parts = await host.answer(message, tensors, stream.peer)
    except GlossError as error:
        refusal = Refusal(request=message.request, code=refusal_code(error), message=str(error)[:500])
        await write_frame(stream, refusal, ())
        return
    served(answer.compute_us / 1e6)
    await write_frame(stream, answer, parts)


def _refuse_kind(kind: str) -> NoReturn:
    raise WireError(f"a {kind} is not a request")
