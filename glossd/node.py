"""This machine's place in the swarm: identity, network, the hosted span and the book of peers.

Made by the daemon before the local API opens; `leave` undoes it in the reverse order.
"""

import asyncio
import contextlib
import math
import time
from typing import Protocol

import psutil

from glossd import __version__
from glossd.api.schemas import Caches
from glossd.config import Settings
from glossd.models import Model
from glossd.neighbours import daemons_here
from glossd.observe import Log, Metrics
from swarm.chain.answers import Answers
from swarm.chain.hedges import Hedges
from swarm.chain.peers import PeerBook
from swarm.chain.source import ChainSource, Shape, Watcher
from swarm.errors import GlossError, ModelFileError
from swarm.host.host import SpanHost
from swarm.host.relay import Relay
from swarm.host.server import serve_passes
from swarm.host.threads import choose_threads, cores, in_passing_thread
from swarm.host.throughput import POSITIONS, measure_throughput
from swarm.ids import PeerId, RequestId, Span
from swarm.model.span import SpanModule
from swarm.model.weights import DTYPES, load_span, span_bytes
from swarm.net.counted import CountedTransport
from swarm.net.directory import LEASE_S, Directory
from swarm.net.links import Links
from swarm.net.transport import Transport
from swarm.plan.placement import choose_span
from swarm.trust.bans import Ban, Bans
from swarm.trust.door import Door
from swarm.wire.records import NodeRecord

log = Log("glossd.node")

MEMORY_SHARE = 0.5
"""Share of the free memory that `--layers auto` fills at most."""
PING_S = 1.0


class Network(Transport, Directory, Protocol):
    """Streams and records over one identity."""


