"""When cached keys and values are made anew, and which positions each step computes between.

Prefix and dual caches as in Fast-dLLM (Wu et al., 2025): approximate for models that attend both ways, because what is
cached would have changed with every commit; exact for block-causal ones in prefix mode.
"""

from enum import StrEnum

import numpy as np
import numpy.typing as npt

from swarm.decode.events import Epoch
from swarm.decode.schedule import Block


class CacheMode(StrEnum):
    """NONE computes the whole canvas each step. PREFIX computes from the block's start on, DUAL the block alone."""

    NONE = "none"
    PREFIX = "prefix"
    DUAL = "dual"


class Epochs:
    """A new epoch begins with each block, and within one after every `refresh` steps (None: never)."""

    def __init__(self, mode: CacheMode, refresh: int | None) -> None:
        self._mode = mode
        self._refresh = refresh
        self._began: tuple[int, int] | None = None
        self._epoch: Epoch | None = None

    def at(
        self, block_index: int, block: Block, step_in_block: int, step: int, ids: npt.NDArray[np.int32]
    ) -> Epoch | None:
        """The epoch of `step`. ids: int32 [rows, length], the canvas rows before it."""
        if self._mode is CacheMode.NONE:
            return None
        stretch = (block_index, step_in_block // self._refresh if self._refresh else 0)
        if self._epoch is None or stretch != self._began:
            stop = block.stop if self._mode is CacheMode.DUAL else ids.shape[1]
            number = 0 if self._epoch is None else self._epoch.number + 1
            active = np.arange(block.start, stop, dtype=np.int32)
            self._epoch, self._began = Epoch(number, step, ids.copy(), active), stretch
        return self._epoch
