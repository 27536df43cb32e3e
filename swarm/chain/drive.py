"""The sequential driver: one step after the other, each scored by a source."""

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from swarm.decode.decoder import Decoder
from swarm.decode.events import Event, Work
from swarm.errors import Halted
from swarm.mixture.rows import ScoreRows


class ScoreSource(Protocol):
    async def score(self, work: Work) -> ScoreRows: ...


async def drive(decoder: Decoder, source: ScoreSource, halted: Callable[[], bool]) -> AsyncIterator[Event]:
    """Run the decoder to its end. `halted` is polled before every step; Halted is raised when it says so."""
    while work := decoder.wanted():
        if halted():
            raise Halted("the swarm is halted; no further step was started")
        (item,) = work
        for event in decoder.apply(item.step, await source.score(item)):
            yield event
