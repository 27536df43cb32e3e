"""Identifiers and the span of parts, shared by every room."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NewType

from swarm.errors import BadSpan

PeerId = NewType("PeerId", str)
RequestId = NewType("RequestId", str)
ModelId = NewType("ModelId", str)


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Parts `start` up to, not including, `stop`. Written `start:stop`."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop:
            raise BadSpan(f"{self.start}:{self.stop} is not a span; write start:stop with 0 <= start < stop")

    @classmethod
    def parse(cls, text: str) -> "Span":
        start, colon, stop = text.partition(":")
        if not (colon and start.isascii() and start.isdigit() and stop.isascii() and stop.isdigit()):
            raise BadSpan(f"{text!r} is not a span of parts; write start:stop, for example 0:4")
        return cls(int(start), int(stop))

    def check_within(self, n_parts: int) -> None:
        """Raise BadSpan unless the span lies inside a model of `n_parts` parts."""
        if self.stop > n_parts:
            raise BadSpan(f"{self} reaches beyond the model, whose parts are 0:{n_parts}")

    def __contains__(self, part: object) -> bool:
        return isinstance(part, int) and self.start <= part < self.stop

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.stop))

    def __len__(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return f"{self.start}:{self.stop}"
