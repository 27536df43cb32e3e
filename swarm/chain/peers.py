"""What this node knows of its peers: their directory records, how fast they answered, and whom to leave alone.

A peer that failed is avoided at once, long before its lease ends, for a time that doubles with every further failure.
Volunteers restart: one that was merely gone is back as soon as it answers a ping, one that answered badly is not. Where
nobody else serves a part, the avoided are asked all the same.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass, field

from swarm.errors import BadAnswer
from swarm.ids import ModelId, PeerId
from swarm.net.directory import LEASE_S, Directory
from swarm.plan.routes import Offer, uncovered
from swarm.wire.records import PROTOCOL_MAJOR, NodeRecord

log = logging.getLogger(__name__)

REFRESH_S = 2.0
PROBES = 8
"""Pings to absent peers at each refresh."""
AVOID_S, AVOID_MAX_S = 5.0, 300.0
FORGIVEN_S = 1800.0
"""Failures longer ago than this no longer count."""
FIRST_LATENCY_S = 0.02
TYPICAL_POSITIONS = 64
EWMA_WEIGHT = 0.2
FORGOTTEN_S = 60.0
"""A peer that was slow is given another chance when it was not measured for so long."""


@dataclass(slots=True)
class PeerState:
    """`pass_s` is the moving mean of a pass's seconds by size; `speed` that of parts times positions per computing
    second, None before the first. `was_gone`: it did not answer, rather than badly."""

    latency_s: float = FIRST_LATENCY_S
    speed: float | None = None
    measured_at: float = 0.0
    pass_s: dict[int, float] = field(default_factory=dict)
    failures: int = 0
    failed_at: float = 0.0
    avoid_until: float = 0.0
    was_gone: bool = False
    last_error: str = ""

    @property
    def is_avoided(self) -> bool:
        return self.avoid_until > time.monotonic()


class PeerBook:
    """`banned` peers are never asked, whatever they offer.

    Records are kept only if their peer can be mixed with us: same model, tokenizer, precision and protocol major."""

    def __init__(
        self,
        directory: Directory,
        me: PeerId,
        model: ModelId,
        tokenizer: str,
        dtype: str,
        n_parts: int,
        quant: str = "none",
        banned: Container[PeerId] = (),
    ) -> None:
        self.me = me
        self.model = model
        self.n_parts = n_parts
        self._directory = directory
        self._tokenizer = tokenizer
        self._dtype = dtype
        self._quant = quant
        self._banned = banned
        self._records: dict[PeerId, NodeRecord] = {}
        self._found: dict[PeerId, tuple[NodeRecord, float]] = {}
        self._states: dict[PeerId, PeerState] = {}

    async def refresh(self) -> None:
        """Raises what the directory raises. A record counts until its lease ends, also where a look-up misses it."""
        found, now = await self._directory.records(self.model), time.monotonic()
        for peer, record in found.items():
            if peer not in self._found or record != self._found[peer][0]:
                self._found[peer] = record, now
        self._found = {peer: (record, at) for peer, (record, at) in self._found.items() if now - at <= LEASE_S}
        # Who has left says so, and is not missed: only its last word tells it from one that a look-up missed.
        here = {peer: record for peer, (record, _) in self._found.items() if record.state != "offline"}
        self._records = {peer: record for peer, record in here.items() if self._fits(record)}

    async def keep_fresh(
        self, answers: Callable[[PeerId], Awaitable[bool]], changed: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Refresh until cancelled, and ask peers that were gone whether they are back; then `changed` runs."""
        while True:
            try:
                await self.refresh()
                await self._welcome_back(answers)
                if changed is not None:
                    await changed()
            except Exception as error:
                log.warning("directory not read", extra={"fields": {"reason": repr(error)}})
            await asyncio.sleep(REFRESH_S)

    def records(self) -> dict[PeerId, NodeRecord]:
        return dict(self._records)

    def state(self, peer: PeerId) -> PeerState:
        return self._states.setdefault(peer, PeerState())

    async def _welcome_back(self, answers: Callable[[PeerId], Awaitable[bool]]) -> None:
        gone = [peer for peer in self._records if self.state(peer).is_avoided and self.state(peer).was_gone]
        asked = random.sample(gone, min(len(gone), PROBES))
        for peer, is_back in zip(asked, await asyncio.gather(*map(answers, asked)), strict=True):
            if is_back:
                self.state(peer).avoid_until = 0.0

    def offers(self, excluded: frozenset[PeerId] = frozenset(), *, avoided: bool = False) -> dict[PeerId, Offer]:
        """Peers that may serve a pass now; with `avoided` also those that failed lately."""
        return {
            peer: Offer(
                record.span,
                self._speed(peer, record) / TYPICAL_POSITIONS,
                self.latency_s(peer),
            )
            for peer, record in self._records.items()
            if record.state == "online"
            and peer not in excluded
            and peer not in self._banned
            and (avoided or not self.state(peer).is_avoided)
        }

    def _speed(self, peer: PeerId, record: NodeRecord) -> float:
        """What `peer` announces, unless passes over it took longer lately."""
        speed = self.state(peer).speed
        return record.throughput if speed is None or self._is_forgotten(peer) else min(record.throughput, speed)

    def _is_forgotten(self, peer: PeerId) -> bool:
        return time.monotonic() - self.state(peer).measured_at > FORGOTTEN_S

    def is_banned(self, peer: PeerId) -> bool:
        return peer in self._banned

    def uncovered(self) -> tuple[int, ...]:
        return uncovered([offer.span for offer in self.offers().values()], self.n_parts)

    def succeeded(self, peer: PeerId, size: int, seconds: float, compute_s: float) -> None:
        """`size` is the pass's parts times positions, the bucket in which its time is remembered."""
        state = self.state(peer)
        bucket = size.bit_length()
        state.pass_s[bucket] = _blend(state.pass_s.get(bucket, seconds), seconds)
        state.latency_s = _blend(state.latency_s, max(0.0, seconds - compute_s))
        if compute_s > 0:
            state.speed = _blend(state.speed or size / compute_s, size / compute_s)
        state.measured_at = time.monotonic()
        state.failures = 0

    def failed(self, peer: PeerId, error: Exception) -> None:
        state = self.state(peer)
        now = time.monotonic()
        state.failures = 1 if now - state.failed_at > FORGIVEN_S else state.failures + 1
        state.failed_at = now
        state.last_error = str(error)
        state.was_gone = not isinstance(error, BadAnswer)
        state.avoid_until = now + min(AVOID_S * 2 ** (state.failures - 1), AVOID_MAX_S)

    def timeout_s(self, peer: PeerId, size: int, floor_s: float, cap_s: float) -> float:
        """Three times the mean of such passes, within floor and cap; the cap before the first."""
        mean = self.state(peer).pass_s.get(size.bit_length())
        return cap_s if mean is None else min(cap_s, max(floor_s, 3 * mean))

    def throughput(self, peer: PeerId) -> float:
        """What the peer announced, but no more than its passes showed here: size by time, counted generously."""
        state = self.state(peer)
        seen = max((2**bucket / max(mean, 1e-9) for bucket, mean in state.pass_s.items()), default=math.inf)
        return min(self._records[peer].throughput, seen)

    def latency_s(self, peer: PeerId) -> float:
        """What a pass over `peer` takes beyond its computing; a guess before the first, and long after the last."""
        latency_s = self.state(peer).latency_s
        return 0.0 if peer == self.me else min(latency_s, FIRST_LATENCY_S) if self._is_forgotten(peer) else latency_s

    def slowness(self, peer: PeerId) -> float:
        """The longest mean time of a pass's share, infinite before the first: for choosing whom to suspect."""
        return max(self.state(peer).pass_s.values(), default=math.inf)

    def _fits(self, record: NodeRecord) -> bool:
        return (
            record.model_id == self.model
            and record.tokenizer == self._tokenizer
            and record.dtype == self._dtype
            and record.quant == self._quant
            and record.protocol_major == PROTOCOL_MAJOR
            and record.stop <= self.n_parts
        )


def _blend(old: float, new: float) -> float:
    return (1 - EWMA_WEIGHT) * old + EWMA_WEIGHT * new
