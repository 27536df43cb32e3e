"""Choose the span of parts that a node should host: the one that helps the swarm's weakest parts most.

A peer runs its whole span for every pass, so it gives each part of it the same supply: its passes a second. What a
swarm can do is what its weakest part gets, then its second weakest, and so on; so spans are compared by the supplies of
all parts in ascending order (Petals' rule of block selection, carried through to the last part). Embedding, layers and
head differ in bytes and in work, which callers give for each part.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from swarm.ids import Span

MOVE_GAIN = 0.2
"""A node moves only when the lowest supply that changes grows by this share; smaller gains are errors of measuring."""

Supply = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Hosted:
    """What a peer hosts, or will soon; `serves` says that it runs now and means to stay.

    `parts_per_s` is its throughput, parts times positions a second; 0 where nobody has measured it.
    """

    span: Span
    parts_per_s: float
    serves: bool = True


def windows(sizes: Sequence[int], budget_bytes: int, held: Sequence[Span]) -> list[Span]:
    """The longest spans of at most `budget_bytes` within one of `held`, none inside another; `sizes` are the bytes of
    each part. Empty when not one part fits."""
    found: list[Span] = []
    for whole in sorted(held):
        stop, size, reached = whole.start, 0, whole.start
        for start in whole:
            while stop < whole.stop and size + sizes[stop] <= budget_bytes:
                size += sizes[stop]
                stop += 1
            if stop > max(start, reached):
                found.append(Span(start, stop))
                reached = stop
            if stop > start:
                size -= sizes[start]
            else:
                stop = start + 1  # this part alone is too large
    return found


def supply(hosted: Sequence[Hosted], work: Sequence[float]) -> Supply:
    """Passes of one position a second that each part gets, float64 [parts]; 0 where nobody hosts it.

    `work` is each part's share of a pass's computing.
    """
    usual = typical_speed(hosted, work)
    total = np.zeros(len(work))
    for one in hosted:
        total[one.span.start : one.span.stop] += (_speed(one, work) or usual) / _work_of(one.span, work)
    return total


def choose_span(others: Sequence[Hosted], candidates: Sequence[Span], work: Sequence[float]) -> Span:
    """The best of `candidates` for a node that hosts nothing yet; of equals, the one with the lowest parts."""
    base, speed = supply(others, work), typical_speed(others, work)
    return max(candidates, key=lambda span: (_ascending(base, span, speed, work), -span.start))


def better_span(
    mine: Hosted, others: Sequence[Hosted], candidates: Sequence[Span], work: Sequence[float]
) -> Span | None:
    """Where a node should move from `mine`, None to stay. It never leaves a part that nobody else serves.

    Every move raises the supplies in ascending order, so that a swarm in which nothing else changes comes to rest.
    """
    served = {part for one in others if one.serves for part in one.span}
    base, speed = supply(others, work), _speed(mine, work) or typical_speed(others, work)
    now = _ascending(base, mine.span, speed, work)
    best, best_levels = None, now
    for span in candidates:
        if span != mine.span and set(mine.span) <= served | set(span):
            then = _ascending(base, span, speed, work)
            if then > best_levels and _is_gain(now, then):
                best, best_levels = span, then
    return best


def typical_speed(hosted: Sequence[Hosted], work: Sequence[float]) -> float:
    """The median of what is known of peers, in `work` a second; 1 where nothing is."""
    return statistics.median([speed for one in hosted if (speed := _speed(one, work))] or [1.0])


def _speed(one: Hosted, work: Sequence[float]) -> float:
    return one.parts_per_s / len(one.span) * _work_of(one.span, work)


def _work_of(span: Span, work: Sequence[float]) -> float:
    return sum(work[span.start : span.stop])


def _ascending(base: Supply, span: Span, speed: float, work: Sequence[float]) -> list[float]:
    more = base.copy()
    more[span.start : span.stop] += speed / _work_of(span, work)
    levels: list[float] = np.sort(more).tolist()
    return levels


def _is_gain(now: Sequence[float], then: Sequence[float]) -> bool:
    was, will_be = next((pair for pair in zip(now, then, strict=True) if pair[0] != pair[1]), (0.0, 0.0))
    return will_be > was * (1 + MOVE_GAIN)
