"""Decoding with a displaced patch pipeline.

The masked positions of a block are cut into patches that travel one behind the other, each re-entering as soon as its
own rows are back. Where a patch is computed, the keys and values of the others are those of their last visit; they
never leave the span that made them (PipeFusion, Fang et al., 2024, brought to text).

    while works := decoder.wanted():     # all that may be sent now, each of them once
        ...                              # answers in the order of sending: decoder.apply(work.step, rows)

Passes of one decoder must be computed in the order of their steps: then the tokens depend on that order alone, not on
how long anything takes.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from swarm.decode.choose import choose
from swarm.decode.decoder import Decoder
from swarm.decode.events import Epoch, Event, Stepped, Token, Work
from swarm.decode.settings import DecodeSettings
from swarm.errors import BadAnswer
from swarm.mixture.rows import ScoreRows

DRIFT_LIMIT = 0.1
"""Mean drift at a refresh above which the next refresh comes twice as soon."""
NEVER = -(2**31)


@dataclass(slots=True)
class Telemetry:
    """`loops` are rounds of all patches, `synchronous` steps outside the pipeline, `displaced` passes within it, `lost`
    pipelines that a failure ended, `staleness` the greatest age, in rounds, of keys and values that a pass has used.

    At each refresh: `agreement`, the share of masked positions whose best token the displaced rows had right, and
    `drift`, the mean total variation between displaced and fresh rows on the tokens that both list.
    """

    loops: int = 0
    synchronous: int = 0
    displaced: int = 0
    lost: int = 0
    staleness: int = 0
    agreement: tuple[float, ...] = ()
    drift: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class _Flight:
    """`patch` is None for a synchronous step; `masks_left` were left when the pass was sent."""

    patch: int | None
    positions: npt.NDArray[np.int32]
    masks_left: int


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """What the newest rows say of a masked position: `rows[row]` are its own."""

    token: Token
    rank: float
    rows: ScoreRows
    row: int


class PatchDecoder(Decoder):
    """Needs `settings.patches` > 1, commit by threshold and the dual cache.

    Displaced, a patch fixes what reaches the threshold and may fix nothing. When every patch has seen all that is fixed
    and fixed nothing more, the best position of all is. One synchronous step, over the whole canvas, comes first in
    every block and after every `refresh_steps` - 1 loops.
    """

    def __init__(
        self, canvas: npt.NDArray[np.int32], settings: DecodeSettings, mask_id: int, eos_id: int, lead: int = 0
    ) -> None:
        self.telemetry = Telemetry()
        self._lead = lead
        self._epoch = Epoch(-1, 0, canvas[None, :], canvas[:0])
        self._flights: dict[int, _Flight] = {}
        self._synchronous = True
        self._patches: list[npt.NDArray[np.int32]] = []
        self._known: dict[int, _Known] = {}
        self._quiet: set[int] = set()
        self._answered: set[int] = set()
        self._visits: dict[int, int] = {}
        self._stretch = settings.refresh_steps
        self._left: int | None = None
        super().__init__(canvas, settings, mask_id, eos_id, lead)
        self._made_at = np.full(len(self.canvas), NEVER)

    @property
    def in_flight(self) -> frozenset[int]:
        """Steps whose rows are still wanted."""
        return frozenset(self._flights)

    def wanted(self) -> list[Work]:
        """Passes to send now, each returned once; empty while all that may travel does, and when finished."""
        if self.finished or (self._synchronous and self._flights):
            return []
        if self._synchronous:
            return [self._whole()]
        flying = {flight.patch for flight in self._flights.values()}
        return [self._displaced(patch) for patch in self._live() if patch not in flying]

    def apply(self, step: int, rows: ScoreRows) -> list[Event]:
        flight = self._flights.pop(step, None)
        if flight is None or not np.array_equal(rows.positions, flight.positions):
            raise BadAnswer(f"score rows for step {step} were not asked for")
        block = self._block
        if flight.patch is None:
            events = self._apply_whole(step, rows)
        else:
            events = self._apply_patch(step, flight.patch, rows, flight.masks_left)
        if self._block != block or self.finished:
            self._restart()
        return events

    def lost(self) -> None:
        """A pass failed: give up what travels, and go on with a synchronous step."""
        self.telemetry.lost += 1
        self._restart()

    def _restart(self) -> None:
        self._flights.clear()
        self._synchronous = True

    def _whole(self) -> Work:
        ids, block = self._ids(), self._current
        active = np.arange(max(0, block.start - self._lead), block.stop, dtype=np.int32)
        self._epoch = Epoch(self._epoch.number + 1, self.step, ids.copy(), active)
        return self._sent(Work(self.step, ids, self._open_positions(), self.settings.cfg_scale, self._epoch), None)

    def _displaced(self, patch: int) -> Work:
        positions = self._open(self._patches[patch])
        visit = self._visits[patch] = self._visits.get(patch, 0) + 1
        leads = positions - self._lead
        riders = self._riders(visit, len(positions))
        active = np.unique(np.concatenate((positions, riders, leads[leads >= 0]))).astype(np.int32)
        self._note_staleness(active, visit)
        self._made_at[active] = visit
        epoch = replace(self._epoch, active=active)
        scale = self.settings.cfg_scale
        work = self._sent(Work(self.step, self._ids(), positions, scale, epoch, displaced=True), patch)
        self.step += 1
        return work

    def _sent(self, work: Work, patch: int | None) -> Work:
        self._flights[work.step] = _Flight(patch, work.positions, self.masks_left)
        return work

    def _riders(self, visit: int, own: int) -> npt.NDArray[np.int32]:
        """Fixed positions of the block that a pass computes beside its `own` masked ones.

        What was fixed since it was last computed, and what would get older than allowed, must go; what is as old as
        allowed fills the pass up to its share of the block, so that passes stay alike.
        """
        block = np.arange(self._current.start, self._current.stop, dtype=np.int32)
        settled = block[self.canvas[block] != self._mask_id]
        age = visit - self._made_at[settled]
        due = settled[age > self.settings.staleness]
        room = max(0, math.ceil(len(block) / len(self._live())) - own - len(due))
        return np.concatenate((due, settled[age == self.settings.staleness][:room]))

    def _note_staleness(self, active: npt.NDArray[np.int32], visit: int) -> None:
        block = np.arange(self._current.start, self._current.stop, dtype=np.int32)
        made = self._made_at[np.setdiff1d(block, active)]
        oldest = int(made[made != NEVER].min(initial=visit))
        self.telemetry.staleness = max(self.telemetry.staleness, visit - oldest)

    def _apply_whole(self, step: int, rows: ScoreRows) -> list[Event]:
        self._measure(rows)
        events = super().apply(step, rows)
        self.telemetry.synchronous += 1
        self._made_at[:] = 0
        self._made_at[rows.positions[self.canvas[rows.positions] != self._mask_id]] = NEVER
        self._known, self._visits, self._quiet, self._answered = {}, {}, set(), set()
        if self._stretch != 1:
            self._patches = np.array_split(self._open_positions(), self.settings.patches)
            self._synchronous = False
            self._left = None if self._stretch is None else self._stretch - 1
        return events

    def _apply_patch(self, step: int, patch: int, rows: ScoreRows, masks_left: int) -> list[Event]:
        self.telemetry.displaced += 1
        choice = choose(rows, self.settings, step, self._eos_id)
        masked = self.canvas[rows.positions] == self._mask_id
        for i in np.flatnonzero(masked):
            token = Token(int(rows.positions[i]), int(choice.ids[i]), float(choice.confidence[i]))
            self._known[token.position] = _Known(token, float(choice.rank[i]), rows, int(i))
        fixed = [self._known[int(p)].token for p in rows.positions[masked & (choice.rank >= self.settings.threshold)]]
        if fixed:
            self._quiet = set()
        elif masks_left == self.masks_left:
            self._quiet.add(patch)
        if not fixed and self._quiet >= set(self._live()):
            fixed, self._quiet = [self._best()], set()
        for token in fixed:
            self.canvas[token.position] = token.id
            self._made_at[token.position] = NEVER
            del self._known[token.position]
        stepped = Stepped(step, self._block, tuple(fixed), self._guessed(), self.masks_left)
        self._count(patch)
        self._close_blocks()
        return [stepped] if self._finished is None else [stepped, self._finished]

    def _count(self, patch: int) -> None:
        self._answered.add(patch)
        if self._answered >= set(self._live()):
            self._answered = set()
            self.telemetry.loops += 1
            if self._left is not None:
                self._left -= 1
                self._synchronous = self._left <= 0

    def _best(self) -> Token:
        """Of all that is known, by (rank desc, position asc)."""
        return min(self._known.values(), key=lambda known: (-known.rank, known.token.position)).token

    def _guessed(self) -> tuple[Token, ...]:
        return tuple(self._known[position].token for position in sorted(self._known))

    def _live(self) -> list[int]:
        """Patches with masked positions, in canvas order."""
        return [patch for patch, positions in enumerate(self._patches) if len(self._open(positions))]

    def _open(self, positions: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        masked: npt.NDArray[np.int32] = positions[self.canvas[positions] == self._mask_id]
        return masked

    def _measure(self, fresh: ScoreRows) -> None:
        """Compare the last displaced rows with fresh ones of the same positions, and adapt the refresh to the drift."""
        pairs = [(self._known[int(p)], i) for i, p in enumerate(fresh.positions) if int(p) in self._known]
        if not pairs or self.settings.refresh_steps is None or self._stretch is None:
            return
        same = [known.rows.ids[known.row, 0] == fresh.ids[i, 0] for known, i in pairs]
        drift = float(np.mean([_variation(known.rows, known.row, fresh, i) for known, i in pairs]))
        self.telemetry.agreement += (float(np.mean(same)),)
        self.telemetry.drift += (drift,)
        if drift > DRIFT_LIMIT:
            self._stretch = max(2, self._stretch // 2)
        else:
            self._stretch = min(self.settings.refresh_steps, 2 * self._stretch)


def _variation(one: ScoreRows, i: int, other: ScoreRows, j: int) -> float:
    """Half the sum of absolute differences of probability over the tokens that both rows list."""
    _, a, b = np.intersect1d(one.ids[i], other.ids[j], assume_unique=True, return_indices=True)
    return 0.5 * float(np.abs(np.exp(one.log_probs[i][a]) - np.exp(other.log_probs[j][b])).sum())
