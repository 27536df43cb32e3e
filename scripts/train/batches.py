"""Rows of token ids for one training step: one task a batch, one length a batch, nothing wasted on padding."""

from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from scripts.train.tasks import TASKS, Example
from scripts.train.tokenizer import ASSISTANT, BOS, EOS, FILL, MASK, USER

PAD_WEIGHT = 0.1
ANSWER_WIDTH = {"arithmetic": 4}


@dataclass(frozen=True, slots=True)
class Share:
    """`rows` a step and process; `lengths` are the canvas lengths drawn, with their probabilities."""

    rows: int
    lengths: tuple[tuple[int, float], ...]


SHARES = {
    "sudoku_template": Share(20, ((45, 1.0),)),
    "sudoku_text": Share(14, ((93, 0.7), (100, 0.3))),
    "arithmetic": Share(28, ((24, 0.5), (40, 0.25), (64, 0.25))),
    "strings": Share(20, ((28, 0.5), (40, 0.25), (64, 0.25))),
    "sorting": Share(14, ((26, 0.5), (40, 0.25), (64, 0.25))),
    "stories": Share(12, ((48, 0.6), (64, 0.4))),
}
# Strings and sorting are learnt early; what stories lack is to take the animals from the prompt.
LATE_STEP = 1300
LATE_ROWS = {"strings": 12, "sorting": 10, "stories": 24}
LATE_EMPHASIS = 6.0
# Emphasis also makes animals too likely where they do not belong; the last steps go without it.
FINAL_STEP = 2000


@dataclass(frozen=True, slots=True)
class Batch:
    """ids, targets: int64 [rows, length]; weights: float32 [rows, length], zero where nothing is to be predicted."""

    task: str
    ids: np.ndarray
    targets: np.ndarray
    weights: np.ndarray


class Batches:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._late = False
        self._emphasis = 1.0
        self.special = {name: tokenizer.token_to_id(name) for name in (BOS, EOS, MASK, USER, ASSISTANT)}

    def step(self, rng: np.random.Generator, step: int) -> list[Batch]:
        self._late = step >= LATE_STEP
        self._emphasis = LATE_EMPHASIS if LATE_STEP <= step < FINAL_STEP else 1.0
        return [self._batch(task, share, rng) for task, share in SHARES.items()]

    def _batch(self, name: str, share: Share, rng: np.random.Generator) -> Batch:
        options, weights = zip(*share.lengths, strict=True)
        length = int(rng.choice(options, p=weights))
        count = LATE_ROWS.get(name, share.rows) if self._late else share.rows
        rows = [self._row(name, length, rng) for _ in range(count)]
        ids, targets, row_weights = (np.stack(column) for column in zip(*rows, strict=True))
        return Batch(name, ids, targets, row_weights)

    def _row(self, name: str, length: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        example = TASKS[name].example(rng, held_out=False)
        target, open_weights = self._layout(example, length, ANSWER_WIDTH.get(name, 0))
        rate = 1.0 if rng.random() < 0.1 else rng.random()
        masked = (rng.random(length) < rate) & (open_weights > 0)
        if not masked.any():
            masked[rng.choice(np.flatnonzero(open_weights > 0))] = True
        ids = np.where(masked, self.special[MASK], target)
        return ids, target, np.where(masked, open_weights, 0).astype(np.float32)

    def _layout(self, example: Example, length: int, width: int) -> tuple[np.ndarray, np.ndarray]:
        head = [self.special[BOS]]
        if example.prompt is None:
            head += self.encode(example.prefix)
        else:
            head += [self.special[USER], *self.encode(example.prompt), self.special[ASSISTANT]]
        answer = self.encode(FILL * max(0, width - len(example.answer)) + example.answer)
        target = np.full(length, self.special[EOS], dtype=np.int64)
        end = len(head) + len(answer)
        if end > length:
            raise ValueError(f"{example} needs {end} positions, the batch has {length}")
        target[: len(head)], target[len(head) : end] = head, answer
        weights = np.full(length, PAD_WEIGHT, dtype=np.float32)
        weights[: len(head)] = 0
        weights[len(head) : end + 1] = 1
        if self._emphasis != 1:
            for word in example.emphasis:
                weights[(target == self.tokenizer.token_to_id(word)) & (weights > 0)] *= self._emphasis
        if example.given is not None:
            weights[len(head) : end][np.array(example.given)] = 0
        return target, weights

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids
