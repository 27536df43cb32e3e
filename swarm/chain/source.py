"""The score source of a swarm: each pass runs hop by hop over a chain, and again over another chain when one fails.

A pass depends on the canvas, and on the epoch's snapshot where keys and values are cached, and on nothing else; so a
second try gives the same score rows.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from swarm.chain.checks import check_key, hidden_from, rows_from
from swarm.chain.links import Links
from swarm.chain.peers import PeerBook
from swarm.decode.events import Work
from swarm.errors import CacheMiss, CoverageLost, GlossError, Overloaded, PassFailed, PeerRefused
from swarm.host.host import SpanHost
from swarm.ids import PeerId, RequestId
from swarm.mixture.rows import ScoreRows
from swarm.plan.routes import Hop, choose_chain
from swarm.wire.messages import Epoch, PassAnswer, PassRequest
from swarm.wire.tensors import Tensor

MAX_ATTEMPTS = 8
TIMEOUT_FLOOR_S = 2.0


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
    peers: set[PeerId] = field(default_factory=set)


class Watcher:
    """Is told what happens. This one does not care; the daemon's feeds its metrics."""

    def pass_started(self, attempt: int) -> None:
        """`attempt` > 0 runs a pass again."""

    def pass_done(self, seconds: float) -> None: ...

    def hop_done(self, seconds: float) -> None: ...

    def hop_failed(self, code: str) -> None: ...


_NOBODY = Watcher()


class ChainSource:
    """Scores the work of one request. `host` answers the hops that fall to this node, without the network."""

    def __init__(
        self,
        request: RequestId,
        book: PeerBook,
        links: Links,
        host: SpanHost | None,
        shape: Shape,
        hop_timeout_s: float,
        watcher: Watcher = _NOBODY,
    ) -> None:
        self.counts = PassCounts()
        self._request = request
        self._book = book
        self._links = links
        self._host = host
        self._shape = shape
        self._cap_s = hop_timeout_s
        self._watcher = watcher
        self._excluded: set[PeerId] = set()
        self._chain: tuple[Hop, ...] | None = None
        self._primed: tuple[tuple[Hop, ...], int] | None = None

    @property
    def chain(self) -> tuple[Hop, ...]:
        """The chain that the next pass will take. Raises CoverageLost."""
        if self._chain is None:
            offers = self._book.offers(frozenset(self._excluded))
            self._chain = choose_chain(offers, self._book.n_parts, salt=self._request)
        return self._chain

    async def score(self, work: Work) -> ScoreRows:
        """Raises CoverageLost when no chain is left, PassFailed after MAX_ATTEMPTS, BadRequest."""
        for attempt in range(MAX_ATTEMPTS):
            chain = await self._chain_or_news()
            self._watcher.pass_started(attempt)
            failed: GlossError
            try:
                return await self._scored(chain, work, attempt)
            except CacheMiss as error:
                failed = error
                self._primed = None
            except _HopFailed as error:
                failed = error.reason
                self._leave_out(error.peer, error.reason)
                await self._links.forget(error.peer)
            self.counts.replays += 1
        raise failed

    async def _scored(self, chain: tuple[Hop, ...], work: Work, attempt: int) -> ScoreRows:
        """One pass, after a pass over the epoch's snapshot where the chain does not hold its keys and values yet."""
        if work.epoch is None:
            return await self._pass(chain, _Pass(work, work.ids), attempt)
        here = (chain, work.epoch.number)
        if self._primed != here:
            rows = await self._pass(chain, _Pass(work, work.epoch.snapshot, primes=True), attempt)
            self._primed = here
            if work.step == work.epoch.first_step:
                return rows
        return await self._pass(chain, _Pass(work, work.ids[:, work.epoch.active], active=work.epoch.active), attempt)

    async def _chain_or_news(self) -> tuple[Hop, ...]:
        try:
            return self.chain
        except CoverageLost:
            # A spare may have joined since the last look; ask once before giving up.
            await self._book.refresh()
            return self.chain

    def _leave_out(self, peer: PeerId, reason: PassFailed) -> None:
        self._watcher.hop_failed(reason.code)
        self._chain = None
        self._excluded.add(peer)
        if peer != self._book.me:
            self._book.failed(peer, reason)

    async def _pass(self, chain: tuple[Hop, ...], one: "_Pass", attempt: int) -> ScoreRows:
        self.counts.passes += 1
        began = time.monotonic()
        shape = (*one.ids.shape, self._shape.hidden_size)
        carried = Tensor.of("ids", one.ids)
        beside = () if one.active is None else (Tensor.of("active", one.active),)
        for hop in chain[:-1]:
            answers = await self._hop(hop, one, attempt, (carried, *beside))
            with _blaming(hop.peer):
                carried = hidden_from(answers, shape, self._shape.dtype)
        head = chain[-1]
        answers = await self._hop(head, one, attempt, (carried, *beside, Tensor.of("positions", one.work.positions)))
        with _blaming(head.peer):
            rows = rows_from(answers, one.work, self._shape.mask_id, self._shape.n_tokens)
        self._watcher.pass_done(time.monotonic() - began)
        return rows

    async def _hop(self, hop: Hop, one: "_Pass", attempt: int, tensors: tuple[Tensor, ...]) -> dict[str, Tensor]:
        size = len(hop.span) * int(np.prod(one.ids.shape))
        timeout_s = self._book.timeout_s(hop.peer, size, TIMEOUT_FLOOR_S, self._cap_s)
        request = PassRequest(
            request=self._request,
            step=one.work.step,
            attempt=attempt,
            model=self._book.model,
            start=hop.span.start,
            stop=hop.span.stop,
            cfg_scale=one.work.cfg_scale,
            epoch=one.epoch,
            budget_ms=max(1, int(timeout_s * 1000)),
        )
        began = time.monotonic()
        with _blaming(hop.peer):
            answer, parts = await self._call(hop.peer, request, tensors, timeout_s)
            check_key(request, answer)
        seconds = time.monotonic() - began
        self._book.succeeded(hop.peer, size, seconds, answer.compute_us / 1e6)
        self._watcher.hop_done(seconds)
        self.counts.peers.add(hop.peer)
        return parts

    async def _call(
        self, peer: PeerId, request: PassRequest, tensors: tuple[Tensor, ...], timeout_s: float
    ) -> tuple[PassAnswer, dict[str, Tensor]]:
        if peer != self._book.me:
            return await self._links.call(peer, request, tensors, timeout_s)
        if self._host is None:
            raise PeerRefused("this node hosts nothing")
        try:
            answer, parts = await self._host.answer(request, {tensor.name: tensor for tensor in tensors}, peer)
        except Overloaded as error:
            raise PeerRefused(str(error)) from None
        return answer, {part.name: part for part in parts}


@dataclass(frozen=True, slots=True, eq=False)
class _Pass:
    """ids: int32 [rows, count], the columns that travel: the whole canvas, or the `active` positions, int32 [count]."""

    work: Work
    ids: npt.NDArray[np.int32]
    primes: bool = False
    active: npt.NDArray[np.int32] | None = None

    @property
    def epoch(self) -> Epoch | None:
        return None if self.work.epoch is None else Epoch(number=self.work.epoch.number, primes=self.primes)


class _HopFailed(Exception):
    def __init__(self, peer: PeerId, reason: PassFailed) -> None:
        super().__init__(str(reason))
        self.peer = peer
        self.reason = reason


@contextmanager
def _blaming(peer: PeerId) -> Iterator[None]:
    try:
        yield
    except PassFailed as error:
        raise _HopFailed(peer, error) from None
