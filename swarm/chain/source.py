"""The score source of a swarm: each pass runs over a chain of peers, and again over another chain when one fails.

The coordinator starts a pass at the first hop; spans push to each other, and the head answers. It holds a link to every
peer of the chain meanwhile, so that it sees at once when one is gone; peers that keep silent are found by a deadline
and a ping.

A pass depends on the canvas, and on the epoch's snapshot where keys and values are cached, and on nothing else; so a
second try gives the same score rows.
"""

import asyncio
import itertools
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from swarm.chain.answers import Answers, HopFailed
from swarm.chain.checks import rows_from
from swarm.chain.hedges import Hedges
from swarm.chain.peers import PeerBook
from swarm.decode.events import Work
from swarm.errors import (
    BadAnswer,
    CacheMiss,
    CoverageLost,
    NetworkDown,
    PassFailed,
    PassTimeout,
    PeerRefused,
    PipelineLost,
)
from swarm.host.relay import Relay
from swarm.ids import PeerId, RequestId
from swarm.mixture.rows import ScoreRows
from swarm.net.links import Links, short
from swarm.plan.routes import Hop, Offer, choose_chain
from swarm.wire.messages import PASS_PROTOCOL, Activations, Epoch, PassAnswer, PassRequest, Release, RouteHop
from swarm.wire.tensors import Tensor

MAX_ATTEMPTS = 8
TIMEOUT_FLOOR_S = 2.0
PING_S = 1.0
RELEASE_S = 1.0
SESSION_BYTES = 16
PACK_ABOVE_S = 0.01
"""Packing score rows takes the head and this node a millisecond, more than the bytes saved take on a near network."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the coordinator must know of the model to check answers; it needs no weights."""

    hidden_size: int
    dtype: str
    mask_id: int
    n_tokens: int


@dataclass(slots=True)
class PassCounts:
    passes: int = 0
    replays: int = 0
    hedges: int = 0
    peers: set[PeerId] = field(default_factory=set)


class Watcher:
    """Is told what happens. This one does not care; the daemon's feeds its metrics."""

    def pass_started(self, attempt: int) -> None:
        """`attempt` > 0 runs a pass again."""

    def pass_hedged(self) -> None:
        """A late pass is sent to other peers too."""

    def pass_done(self, seconds: float) -> None: ...

    def hop_done(self, seconds: float) -> None: ...

    def hop_failed(self, code: str) -> None: ...


_NOBODY = Watcher()


