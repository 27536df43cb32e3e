"""Reverse, upper-case and lower-case a word of three to ten letters."""

import string

import numpy as np

from scripts.train.tasks.base import Example, Task, equals

VOWELS = "aeiou"


def _word(rng: np.random.Generator) -> str:
    length = int(rng.integers(3, 11))
    if rng.random() < 0.5:
        return "".join(rng.choice(list(string.ascii_lowercase), size=length))
    return "".join(
        str(rng.choice(list(VOWELS if (i + int(length % 2)) % 2 else string.ascii_lowercase))) for i in range(length)
    )


def draw(rng: np.random.Generator) -> Example:
    word = _word(rng)
    kind = int(rng.choice(3, p=(0.6, 0.2, 0.2)))
    if kind == 0:
        prompt, answer = ("Reverse: {}", "Reverse the word {}")[int(rng.random() < 0.5)].format(word), word[::-1]
    elif kind == 1:
        prompt, answer = f"Uppercase: {word}", word.upper()
    else:
        prompt, answer = f"Lowercase: {word.upper()}", word
    return Example(prompt=prompt, answer=answer, key=f"{kind}{word}")


TASK = Task("strings", draw, equals)
