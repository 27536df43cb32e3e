"""Score the embedded model on held-out examples, by the product's own decoder.

    python -m scripts.train.evaluate --card                 the scores of the model card
    python -m scripts.train.evaluate --dev --threshold .98  try a setting on examples apart from those

Development examples and scored examples come from different seeds of the held-out tenth.
"""

import argparse
import asyncio
import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from glossd.canvas import CanvasText
from glossd.events import Done
from glossd.models import Model, open_model
from glossd.resolve import resolve
from glossd.tasks import Message, Overrides
from glossd.tasks import Task as Ask
from scripts.train.tasks import TASKS, Example, sudoku
from swarm.chain.drive import drive
from swarm.decode.decoder import Decoder
from swarm.decode.events import Work
from swarm.ids import Span
from swarm.mixture.rows import ScoreRows
from swarm.model.forward import HeadWork, run_span
from swarm.model.weights import load_span

DEV_SEED, TEST_SEED = 1, 2
SUDOKU_KINDS = {"16 givens": 16, "minimal": sudoku.MINIMAL}

Exercise = tuple[str, Example]
Body = dict[str, object]


def exercises(task: str, seed: int, count: int) -> list[Exercise]:
    """`count` held-out examples by name of the exercise; Sudoku comes at 16 givens and minimal."""
    rng = np.random.default_rng([seed, sum(map(ord, task))])
    chosen = TASKS[task]
    if isinstance(chosen, sudoku.SudokuTask):
        return [
            (f"{task}, {kind}", chosen.example(rng, held_out=True, givens=givens))
            for kind, givens in SUDOKU_KINDS.items()
            for _ in range(count)
        ]
    return [(task, chosen.example(rng, held_out=True)) for _ in range(count)]


def body_of(example: Example) -> Body:
    """The request that a client would send for it."""
    if example.prompt is not None:
        return {"chat": example.prompt}
    marked = "".join(ch if shown else "\0" for ch, shown in zip(example.answer, example.given or (), strict=True))
    gaps = re.sub("\0+", lambda run: f"{{{{mask:{len(run[0])}}}}}", marked)
    return {"template": example.prefix + gaps}


def prompts_of_all_tasks(seed: int, per_task: int) -> list[tuple[Exercise, Body]]:
    found = [exercise for task in TASKS for exercise in exercises(task, seed, per_task)]
    return [(exercise, body_of(exercise[1])) for exercise in found]


def solved(asked: Sequence[tuple[Exercise, Body]], done: Sequence[Done]) -> dict[str, float]:
    """Share of right answers by exercise."""
    right: dict[str, list[bool]] = {}
    for ((name, example), _), answer in zip(asked, done, strict=True):
        right.setdefault(name, []).append(check(name, example, answer.text))
    return {name: sum(values) / len(values) for name, values in right.items()}


def check(name: str, example: Example, text: str) -> bool:
    return TASKS[name.partition(",")[0]].check(example, text.removeprefix(example.prefix))


class Lone:
    """A score source over the whole model in this process."""

    def __init__(self, model: Model) -> None:
        config = model.checkpoint.config
        self._module = load_span(model.checkpoint, Span(0, config.n_parts), torch.float32)
        self._n_tokens = model.n_tokens
        self.passes = 0

    async def score(self, work: Work) -> ScoreRows:
        self.passes += 1
        head = HeadWork(work.positions, work.cfg_scale, self._n_tokens)
        rows = run_span(self._module, self._module.span, torch.from_numpy(work.ids).long(), head)
        if not isinstance(rows, ScoreRows):
            raise TypeError("a span that ends in the head answers with score rows")
        return rows


async def answer(model: Model, source: Lone, body: Body, overrides: Overrides) -> str:
    chat = body.get("chat")
    ask = Ask(
        messages=(Message("user", str(chat)),) if chat is not None else (),
        template=None if chat is not None else str(body["template"]),
        overrides=overrides,
    )
    config, resolved = model.checkpoint.config, resolve(ask, model)
    decoder = Decoder(np.array(resolved.canvas, np.int32), resolved.settings, config.mask_id, config.eos_id)
    text = CanvasText(resolved, model.tokenizer.decode, config.mask_id, config.eos_id)
    async for _ in drive(decoder, source, lambda: False):
        pass
    return text.grown(decoder.canvas, finished=True)


def wilson(right: int, count: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson, 1927)."""
    z, share = 1.96, right / count
    centre = share + z * z / (2 * count)
    spread = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    return (centre - spread) / scale, (centre + spread) / scale


def score(model: Model, tasks: Sequence[str], seed: int, count: int, overrides: Overrides) -> list[str]:
    """One line of the card's table for each exercise."""
    source, lines = Lone(model), []
    for task in tasks:
        right: dict[str, int] = {}
        passes: dict[str, int] = {}
        for name, example in exercises(task, seed, count):
            source.passes = 0
            text = asyncio.run(answer(model, source, body_of(example), overrides))
            right[name] = right.get(name, 0) + check(name, example, text)
            passes[name] = passes.get(name, 0) + source.passes
        for name, found in right.items():
            low, high = wilson(found, count)
            lines.append(f"| {name} | {found / count:.1%} | {low:.1%} to {high:.1%} | {passes[name] / count:.1f} |")
            print(lines[-1], flush=True)
    return lines


def fill_card(card: Path, lines: Sequence[str], count: int) -> None:
    """Replace the scores between the card's marks."""
    head = f"{count} held-out examples each.\n\n| task | exact | 95 % interval | passes |\n|---|---|---|---|\n"
    before, _, rest = card.read_text().partition("<!-- scores -->")
    _, _, after = rest.partition("<!-- /scores -->")
    table = head + "\n".join(lines)
    card.write_text(f"{before}<!-- scores -->\n{table}\n<!-- /scores -->{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gloss-tiny")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--dev", action="store_true", help="examples for choosing settings, not for the card")
    parser.add_argument("--card", action="store_true", help="write the scores into the model's card")
    parser.add_argument("--task", action="append", choices=list(TASKS))
    parser.add_argument("--threshold", type=float)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = open_model(args.model)
    tasks = args.task or list(TASKS)
    lines = score(model, tasks, DEV_SEED if args.dev else TEST_SEED, args.count, Overrides(threshold=args.threshold))
    if args.card:
        fill_card(model.checkpoint.folder / "README.md", lines, args.count)


if __name__ == "__main__":
    main()
