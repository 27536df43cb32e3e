"""What the decoder wants scored and what it reports. Frozen data, shared by drivers, requests and the API."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class Epoch:
    """A stretch of steps that share cached keys and values.

    snapshot: int32 [rows, length], the canvas rows at its first step, from which the cache is primed; it makes every
    later step of the epoch repeatable anywhere. active: int32 [A], the positions that each later step computes anew.
    """

    number: int
    first_step: int
    snapshot: npt.NDArray[np.int32]
    active: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """One forward pass to run.

    ids: int32 [rows, length]; one row, or two under classifier-free guidance (conditional, then unconditional).
    positions: int32 [P], the masked positions to score, ascending.
    epoch: the cache to use, None to compute every position.
    displaced: the cache also holds what other passes of the epoch made, in an order that cannot be repeated; when the
    pass fails it is not run again.
    The answer is one set of score rows; with two rows the head composes them by `cfg_scale`.
    """

    step: int
    ids: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    cfg_scale: float
    epoch: Epoch | None = None
    displaced: bool = False


class Token(NamedTuple):
    position: int
    id: int
    confidence: float


@dataclass(frozen=True, slots=True)
class Stepped:
    """One denoising step done. `committed` is fixed for good; `guessed` is the best token of what stays masked.

    `masks_left` counts the masked positions of the whole canvas after the step.
    """

    step: int
    block: int
    committed: tuple[Token, ...]
    guessed: tuple[Token, ...]
    masks_left: int


@dataclass(frozen=True, slots=True)
class Finished:
    """`reason` is "stop" (an end token closed the answer) or "length" (every position is committed)."""

    reason: str
    steps: int


Event = Stepped | Finished
