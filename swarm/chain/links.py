"""Call a peer: idle streams are kept open per peer, because opening one costs more than a pass over it."""

import asyncio
import contextlib

from swarm.errors import BadAnswer, BadRequest, CacheMiss, LinkBroken, PassTimeout, PeerRefused, WireError
from swarm.ids import PeerId
from swarm.net.transport import Stream, Transport
from swarm.wire.frames import read_frame, write_frame
from swarm.wire.messages import PASS_PROTOCOL, PassAnswer, PassRequest, Refusal
from swarm.wire.tensors import Tensor

MAX_IDLE = 4

Frame = tuple[PassRequest | PassAnswer | Refusal, dict[str, Tensor]]


class Links:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._idle: dict[PeerId, list[Stream]] = {}

    async def call(
        self, peer: PeerId, request: PassRequest, tensors: tuple[Tensor, ...], timeout_s: float
    ) -> tuple[PassAnswer, dict[str, Tensor]]:
        """The answer and its tensors. Raises a PassFailed that names the peer, or CacheMiss."""
        try:
            async with asyncio.timeout(timeout_s):
                message, parts = await self._exchange(peer, request, tensors)
        except TimeoutError:
            raise PassTimeout(f"peer {short(peer)} did not answer within {timeout_s:.1f} s") from None
        except WireError as error:
            raise BadAnswer(f"peer {short(peer)} sent bytes that do not decode: {error}") from None
        if isinstance(message, PassAnswer):
            return message, parts
        if isinstance(message, PassRequest):
            raise BadAnswer(f"peer {short(peer)} answered with a request")
        if message.code == BadRequest.code:
            raise BadAnswer(f"peer {short(peer)} rejects the pass: {message.message}")
        if message.code == CacheMiss.code:
            raise CacheMiss(message.message)
        raise PeerRefused(f"peer {short(peer)} refuses ({message.code}): {message.message}")

    async def _exchange(self, peer: PeerId, request: PassRequest, tensors: tuple[Tensor, ...]) -> Frame:
        idle = self._idle.setdefault(peer, [])
        if idle:
            # An idle stream may be left from before the peer restarted; only a fresh one tells whether it is gone.
            with contextlib.suppress(LinkBroken):
                return await self._over(idle.pop(), request, tensors, idle)
        return await self._over(await self._transport.open(peer, PASS_PROTOCOL), request, tensors, idle)

    async def _over(
        self, stream: Stream, request: PassRequest, tensors: tuple[Tensor, ...], idle: list[Stream]
    ) -> Frame:
        try:
            await write_frame(stream, request, tensors)
            answer = await read_frame(stream)
        except BaseException:
            # Half an exchange would shift every later answer by one: such a stream is never used again.
            await stream.close()
            raise
        if len(idle) < MAX_IDLE:
            idle.append(stream)
        else:
            await stream.close()
        return answer

    async def forget(self, peer: PeerId) -> None:
        for stream in self._idle.pop(peer, []):
            await stream.close()

    async def close(self) -> None:
        for peer in list(self._idle):
            await self.forget(peer)


def short(peer: PeerId) -> str:
    """The end of a peer id, where ids differ."""
    return f"…{peer[-8:]}"
