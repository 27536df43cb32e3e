"""This machine's place in the swarm: identity, network, the hosted span and the book of peers.

Made by the daemon before the local API opens; `leave` undoes it in the reverse order.
"""

import asyncio
import contextlib
import time

from glossd.api.schemas import Caches
from glossd.config import Settings
from glossd.hosting import Hosting
from glossd.membership import Membership, Network, hosted_by_others
from glossd.models import Model
from glossd.moving import PACE, Mover, Pace
from glossd.observe import Log, Metrics
from swarm.chain.answers import Answers
from swarm.chain.hedges import Hedges
from swarm.chain.peers import PeerBook
from swarm.chain.source import ChainSource, Shape, Watcher
from swarm.errors import BadRequest, GlossError, IdentityError
from swarm.host.relay import Relay
from swarm.host.server import serve_passes
from swarm.ids import PeerId, RequestId, Span
from swarm.net.counted import CountedTransport
from swarm.net.links import Links
from swarm.plan.placement import Hosted
from swarm.trust.bans import Ban, Bans
from swarm.trust.door import Door
from swarm.wire.records import State

log = Log("glossd.node")

ANNOUNCE_S = 1.0
"""Longest wait for the directory when the node pauses or leaves."""
PING_S = 1.0
STEP_S = 10.0
"""Longest wait for the forward that runs when the node is paused."""


class Node:
    def __init__(self, settings: Settings, model: Model, network: Network, metrics: Metrics, pace: Pace = PACE) -> None:
        self.model = model
        self.network = network
        self.dtype = settings.dtype if settings.dtype != "auto" else model.checkpoint.auto_dtype
        self.quant = settings.quant
        self._settings = settings
        self._metrics = metrics
        self._relay: Relay | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.bans = Bans(settings.state_dir / "bans.json")
        self._moving: asyncio.Task[None] | None = None
        self.failure: GlossError | None = None
        self._failed = asyncio.Event()
        self._left = False
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
        self._hosting = Hosting(settings, model, self.dtype, self.quant)
        self._membership = Membership(
            network,
            checkpoint.model_id,
            checkpoint.tokenizer_id,
            self.dtype,
            self.quant,
            lambda: self._hosting.throughput,
        )
        self._mover = Mover(self._hosting, self._membership, self._others, lambda: bool(self.book.uncovered()), pace)

    @property
    def span(self) -> Span | None:
        return self._hosting.span

    @property
    def state(self) -> State:
        return self._membership.state

    @property
    def caches(self) -> Caches:
        return self._hosting.caches

    @property
    def peer_id(self) -> PeerId:
        return self.network.peer_id

    async def join(self) -> None:
        """Choose and load the span, serve it and announce it. Raises StartError."""
        await self._answers.serve(self._transport)
        span = self._hosting.choose(await self._others())
        if span is not None:
            self._tasks.append(asyncio.create_task(self._membership.keep(), name="announce"))
            if self._hosting.moves:
                span = await self._mover.settle(span)
            else:
                await self._membership.announce("joining", span)
            await self._hosting.load(span)
            self._hosting.span = span
            self._relay = Relay(
                self.peer_id, self._hosting.spans, self._links, self._answers.deliver, self._count_served
            )
            await serve_passes(self._transport, self._relay, self._door.sent_junk)
            self._start_moving()
        await self._membership.announce("online", span)
        await self.book.refresh()
        refreshing = self.book.keep_fresh(self._is_there, self._looked)
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

    async def wait_failed(self) -> None:
        """Until something happened that this node cannot go on with; `failure` says what."""
        await self._failed.wait()

    async def pause(self) -> None:
        """Compute nothing more, after the forward that runs; own requests go to others. Raises BadRequest."""
        if self.span is None:
            raise BadRequest("this node hosts nothing that could be paused")
        self._hosting.spans.shut("this node is paused")
        await self._stop_moving()
        await self._tell("paused")
        await self._hosting.spans.quiet(STEP_S)
        log.info("paused", parts=self.span)

    async def resume(self) -> None:
        if self.state == "paused":
            self._hosting.spans.reopen()
            await self._tell("online")
            self._start_moving()
            log.info("resumed", parts=self.span)

    async def say_leaving(self) -> None:
        """Peers are to plan without this node; it still serves. Never raises."""
        await self._stop_moving()
        await self._tell("draining")

    async def leave(self, patience_s: float = 0.0) -> None:
        """End the passes that run, for `patience_s` at most, tell peers, then close everything. Never raises."""
        if self._left:
            return
        self._left = True
        for task in (*self._tasks, *filter(None, [self._moving])):
            task.cancel()
        await asyncio.gather(*self._tasks, *filter(None, [self._moving]), return_exceptions=True)
        self._hosting.spans.shut("this node is leaving")
        if self.span is not None:
            await self._hosting.spans.quiet(patience_s)
            with contextlib.suppress(Exception):
                async with asyncio.timeout(ANNOUNCE_S):
                    await self.network.withdraw(self.book.model)
        await self.hedges.close()
        await self._links.close()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(2.0):
                await self.network.close()
        self._hosting.spans.close()

    async def _tell(self, state: State) -> None:
        """The record is renewed anyway, so a directory that does not answer now is not waited for."""
        try:
            async with asyncio.timeout(ANNOUNCE_S):
                await self._membership.announce(state, self.span)
                await self.book.refresh()
        except (GlossError, TimeoutError) as error:
            log.warning("record not renewed", reason=repr(error))

    def _start_moving(self) -> None:
        if self._hosting.moves:
            self._moving = asyncio.create_task(self._mover.keep(), name="move")

    async def _stop_moving(self) -> None:
        if self._moving is not None:
            self._moving.cancel()
            await asyncio.wait({self._moving}, timeout=ANNOUNCE_S)

    async def _others(self, yields: bool = True) -> list[Hosted]:
        await self.book.refresh()
        return hosted_by_others(self.book, yields=yields)

    async def _is_there(self, peer: PeerId) -> bool:
        return await self._links.ping(peer, PING_S)

    async def _looked(self) -> None:
        records = self.book.records()
        self._metrics.peers.set(len(records))
        self._metrics.uncovered_parts.set(len(self.book.uncovered()))
        try:
            self._membership.check_twin(records.get(self.peer_id))
        except IdentityError as error:
            self.failure = error
            self._failed.set()

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
