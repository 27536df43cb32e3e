"""The transport seam: authenticated byte streams between peers. `memory` and `hivemind` implement it."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from swarm.ids import PeerId


class Stream(Protocol):
    """An ordered, reliable byte stream to one authenticated peer."""

    peer: PeerId

    async def read_exactly(self, size: int) -> bytes:
        """Exactly `size` bytes. Raises LinkBroken when the stream ends before."""
        ...

    async def write(self, *chunks: bytes | memoryview) -> None:
        """Send chunks in order, waiting while the peer is slow. Raises LinkBroken."""
        ...

    async def close(self) -> None:
        """End the stream; never raises."""
        ...


Handler = Callable[[Stream], Awaitable[None]]


class Transport(Protocol):
    """No method waits for ever by itself, but callers set their own deadlines: a frozen peer takes 39 s to show."""

    peer_id: PeerId

    async def serve(self, protocol: str, handler: Handler) -> None:
        """Run `handler` for every stream that a peer opens on `protocol`."""
        ...

    async def open(self, peer: PeerId, protocol: str) -> Stream:
        """Raises DialFailed."""
        ...

    async def addresses(self) -> list[str]:
        """Multiaddresses, each ending in /p2p/ID, by which others can join."""
        ...

    async def close(self) -> None: ...
