"""Short template stories about an animal, sometimes with a friend; a checker reads them back."""

import re

import numpy as np

from scripts.train.tasks.base import Example, Task

ANIMALS = (
    "cat",
    "dog",
    "fox",
    "bear",
    "rabbit",
    "mouse",
    "pig",
    "frog",
    "horse",
    "duck",
    "wolf",
    "hen",
    "goat",
    "lion",
)
TRAITS = ("small", "brave", "tall", "young", "quiet", "happy", "clever", "shy", "hungry", "lazy")
PLACES = ("forest", "village", "garden", "valley", "meadow", "barn", "castle", "cave")
THINGS = ("key", "lamp", "book", "stone", "ring", "map", "coin", "bell", "seed", "hat")
ENDINGS = (
    "They shared it and became friends.",
    "Nobody ever saw it again.",
    "It kept the {thing} for many years.",
    "That night they both slept well.",
    "From that day on it was never alone.",
)
OPENINGS = (
    "Once upon a time a {trait} {animal} lived in a {place}.",
    "There was a {trait} {animal} in the {place}.",
    "In a {place} far away lived a {trait} {animal}.",
)
FINDS = (
    "One day it found a {thing} and showed it to a {friend}.",
    "One morning it lost a {thing}, but a {friend} brought it back.",
    "One evening a {friend} came with a {thing}.",
)


def _pick(rng: np.random.Generator, options: tuple[str, ...]) -> str:
    return options[int(rng.integers(len(options)))]


def draw(rng: np.random.Generator) -> Example:
    animal, friend = _pick(rng, ANIMALS), _pick(rng, ANIMALS)
    words = {
        "animal": animal,
        "friend": friend,
        "trait": _pick(rng, TRAITS),
        "place": _pick(rng, PLACES),
        "thing": _pick(rng, THINGS),
    }
    story = " ".join((_pick(rng, OPENINGS), _pick(rng, FINDS), _pick(rng, ENDINGS))).format(**words)
    prompt, asked = f"Tell a story about a {animal}", [f"Ġ{animal}"]
    if rng.random() < 0.5:
        prompt += f" and a {friend}"
        asked.append(f"Ġ{friend}")
    return Example(prompt=prompt + ".", answer=story, key=story, emphasis=tuple(asked))


def _alternatives(lines: tuple[str, ...]) -> str:
    return "|".join(re.escape(line).replace(r"\{", "{").replace(r"\}", "}") for line in lines)


def _form() -> re.Pattern[str]:
    text = f"(?:{_alternatives(OPENINGS)}) (?:{_alternatives(FINDS)}) (?:{_alternatives(ENDINGS)})"
    for slot, options in (
        ("trait", TRAITS), ("animal", ANIMALS), ("place", PLACES), ("thing", THINGS), ("friend", ANIMALS),
    ):  # fmt: skip
        count = iter(range(text.count("{" + slot + "}")))
        text = re.sub(r"\{" + slot + r"\}", lambda _: f"(?P<{slot}{next(count)}>{'|'.join(options)})", text)  # noqa: B023
    return re.compile(text)


FORM = _form()


def check(example: Example, text: str) -> bool:
    """A well-formed story about the animals asked for, that speaks of one thing only."""
    match = FORM.fullmatch(text.strip())
    if match is None or example.prompt is None:
        return False
    found: dict[str, set[str]] = {}
    for slot, value in match.groupdict().items():
        if value is not None:
            found.setdefault(slot.rstrip("0123456789"), set()).add(value)
    asked = re.findall(r"\ba (\w+)", example.prompt.removeprefix("Tell a story about"))
    wanted = dict(zip(("animal", "friend"), asked, strict=False))
    return all(len(values) == 1 for values in found.values()) and all(
        found[slot] == {animal} for slot, animal in wanted.items()
    )


TASK = Task("stories", draw, check)
