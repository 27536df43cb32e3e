"""The daemon as the API sees it: requests, and reports on this node and its peers."""

import asyncio
import os
import time
from collections.abc import Callable

from glossd import __version__
from glossd.api.schemas import BanInfo, PeerInfo, Queue, Sockets, Status
from glossd.config import Settings
from glossd.node import Node
from glossd.observe import Metrics
from glossd.requests import Requests, Running
from glossd.tasks import Task
from swarm.errors import BadRequest
from swarm.ids import PeerId
from swarm.net.directory import LEASE_S
from swarm.wire.records import precision


class LocalService:
    """Implements glossd.api.service.Service. `http` is set once the port is known."""

    def __init__(
        self, settings: Settings, node: Node, requests: Requests, metrics: Metrics, leave: Callable[[], None]
    ) -> None:
        self.http: str | None = None
        self._settings = settings
        self._node = node
        self._requests = requests
        self._metrics = metrics
        self._leave = leave
        self._started = time.monotonic()

    async def submit(self, task: Task) -> Running:
        return await self._requests.submit(task)

    async def status(self) -> Status:
        node, book = self._node, self._node.book
        missing = book.uncovered()
        addresses = tuple(await node.network.addresses())
        checkpoint = node.model.checkpoint
        return Status(
            peer=node.peer_id,
            version=__version__,
            pid=os.getpid(),
            uptime_s=round(time.monotonic() - self._started, 1),
            model=node.model.name,
            model_hash=checkpoint.model_id,
            tokenizer_hash=checkpoint.tokenizer_id,
            dtype=precision(node.dtype, node.quant),
            n_parts=checkpoint.config.n_parts,
            span="" if node.span is None else str(node.span),
            state=node.state,
            uncovered=missing,
            covered=not missing,
            peers=len(book.records()),
            addresses=addresses,
            join=join_line(addresses),
            sockets=Sockets(unix=str(self._settings.socket), http=self.http),
            queue=Queue(
                running=self._requests.running, waiting=self._requests.waiting, limit=self._requests.queue_limit
            ),
            caches=node.caches,
            requests=dict(self._requests.ended),
        )

    async def peers(self) -> list[PeerInfo]:
        book, now = self._node.book, time.time()
        return [
            PeerInfo(
                peer=peer,
                span=str(record.span),
                dtype=record.precision,
                throughput=record.throughput,
                state=record.state,
                version=record.version,
                local=peer == book.me,
                expires_in_s=round(max(0.0, record.issued_ms / 1000 + LEASE_S - now), 1),
                last_error=book.state(peer).last_error or None,
            )
            for peer, record in sorted(book.records().items(), key=lambda item: (item[1].span, item[0]))
        ]

    def bans(self) -> list[BanInfo]:
        return [BanInfo(**ban.model_dump()) for ban in self._node.bans]

    async def ban(self, peer: str, reason: str) -> None:
        if peer == self._node.peer_id:
            raise BadRequest("that is this node itself; `glossd stop` ends it", "peer")
        await self._node.ban(PeerId(peer), reason)

    def unban(self, peer: str) -> None:
        if not self._node.bans.remove(PeerId(peer)):
            raise BadRequest("that peer is not banned; `glossd bans` lists those that are", "peer")

    def models(self) -> list[str]:
        return [self._node.model.name]

    async def pause(self) -> None:
        await self._node.pause()

    async def resume(self) -> None:
        await self._node.resume()

    def stop(self) -> None:
        # After the answer to the request that asked for it.
        asyncio.get_running_loop().call_later(0.1, self._leave)

    def metrics(self) -> bytes:
        self._metrics.running.set(self._requests.running)
        self._metrics.waiting.set(self._requests.waiting)
        return self._metrics.render()


def join_line(addresses: tuple[str, ...]) -> str:
    """What to type on another machine; an address beyond this machine is preferred."""
    if not addresses:
        return ""
    outside = [a for a in addresses if not a.startswith(("/ip4/127.", "/ip6/::1"))]
    # A node that keeps the default host, loopback, would announce parts that no other machine can call.
    return f"glossd run --host 0.0.0.0 --join {outside[0]}" if outside else f"glossd run --join {addresses[0]}"