class Node:
    def __init__(self, settings: Settings, model: Model, network: Network, metrics: Metrics) -> None:
        self.model = model
        self.network = network
        self.dtype = settings.dtype if settings.dtype != "auto" else model.checkpoint.auto_dtype
        self.quant = settings.quant
        self.span: Span | None = None
        self._settings = settings
        self._metrics = metrics
        self._host: SpanHost | None = None
        self._relay: Relay | None = None
        self._throughput = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self.bans = Bans(settings.state_dir / "bans.json")
        checkpoint = model.checkpoint
        self.book = PeerBook(
            network,
            network.peer_id,
            checkpoint.model_id,
            checkpoint.tokenizer_id,
            self.dtype,
            checkpoint.config.n_parts,
            self.quant,
            self.bans,
        )
        self._door = Door(network, self.bans)
        self._transport = CountedTransport(self._door, metrics.sent_bytes.inc, metrics.received_bytes.inc)
        self._answers = Answers()
        self._links = Links(self._transport, self._answers.lost)
        self._counting = _Counting(metrics)
        self.hedges = Hedges(settings.hedge_share)

    @property
    def caches(self) -> Caches:
        if self._host is None:
            return Caches(sessions=0, size_bytes=0, limit_bytes=0)
        held = self._host.sessions
        return Caches(sessions=len(held), size_bytes=held.size_bytes, limit_bytes=held.budget_bytes)

    @property
    def peer_id(self) -> PeerId:
        return self.network.peer_id

    async def join(self) -> None:
        """Choose and load the span, serve it and announce it. Raises StartError."""
        await self._answers.serve(self._transport)
        await self.book.refresh()
        self.span = self._choose_span()
        if self.span is not None:
            await self._host_span(self.span)
            await self._announce("online")
            self._tasks.append(asyncio.create_task(self._keep_announced(), name="announce"))
        await self.book.refresh()
        refreshing = self.book.keep_fresh(self._is_there, self._count_peers)
        self._tasks.append(asyncio.create_task(refreshing, name="refresh peers"))

    async def ban(self, peer: PeerId, reason: str) -> None:
        """From now on `peer` neither serves this node nor is served. Raises BadRequest."""
        self.bans.add(Ban(peer=peer, since=time.time(), reason=reason))
        await self._links.forget(peer)
        await self._door.cut(peer)
        log.info("banned", peer=peer, reason=reason)

    def new_source(self, request: RequestId) -> ChainSource:
        config = self.model.checkpoint.config
        shape = Shape(config.hidden_size, self.dtype, config.mask_id, self.model.n_tokens)
        return ChainSource(
            request,
            self.book,
            self._links,
            self._answers,
            self._relay,
            shape,
            self._settings.hop_timeout_s,
            self._counting,
            self._settings.activations,
            self.hedges,
            self._settings.pass_timeout_floor_s,
        )

    async def leave(self) -> None:
        """Tell peers, then close everything. Never raises."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._host is not None:
            self._host.draining = True
            with contextlib.suppress(Exception):
                async with asyncio.timeout(1.0):
                    await self.network.withdraw(self.book.model)
        await self.hedges.close()
        await self._links.close()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(2.0):
                await self.network.close()
        if self._host is not None:
            self._host.close()

    def _choose_span(self) -> Span | None:
        config = self.model.checkpoint.config
        if self._settings.layers == "none":
            return None
        if self._settings.layers != "auto":
            return Span.parse(self._settings.layers)
        whole = span_bytes(config, Span(0, config.n_parts), DTYPES[self.dtype], self.quant)
        free = psutil.virtual_memory().available * MEMORY_SHARE
        capacity = max(1, min(config.n_parts, math.floor(config.n_parts * free / whole)))
        others = [record.span for peer, record in self.book.records().items() if peer != self.peer_id]
        held = self.model.checkpoint.held
        if held == [Span(0, config.n_parts)]:
            return choose_span(others, config.n_parts, capacity)
        if not held:
            raise ModelFileError(f"no part of {self.model.name} was pulled; run `glossd pull {self.model.name}`")
        longest = max(held, key=len)
        return Span(longest.start, min(longest.stop, longest.start + capacity))

    async def _host_span(self, span: Span) -> None:
        began = time.monotonic()
        threads = choose_threads(self.model.checkpoint.config, self._settings.threads, cores(), daemons_here())
        module = await asyncio.wrap_future(in_passing_thread(lambda: self._load(span), threads.most))
        self._host = SpanHost(
            module,
            self.book.model,
            self.model.n_tokens,
            self._settings.cache_mb * 2**20,
            joins=not self._settings.deterministic,
            threads=threads,
        )
        self._throughput = await asyncio.wrap_future(
            in_passing_thread(lambda: measure_throughput(module, self.model.n_tokens), threads.of_forward(POSITIONS))
        )
        self._relay = Relay(self.peer_id, self._host, self._links, self._answers.deliver, self._count_served)
        await serve_passes(self._transport, self._relay, self._door.sent_junk)
        seconds = time.monotonic() - began
        log.info("hosting", model=self.model.name, parts=span, seconds=seconds, throughput=self._throughput)

    def _load(self, span: Span) -> SpanModule:
        return load_span(
            self.model.checkpoint,
            span,
            DTYPES[self.dtype],
            quant=self.quant,
            device_map=self._settings.device_map,
        )

    async def _keep_announced(self) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 3)
            try:
                await self._announce("online")
            except GlossError as error:
                log.warning("record not renewed", reason=error)

    async def _announce(self, state: str) -> None:
        if self.span is None:
            return
        await self.network.announce(
            NodeRecord.model_validate(
                {
                    "peer": self.peer_id,
                    "model": self.book.model,
                    "tokenizer": self.model.checkpoint.tokenizer_id,
                    "start": self.span.start,
                    "stop": self.span.stop,
                    "dtype": self.dtype,
                    "quant": self.quant,
                    "throughput": round(self._throughput, 1),
                    "state": state,
                    "version": __version__,
                    "issued_ms": int(time.time() * 1000),
                }
            )
        )

    async def _is_there(self, peer: PeerId) -> bool:
        return await self._links.ping(peer, PING_S)

    async def _count_peers(self) -> None:
        self._metrics.peers.set(len(self.book.records()))
        self._metrics.uncovered_parts.set(len(self.book.uncovered()))

    def _count_served(self, seconds: float) -> None:
        self._metrics.served.inc()
        self._metrics.served_seconds.observe(seconds)


class _Counting(Watcher):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def pass_started(self, attempt: int) -> None:
        self._metrics.passes.inc()
        if attempt:
            self._metrics.replays.inc()

    def pass_hedged(self) -> None:
        self._metrics.hedges.inc()

    def pass_done(self, seconds: float) -> None:
        self._metrics.pass_seconds.observe(seconds)

    def hop_done(self, seconds: float) -> None:
        self._metrics.hop_seconds.observe(seconds)

    def hop_failed(self, code: str) -> None:
        self._metrics.hop_failures.labels(code).inc()
