"""Sort three to eight single digits."""

import numpy as np

from scripts.train.tasks.base import Example, Task, equals


def draw(rng: np.random.Generator) -> Example:
    digits = [int(d) for d in rng.integers(0, 10, size=int(rng.integers(3, 9)))]
    shown = (" " if rng.random() < 0.5 else ", ").join(map(str, digits))
    prompt = ("Sort: {}", "Sort the numbers {}")[int(rng.random() < 0.3)].format(shown)
    return Example(prompt=prompt, answer=" ".join(map(str, sorted(digits))), key="".join(map(str, digits)))


TASK = Task("sorting", draw, equals)
