"""Addition and subtraction of numbers up to three digits, right-aligned in a layout of fixed width."""

import numpy as np

from scripts.train.tasks.base import Example, Task, equals

PHRASES = ("What is {}?", "{} =", "Compute {}.", "How much is {}?")


def _operand(rng: np.random.Generator) -> int:
    return int(rng.integers(0, 10 ** int(rng.choice((1, 2, 3), p=(0.1, 0.25, 0.65)))))


def draw(rng: np.random.Generator) -> Example:
    a, b = _operand(rng), _operand(rng)
    if rng.random() < 0.5:
        sum_text, value = f"{a} + {b}", a + b
    else:
        sum_text, value = f"{a} - {b}", a - b
    phrase = PHRASES[int(rng.choice(len(PHRASES), p=(0.6, 0.2, 0.1, 0.1)))]
    return Example(prompt=phrase.format(sum_text), answer=str(value), key=sum_text)


TASK = Task("arithmetic", draw, equals)
