"""Score rows: what a head says about the masked positions of a canvas. Every score source answers with them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

TOP_K = 256


@dataclass(frozen=True, slots=True, eq=False)
class ScoreRows:
    """P rows of the K most probable tokens, best first, ties by ascending id.

    positions: int32 [P], canvas positions, ascending.
    ids: int32 [P, K], token ids; never the mask id or an id beyond the tokenizer.
    log_probs: float32 [P, K], natural logarithms, normalised over the whole allowed vocabulary.
    log_tail: float32 [P], logarithm of the mass of all other tokens, -inf when there are none.
    """

    positions: npt.NDArray[np.int32]
    ids: npt.NDArray[np.int32]
    log_probs: npt.NDArray[np.float32]
    log_tail: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.positions)

    def split(self, counts: Sequence[int]) -> list["ScoreRows"]:
        """The first counts[0] rows, the next counts[1], and so on, as views."""
        ends = np.cumsum(counts)[:-1]
        columns = (np.split(column, ends) for column in (self.positions, self.ids, self.log_probs, self.log_tail))
        return [ScoreRows(*pieces) for pieces in zip(*columns, strict=True)]
