"""One-way streams to peers, kept open: one per peer and protocol, because opening one costs more than a small pass.

Whoever holds a link to a peer learns at once when that peer is gone. Called by coordinators to start passes and to
watch their chains, and by hosts to push to the next peer and to answer.
"""

import asyncio
from collections.abc import Callable, Sequence

from swarm.errors import BadAnswer, GlossError, LinkBroken, PassFailed, PassTimeout
from swarm.ids import PeerId
from swarm.net.transport import Stream, Transport
from swarm.wire.frames import Message, encode, read_frame, write_frame
from swarm.wire.messages import PASS_PROTOCOL, Ping, Pong
from swarm.wire.tensors import Tensor

OnLost = Callable[[PeerId, PassFailed], None]


class Links:
    """`on_lost` is told of every pass link that its peer ended, or on which it spoke out of turn."""

    def __init__(self, transport: Transport, on_lost: OnLost = lambda peer, reason: None) -> None:
        self._transport = transport
        self._on_lost = on_lost
        self._links: dict[tuple[PeerId, str], _Link] = {}
        self._opening: dict[tuple[PeerId, str], asyncio.Lock] = {}

    async def send(
        self, peer: PeerId, protocol: str, message: Message, tensors: Sequence[Tensor] = (), *, packs: bool = False
    ) -> None:
        """Raises DialFailed, LinkBroken, or WireError for what no peer would take."""
        frame = encode(message, tensors, packs=packs)
        try:
            await self._write(peer, protocol, frame)
        except LinkBroken:
            # The link may be left from before the peer restarted; only a fresh one tells whether it is gone.
            await self._write(peer, protocol, frame)

    def holds(self, peer: PeerId) -> bool:
        return (peer, PASS_PROTOCOL) in self._links

    async def hold(self, peer: PeerId, timeout_s: float) -> None:
        """Keep a pass link to `peer` from now on. Raises DialFailed or PassTimeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._link(peer, PASS_PROTOCOL)
        except TimeoutError:
            raise PassTimeout(f"peer {short(peer)} did not open a stream within {timeout_s:.1f} s") from None

    async def ping(self, peer: PeerId, timeout_s: float) -> bool:
        """Whether `peer` answers in time, over a stream of its own, which waits behind nothing."""
        stream: Stream | None = None
        try:
            async with asyncio.timeout(timeout_s):
                stream = await self._transport.open(peer, PASS_PROTOCOL)
                await write_frame(stream, Ping())
                message, _ = await read_frame(stream)
            return isinstance(message, Pong)
        except (GlossError, TimeoutError):
            return False
        finally:
            if stream is not None:
                await stream.close()

    async def forget(self, peer: PeerId) -> None:
        for key in [key for key in self._links if key[0] == peer]:
            await self._drop(self._links[key])

    async def close(self) -> None:
        for link in list(self._links.values()):
            await self._drop(link)

    async def _write(self, peer: PeerId, protocol: str, frame: list[bytes | memoryview]) -> None:
        link = await self._link(peer, protocol)
        try:
            await link.write(frame)
        finally:
            if link.broken:
                await self._drop(link)

    async def _link(self, peer: PeerId, protocol: str) -> "_Link":
        key = (peer, protocol)
        if key not in self._links:
            # Passes that start together must not open a stream each.
            async with self._opening.setdefault(key, asyncio.Lock()):
                if key not in self._links:
                    self._links[key] = _Link(await self._transport.open(peer, protocol), protocol, self._ended)
        return self._links[key]

    def _ended(self, link: "_Link", reason: PassFailed) -> None:
        if self._links.get(link.key) is link:
            del self._links[link.key]
            if link.protocol == PASS_PROTOCOL:
                self._on_lost(link.peer, reason)

    async def _drop(self, link: "_Link") -> None:
        if self._links.get(link.key) is link:
            del self._links[link.key]
        await link.close()


class _Link:
    """A stream that is only written to. Its reader waits for the end, and for what must not come."""

    def __init__(self, stream: Stream, protocol: str, ended: Callable[["_Link", PassFailed], None]) -> None:
        self.peer = stream.peer
        self.protocol = protocol
        self.key = stream.peer, protocol
        self.broken = False
        self._stream = stream
        self._ended = ended
        self._turn = asyncio.Lock()
        self._reader = asyncio.create_task(self._watch(), name="watch a link")

    async def write(self, frame: list[bytes | memoryview]) -> None:
        async with self._turn:
            if self.broken:
                raise LinkBroken(f"the link to peer {short(self.peer)} is broken")
            try:
                await self._stream.write(*frame)
            except BaseException:
                # Half a frame may be out, so nothing can follow it.
                self.broken = True
                raise

    async def close(self) -> None:
        self._reader.cancel()
        await asyncio.wait({self._reader})
        await self._stream.close()

    async def _watch(self) -> None:
        try:
            await self._stream.read_exactly(1)
        except LinkBroken as error:
            self._ended(self, type(error)(f"the link to peer {short(self.peer)} ended: {error}"))
        else:
            self._ended(self, BadAnswer(f"peer {short(self.peer)} speaks out of turn"))
        await self._stream.close()


def short(peer: PeerId) -> str:
    """The end of a peer id, where ids differ."""
    return f"…{peer[-8:]}"
