"""The driver of a displaced patch pipeline: passes travel one behind the other, answers are taken in that order."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from swarm.chain.drive import ScoreSource
from swarm.decode.events import Event, Work
from swarm.decode.patches import PatchDecoder
from swarm.errors import Halted, PipelineLost
from swarm.mixture.rows import ScoreRows


@dataclass(slots=True)
class Travel:
    """Seconds that passes were under way, added up, and how many of them were hidden behind others."""

    total_s: float = 0.0
    masked_s: float = 0.0


@dataclass(slots=True)
class _Flying:
    work: Work
    task: "asyncio.Task[ScoreRows]"
    sent: float


async def drive_patches(
    decoder: PatchDecoder, source: ScoreSource, halted: Callable[[], bool], travel: Travel
) -> AsyncIterator[Event]:
    """Run the decoder to its end. `halted` is polled before every pass; Halted is raised when it says so.

    Spans compute what one link brings them in order, so the order of sending is that of the decoder's steps everywhere.
    """
    flying: deque[_Flying] = deque()
    answered = 0.0
    try:
        while True:
            for work in decoder.wanted():
                if halted():
                    raise Halted("the swarm is halted; no further step was started")
                flying.append(_Flying(work, asyncio.create_task(source.score(work)), time.monotonic()))
            if not flying:
                return
            oldest = flying.popleft()
            if oldest.work.step not in decoder.in_flight:
                await _give_up([oldest])
                continue
            try:
                rows = await oldest.task
            except PipelineLost:
                await _give_up(flying)
                flying.clear()
                decoder.lost()
                continue
            now = time.monotonic()
            travel.total_s += now - oldest.sent
            travel.masked_s += max(0.0, answered - oldest.sent)
            answered = now
            for event in decoder.apply(oldest.work.step, rows):
                yield event
    finally:
        await _give_up(flying)


async def _give_up(flying: "deque[_Flying] | list[_Flying]") -> None:
    for each in flying:
        each.task.cancel()
    await asyncio.gather(*(each.task for each in flying), return_exceptions=True)
