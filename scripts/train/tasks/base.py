"""What every task gives: examples, a check, and which examples are held out."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Example:
    """`prompt` is a chat message, or None for a template; in a template `given` marks the characters shown.

    `key` identifies the example up to what makes it the same exercise: examples whose key hashes into the held-out
    tenth are never trained on. `emphasis` are the answer's tokens that decide whether it answers the prompt.
    """

    answer: str
    key: str
    prompt: str | None = None
    given: tuple[bool, ...] | None = None
    prefix: str = ""
    emphasis: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Task:
    """`check(example, text)` says whether `text` is a right answer, which need not equal `example.answer`."""

    name: str
    draw: Callable[[np.random.Generator], Example]
    check: Callable[[Example, str], bool]

    def example(self, rng: np.random.Generator, *, held_out: bool) -> Example:
        while True:
            example = self.draw(rng)
            if is_held_out(example.key) is held_out:
                return example


def is_held_out(key: str) -> bool:
    return zlib.crc32(key.encode()) % 10 == 0


def equals(example: Example, text: str) -> bool:
    return text.strip() == example.answer
