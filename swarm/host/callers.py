"""What each calling peer takes of this node: streams, passes and their bytes, all bounded. p2pd bounds none of them."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from swarm.errors import Overloaded
from swarm.host.host import MAX_WAITING
from swarm.ids import PeerId

MAX_STREAMS = 16
"""Streams of one peer: it needs one for passes, and one for each ping."""
MAX_BYTES = 128 * 1024 * 1024
"""Bytes of one peer's passes that wait or run here; twice what a frame may hold."""


class Caller:
    """One peer, over all its streams."""

    def __init__(self) -> None:
        self.streams = 0
        self._passes = 0
        self._size_bytes = 0
        self._changed = asyncio.Condition()

    async def enter(self, size_bytes: int) -> None:
        """Wait until a pass of so many bytes has room. A pass that is alone always has."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._has_room(size_bytes))
            self._passes += 1
            self._size_bytes += size_bytes

    async def leave(self, size_bytes: int) -> None:
        async with self._changed:
            self._passes -= 1
            self._size_bytes -= size_bytes
            self._changed.notify_all()

    def _has_room(self, size_bytes: int) -> bool:
        return not self._passes or (self._passes < MAX_WAITING and self._size_bytes + size_bytes <= MAX_BYTES)


class Callers:
    def __init__(self) -> None:
        self._callers: dict[PeerId, Caller] = {}

    @contextmanager
    def stream(self, peer: PeerId) -> Iterator[Caller]:
        """Count a stream of `peer` while it is served. Raises Overloaded beyond MAX_STREAMS."""
        caller = self._callers.setdefault(peer, Caller())
        if caller.streams >= MAX_STREAMS:
            raise Overloaded(f"the peer holds {caller.streams} streams already")
        caller.streams += 1
        try:
            yield caller
        finally:
            caller.streams -= 1
            if not caller.streams:
                del self._callers[peer]
