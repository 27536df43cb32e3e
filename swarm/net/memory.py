"""The in-memory twin of the network: nodes of one process that open streams and share records. For tests.

Keeps the promises of `transport` and `directory`, refuses what libp2p refuses, and can kill or freeze a node.
Knows no sockets, keys or processes.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from swarm.errors import DialFailed, LinkBroken
from swarm.ids import ModelId, PeerId
from swarm.net.directory import LEASE_S
from swarm.net.transport import Handler, Stream
from swarm.wire.records import NodeRecord

WINDOW_BYTES = 64 * 1024

log = logging.getLogger(__name__)


class MemoryNetwork:
    """`clock` gives seconds; records expire by it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.nodes: dict[PeerId, MemoryNode] = {}
        self.leases: dict[tuple[ModelId, PeerId], tuple[NodeRecord, float]] = {}

    def node(self, peer_id: PeerId) -> "MemoryNode":
        """A node in this network. A name that was killed or closed may be used again."""
        node = self.nodes[peer_id] = MemoryNode(self, peer_id)
        return node

    def kill(self, peer_id: PeerId) -> None:
        """The process is gone: its streams break, it cannot be dialled, its records stay until their lease ends."""
        self.nodes.pop(peer_id).die()

    def freeze(self, peer_id: PeerId) -> None:
        """The node stands still: peers can open streams and write, but nothing of it arrives anywhere."""
        self.nodes[peer_id].frozen = True

    def thaw(self, peer_id: PeerId) -> None:
        """End a freeze; what was written meanwhile arrives."""
        node = self.nodes[peer_id]
        node.frozen = False
        for stream in list(node.streams):
            stream.deliver()
            stream.other.deliver()


class MemoryNode:
    """Transport and Directory of one node."""

    def __init__(self, network: MemoryNetwork, peer_id: PeerId) -> None:
        self.peer_id = peer_id
        self.frozen = False
        self.streams: set[MemoryStream] = set()
        self._network = network
        self._handlers: dict[str, Handler] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, protocol: str, handler: Handler) -> None:
        self._handlers[protocol] = handler

    async def open(self, peer: PeerId, protocol: str) -> Stream:
        await asyncio.sleep(0)
        target = self._network.nodes.get(peer)
        if target is self or self._network.nodes.get(self.peer_id) is not self:
            raise DialFailed(f"{self.peer_id} cannot dial {peer}: a node dials others, and only while it lives")
        if target is None or protocol not in target._handlers:
            raise DialFailed(f"{peer} does not answer on {protocol}")
        near, far = MemoryStream(self, peer), MemoryStream(target, self.peer_id)
        near.other, far.other = far, near
        target._spawn(target._handle(far, target._handlers[protocol]))
        return near

    async def addresses(self) -> list[str]:
        return [f"/memory/{self.peer_id}/p2p/{self.peer_id}"]

    async def announce(self, record: NodeRecord) -> None:
        if record.peer_id != self.peer_id:
            raise ValueError(f"{self.peer_id} cannot announce a record of {record.peer}")
        if not self.frozen:
            now = self._network.clock()
            stamped = record.model_copy(update={"issued_ms": int(now * 1000)})
            self._network.leases[record.model_id, self.peer_id] = (stamped, now + LEASE_S)

    async def withdraw(self, model: ModelId) -> None:
        last, expires = self._network.leases.get((model, self.peer_id), (None, 0.0))
        if last is not None:
            parting = last.model_copy(update={"state": "offline"})
            self._network.leases[model, self.peer_id] = parting, expires

    async def records(self, model: ModelId) -> dict[PeerId, NodeRecord]:
        now = self._network.clock()
        return {
            peer: record
            for (name, peer), (record, expires) in self._network.leases.items()
            if name == model and expires > now
        }

    async def close(self) -> None:
        if self._network.nodes.get(self.peer_id) is self:
            del self._network.nodes[self.peer_id]
        tasks = list(self._tasks)
        self.die()
        await asyncio.gather(*tasks, return_exceptions=True)

    def die(self) -> None:
        for stream in list(self.streams):
            stream.break_both()
        for task in self._tasks:
            task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, stream: "MemoryStream", handler: Handler) -> None:
        try:
            await handler(stream)
        except LinkBroken:
            pass
        except Exception:
            log.exception("a handler of %s failed on a stream of %s", self.peer_id, stream.peer)
        finally:
            await stream.close()


class MemoryStream:
    """One end of a stream. `inbox` holds what arrived, `held` what a freeze keeps from arriving."""

    other: "MemoryStream"

    def __init__(self, owner: MemoryNode, peer: PeerId) -> None:
        self.peer = peer
        self._owner = owner
        self._inbox = asyncio.StreamReader(limit=WINDOW_BYTES)
        self._room = asyncio.Event()
        self._room.set()
        # StreamReader asks its transport to pause when it is full; this end is that transport.
        self._inbox.set_transport(self)  # type: ignore[arg-type]
        self._held: list[bytes | None] = []
        self._closed = False
        self._broken = False
        owner.streams.add(self)

    def pause_reading(self) -> None:
        self._room.clear()

    def resume_reading(self) -> None:
        self._room.set()

    async def read_exactly(self, size: int) -> bytes:
        if self._broken or self._closed:
            raise LinkBroken(f"the stream with {self.peer} is broken")
        try:
            return await self._inbox.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise LinkBroken(f"the stream with {self.peer} ended") from None

    async def write(self, *chunks: bytes | memoryview) -> None:
        for chunk in chunks:
            await self.other._room.wait()
            if self._broken or self._closed or self.other._closed:
                raise LinkBroken(f"the stream with {self.peer} is broken")
            self.other._held.append(bytes(chunk))
            self.other.deliver()
        await asyncio.sleep(0)

    async def close(self) -> None:
        if not self._closed and not self._broken:
            self._closed = True
            self._owner.streams.discard(self)
            self._inbox.feed_eof()
            self.other._held.append(None)
            self.other.deliver()
            self._room.set()

    def deliver(self) -> None:
        """Move what was written to this end into the inbox, unless one of the two nodes stands still."""
        if self._owner.frozen or self.other._owner.frozen:
            return
        while self._held:
            chunk = self._held.pop(0)
            if chunk is None:
                self._inbox.feed_eof()
            elif chunk and not self._closed:
                self._inbox.feed_data(chunk)

    def break_both(self) -> None:
        for end in (self, self.other):
            end._broken = True
            end._owner.streams.discard(end)
            end._room.set()
            end._inbox.set_exception(ConnectionResetError())