class ChainSource:
    """Scores the work of one request. `relay` runs the hops that fall to this node, without the network;
    `activations` says what hidden states are rounded to where they do travel. Without `hedges` no pass is sent twice.
    """

    def __init__(
        self,
        request: RequestId,
        book: PeerBook,
        links: Links,
        answers: Answers,
        relay: Relay | None,
        shape: Shape,
        hop_timeout_s: float,
        watcher: Watcher = _NOBODY,
        activations: Activations = "exact",
        hedges: Hedges | None = None,
        timeout_floor_s: float = TIMEOUT_FLOOR_S,
    ) -> None:
        self.counts = PassCounts()
        self._request = request
        self._session = secrets.token_hex(SESSION_BYTES)
        self._book = book
        self._links = links
        self._answers = answers
        self._relay = relay
        self._shape = shape
        self._cap_s = hop_timeout_s
        self._watcher = watcher
        self._activations = activations
        self._hedges = hedges or Hedges(0)
        self._floor_s = timeout_floor_s
        self._excluded: set[PeerId] = set()
        self._witnesses: set[PeerId] = set()
        self._silences = 0
        self._guessed: set[PeerId] = set()
        self._cleared: set[PeerId] = set()
        self._may_hold: set[PeerId] = set()
        self._stragglers: list[asyncio.Task[ScoreRows]] = []
        self._chain: tuple[Hop, ...] | None = None
        self._primed: dict[tuple[Hop, ...], int] = {}
        self._spares: tuple[tuple[Hop, ...], bool] = (), False

    @property
    def chain(self) -> tuple[Hop, ...]:
        """The chain that the next pass will take. Raises CoverageLost."""
        if self._chain is None or any(
            hop.peer in self._excluded or self._book.is_banned(hop.peer) for hop in self._chain
        ):
            excluded = frozenset(self._excluded)
            try:
                self._chain = self._choose(self._book.offers(excluded))
            except CoverageLost:
                # Who failed lately may be back, and is better than nobody.
                self._chain = self._choose(self._book.offers(excluded, avoided=True))
        return self._chain

    def _choose(self, offers: dict[PeerId, Offer]) -> tuple[Hop, ...]:
        return choose_chain(offers, self._book.n_parts, salt=self._request)

    async def score(self, work: Work) -> ScoreRows:
        """Raises CoverageLost when no chain is left, PassFailed after MAX_ATTEMPTS; displaced work raises PipelineLost
        when it fails the first time."""
        serials = itertools.count()
        for attempt in range(MAX_ATTEMPTS):
            chain = await self._chain_or_news()
            self._watcher.pass_started(attempt)
            try:
                return await self._hedged(chain, work, serials)
            except (PassFailed, CacheMiss) as error:
                failed = error
            self.counts.replays += 1
            if work.displaced:
                raise PipelineLost(f"a pass of the pipeline failed: {failed}")
        raise failed

    async def _hedged(self, chain: tuple[Hop, ...], work: Work, serials: Iterator[int]) -> ScoreRows:
        """An attempt over `chain`, and over other peers too once it is late; the first valid answer wins."""
        self._hedges.started()
        late_s = self._hedges.late_s(self._sizes(chain, work)) if self._has_spare(chain) else None
        if late_s is None or work.displaced:
            return await self._attempt(chain, work, serials)
        first = asyncio.create_task(self._attempt(chain, work, serials), name="pass")
        running = {first: chain}
        try:
            await asyncio.wait(running, timeout=late_s)
            if not first.done() and (spare := self._other_than(chain)) is not None and self._hedges.spend():
                self.counts.hedges += 1
                self._watcher.pass_hedged()
                running[asyncio.create_task(self._attempt(spare, work, serials), name="hedge")] = spare
            while True:
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    route = running.pop(task)
                    if task.exception() is None:
                        self._chain = route
                        self._hedges.won += task is not first
                        self._stragglers.extend(running)
                        for loser in running:
                            self._hedges.follow(loser)
                        running.clear()
                        return task.result()
                    if not running:
                        return task.result()  # raises
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _attempt(self, chain: tuple[Hop, ...], work: Work, serials: Iterator[int]) -> ScoreRows:
        """One try over one chain. Whoever is to blame for a failure is left out before PassFailed or CacheMiss says
        that there was one."""
        try:
            return await self._scored(chain, work, serials)
        except CacheMiss:
            self._primed.pop(chain, None)
            raise
        except HopFailed as error:
            await self._leave_out(error)
            raise error.reason from None
        except TimeoutError:
            failed: PassFailed = PassTimeout("no peer of the chain answered in time")
            for silent in await self._silent(chain):
                failed = silent.reason
                await self._leave_out(silent)
            raise failed from None

    async def _scored(self, chain: tuple[Hop, ...], work: Work, serials: Iterator[int]) -> ScoreRows:
        """One pass, after a pass over the epoch's snapshot where the chain does not hold its keys and values yet."""
        if work.epoch is None:
            return await self._pass(chain, _Pass(work, next(serials), work.ids))
        if self._primed.get(chain) != work.epoch.number:
            if work.displaced:
                raise CacheMiss("the chain has changed since the pipeline began")
            rows = await self._pass(chain, _Pass(work, next(serials), work.epoch.snapshot, primes=True))
            self._primed[chain] = work.epoch.number
            if work.step == work.epoch.first_step:
                return rows
        active = work.epoch.active
        return await self._pass(chain, _Pass(work, next(serials), work.ids[:, active], active=active))

    def close(self) -> None:
        """The request has ended: peers that may hold something of it are told, so that no work is done in vain."""
        if not self._may_hold or not all(straggler.done() for straggler in self._stragglers):
            return  # those that are still measured end soon, and what is kept for them with the time
        if self._relay is not None:
            self._relay.release(self._book.me, self._session)
        for peer in self._may_hold - {self._book.me}:
            if self._links.holds(peer):
                self._hedges.follow(asyncio.create_task(self._release(peer), name="release"))

    async def _release(self, peer: PeerId) -> None:
        with suppress(PassFailed, TimeoutError):
            async with asyncio.timeout(RELEASE_S):
                await self._links.send(peer, PASS_PROTOCOL, Release(session=self._session))

    def _sizes(self, chain: tuple[Hop, ...], work: Work) -> list[int]:
        """Positions of the passes that `work` takes over `chain`, one after the other."""
        if work.epoch is None:
            return [work.ids.size]
        active = work.ids.shape[0] * len(work.epoch.active)
        if self._primed.get(chain) == work.epoch.number:
            return [active]
        whole = work.epoch.snapshot.size
        return [whole] if work.step == work.epoch.first_step else [whole, active]

    def _has_spare(self, chain: tuple[Hop, ...]) -> bool:
        if self._spares[0] != chain:
            self._spares = chain, self._other_than(chain) is not None
        return self._spares[1]

    def _other_than(self, chain: tuple[Hop, ...]) -> tuple[Hop, ...] | None:
        """A chain without the peers of this one, or else without the slowest of them; None where there is no such."""
        peers = {hop.peer for hop in chain} - {self._book.me}
        for late in (peers, {max(peers, key=self._book.slowness)}) if peers else ():
            try:
                return self._choose(self._book.offers(frozenset(self._excluded | late)))
            except CoverageLost:
                continue
        return None

    async def _chain_or_news(self) -> tuple[Hop, ...]:
        try:
            return self.chain
        except CoverageLost:
            # A spare may have joined since the last look; ask once before giving up.
            await self._book.refresh()
        try:
            return self.chain
        except CoverageLost:
            if len(self._guessed) < 2:
                raise
            # That two hosts of the same parts keep silent is less likely than that the guesses were wrong.
            self._cleared |= self._guessed
            self._excluded -= self._guessed
            self._guessed.clear()
            return self.chain

    async def _pass(self, chain: tuple[Hop, ...], one: "_Pass") -> ScoreRows:
        """Raises HopFailed, CacheMiss, or TimeoutError when nothing came in time."""
        self.counts.passes += 1
        await self._hold_all(chain)
        began = time.monotonic()
        timeout_s = self._timeout_s(chain, one)
        request = self._first_request(chain, one, timeout_s)
        before, self._may_hold = self._may_hold, self._may_hold.union(hop.peer for hop in chain)
        async with asyncio.timeout(timeout_s):
            with self._answers.expect(request.key, tuple(hop.peer for hop in chain)) as answered:
                await self._start(chain[0].peer, request, one.tensors())
                answer, tensors = await answered
        if one.epoch is None:
            self._may_hold = before
        try:
            rows = rows_from(tensors, one.work, self._shape.mask_id, self._shape.n_tokens)
        except BadAnswer as error:
            raise HopFailed(chain[-1].peer, error) from None
        seconds = time.monotonic() - began
        self._learn(chain, one, seconds, answer)
        self._hedges.took(one.ids.size, seconds)
        self._watcher.pass_done(seconds)
        return rows

    async def _hold_all(self, chain: tuple[Hop, ...]) -> None:
        """A link to every peer of the chain, so that none is lost without notice, and each can be reached."""
        for peer in {hop.peer for hop in chain} - {self._book.me}:
            if not self._links.holds(peer):
                try:
                    await self._links.hold(peer, self._cap_s)
                except PassFailed as error:
                    raise HopFailed(peer, error) from None

    async def _start(self, first: PeerId, request: PassRequest, tensors: tuple[Tensor, ...]) -> None:
        if first == self._book.me:
            if self._relay is None:
                raise HopFailed(first, PeerRefused("this node hosts nothing"))
            await self._relay.run(request, {tensor.name: tensor for tensor in tensors}, first)
            return
        try:
            await self._links.send(first, PASS_PROTOCOL, request, tensors)
        except PassFailed as error:
            raise HopFailed(first, error) from None

    def _first_request(self, chain: tuple[Hop, ...], one: "_Pass", timeout_s: float) -> PassRequest:
        rows, columns = one.ids.shape
        return PassRequest(
            request=self._request,
            step=one.work.step,
            attempt=one.serial,
            model=self._book.model,
            start=chain[0].span.start,
            stop=chain[0].span.stop,
            route=[RouteHop(peer=hop.peer, start=hop.span.start, stop=hop.span.stop) for hop in chain[1:]],
            reply_to=self._book.me,
            session=self._session,
            rows=rows,
            columns=columns,
            cfg_scale=one.work.cfg_scale,
            epoch=one.epoch,
            activations=self._activations,
            packs=self._book.latency_s(chain[-1].peer) > PACK_ABOVE_S,
            budget_ms=max(1, int(timeout_s * 1000)),
        )

    def _timeout_s(self, chain: Sequence[Hop], one: "_Pass") -> float:
        """What the hops may take together."""
        hops = [self._book.timeout_s(hop.peer, one.size(hop), 0.0, self._cap_s) for hop in chain]
        return min(max(sum(hops), self._floor_s), self._cap_s * len(hops))

    def _learn(self, chain: Sequence[Hop], one: "_Pass", seconds: float, answer: PassAnswer) -> None:
        """Hops say how long they computed; what is left of the pass's time is shared by those behind the network."""
        computed = [min(us / 1e6, seconds) for us in answer.computed_us]
        if len(computed) != len(chain):
            computed = [0.0] * len(chain)
        remote = [hop.peer for hop in chain if hop.peer != self._book.me]
        way = max(0.0, seconds - sum(computed)) / max(1, len(remote))
        for hop, compute_s in zip(chain, computed, strict=True):
            took = compute_s + (way if hop.peer in remote else 0.0)
            self._book.succeeded(hop.peer, one.size(hop), took, compute_s)
            self._watcher.hop_done(took)
            self.counts.peers.add(hop.peer)

    async def _silent(self, chain: tuple[Hop, ...]) -> list[HopFailed]:
        """Whom to blame for a pass that nobody answered: peers that do not answer a ping either. Where all do, nobody
        the first time; then the one that was slowest so far, or that never was in a pass that succeeded."""
        peers = list(dict.fromkeys(hop.peer for hop in chain if hop.peer != self._book.me))
        alive = await asyncio.gather(*(self._links.ping(peer, PING_S) for peer in peers))
        blamed = [peer for peer, answers in zip(peers, alive, strict=True) if not answers]
        if not blamed:
            self._silences += 1
            if len(peers) == 1 or self._silences > 1:
                guess = max(
                    (p for p in reversed(peers) if p not in self._cleared), key=self._book.slowness, default=None
                )
                blamed = [guess or peers[-1]]
                self._guessed.update(blamed)
        return [HopFailed(peer, PassTimeout(f"peer {short(peer)} did not answer in time")) for peer in blamed]

    async def _leave_out(self, failed: HopFailed) -> None:
        """The peer is left out of this request. What this node saw itself also counts against the peer elsewhere; on
        another's word it does not, and who speaks against others twice is left out as well."""
        self._watcher.hop_failed(failed.reason.code)
        if isinstance(failed.reason, NetworkDown):
            self._chain = None
            return  # this node's own network broke, whose next dials wait until it is back
        self._excluded.add(failed.peer)
        if failed.witness is not None:
            if failed.witness in self._witnesses:
                self._excluded.add(failed.witness)
            self._witnesses.add(failed.witness)
        elif failed.peer != self._book.me:
            self._book.failed(failed.peer, failed.reason)
            await self._links.forget(failed.peer)


@dataclass(frozen=True, slots=True, eq=False)
class _Pass:
    """ids: int32 [rows, count], the columns that travel: the whole canvas, or the `active` positions, int32 [count].

    `serial` tells the passes of a step apart.
    """

    work: Work
    serial: int
    ids: npt.NDArray[np.int32]
    primes: bool = False
    active: npt.NDArray[np.int32] | None = None

    @property
    def epoch(self) -> Epoch | None:
        return None if self.work.epoch is None else Epoch(number=self.work.epoch.number, primes=self.primes)

    def size(self, hop: Hop) -> int:
        return len(hop.span) * self.ids.size

    def tensors(self) -> tuple[Tensor, ...]:
        ids, positions = Tensor.integers("ids", self.ids), Tensor.integers("positions", self.work.positions)
        return (ids, positions) if self.active is None else (ids, Tensor.integers("active", self.active), positions)
