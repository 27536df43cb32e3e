"""When cached keys and values are made anew, and which positions each step computes between.

Prefix and dual caches as in Fast-dLLM (Wu et al., 2025): approximate for models that attend both ways, because what is
cached would have changed with every commit; exact for block-causal ones in prefix mode.
"""

import numpy as np
import numpy.typing as npt

from swarm.decode.events import Epoch
from swarm.decode.schedule import Block
from swarm.decode.settings import Cache


class Epochs:
    """A new epoch begins with each block, and within one after every `refresh` steps (None: never).

    `lead` positions before the block are computed with it: models whose logits are shifted read there.
    """

    def __init__(self, mode: Cache, refresh: int | None, lead: int = 0) -> None:
        self._mode = mode
        self._lead = lead
        self._refresh = refresh
        self._began: tuple[int, int] | None = None
        self._epoch: Epoch | None = None

    def at(
        self, block_index: int, block: Block, step_in_block: int, step: int, ids: npt.NDArray[np.int32]
    ) -> Epoch | None:
        """The epoch of `step`. ids: int32 [rows, length], the canvas rows before it."""
        if self._mode is Cache.NONE:
            return None
        stretch = (block_index, step_in_block // self._refresh if self._refresh else 0)
        if self._epoch is None or stretch != self._began:
            stop = block.stop if self._mode is Cache.DUAL else ids.shape[1]
            number = 0 if self._epoch is None else self._epoch.number + 1
            active = np.arange(max(0, block.start - self._lead), stop, dtype=np.int32)
            self._epoch, self._began = Epoch(number, step, ids.copy(), active), stretch
        return self._epoch
