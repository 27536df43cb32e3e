"""Serve passes to peers: frames in and out of one long-lived stream per caller."""

import logging
from typing import NoReturn

from swarm.errors import GlossError, LinkBroken, WireError
from swarm.host.host import SpanHost, refusal_code
from swarm.net.transport import Stream, Transport
from swarm.wire.frames import read_frame, write_frame
from swarm.wire.messages import PASS_PROTOCOL, PassRequest, Refusal

log = logging.getLogger(__name__)


async def serve_passes(transport: Transport, host: SpanHost) -> None:
    """Answer every stream that peers open for passes, until the transport closes."""

    async def handle(stream: Stream) -> None:
        try:
            while True:
                await _serve_one(stream, host)
        except LinkBroken:
            pass
        except WireError as error:
            # Framing is lost once bytes do not decode: end the stream, the caller opens another.
            log.warning("stream ended", extra={"fields": {"peer": stream.peer, "reason": str(error)}})
        finally:
            await stream.close()

    await transport.serve(PASS_PROTOCOL, handle)


async def _serve_one(stream: Stream, host: SpanHost) -> None:
    message, tensors = await read_frame(stream)
    if not isinstance(message, PassRequest):
        _refuse_kind(message.kind)
    try:
        answer, parts = await host.answer(message, tensors)
    except GlossError as error:
        refusal = Refusal(request=message.request, code=refusal_code(error), message=str(error)[:500])
        await write_frame(stream, refusal, ())
        return
    await write_frame(stream, answer, parts)


def _refuse_kind(kind: str) -> NoReturn:
    raise WireError(f"a {kind} is not a request")
