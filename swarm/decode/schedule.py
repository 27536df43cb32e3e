"""Which canvas positions are decoded together, and how many of them each step commits."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from swarm.decode.settings import DecodeSettings


@dataclass(frozen=True, slots=True)
class Block:
    """Canvas positions `start`..`stop - 1`, decoded in `steps` steps.

    Under a quota `quota[i]` tokens are committed in the i-th step; it has fewer steps when there are fewer masks.
    """

    start: int
    stop: int
    quota: tuple[int, ...]
    steps: int


def blocks(open_positions: npt.NDArray[np.int32], settings: DecodeSettings) -> tuple[Block, ...]:
    """Cut the canvas from its first to its last open position in blocks; those without an open position are left out.

    Steps are shared out evenly over blocks, and a block's masks evenly over its steps, the earlier ones taking what is
    left over, as in LLaDA's sampler (Nie et al., 2025).
    """
    if len(open_positions) == 0:
        return ()
    origin, end = int(open_positions[0]), int(open_positions[-1]) + 1
    length = settings.block_length or end - origin
    spans = []
    for start in range(origin, end, length):
        stop = min(start + length, end)
        masks = int(((open_positions >= start) & (open_positions < stop)).sum())
        if masks:
            spans.append((start, stop, masks))
    made = []
    for index, (start, stop, masks) in enumerate(spans):
        steps = masks if settings.steps is None else max(1, _share(settings.steps, len(spans), index))
        used = min(steps, masks)
        made.append(Block(start, stop, tuple(_share(masks, used, i) for i in range(used)), steps))
    return tuple(made)


def _share(total: int, among: int, index: int) -> int:
    return total // among + (index < total % among)
