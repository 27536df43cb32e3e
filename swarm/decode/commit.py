"""Which positions a step fixes, given how they rank. Pure; ranked by (rank desc, position asc).

quota      an even share of the block's masks, the earlier steps taking what is left over (LLaDA)
threshold  all whose confidence reaches the threshold, and always the best one (Fast-dLLM)
factor     the r-th best if its confidence reaches 1 - factor / (r + 1), and always the best one (Fast-dLLM)
timesteps  the share 1 - s/t of what is still masked, rounded down, at times 1 to 0.001; all in the last step (Dream)
origin     each masked position on its own with probability 1 - s/t; all in the last step (Dream)
"""

import numpy as np
import numpy.typing as npt

from swarm.decode.noise import ORDER_STREAM, gumbel, uniform
from swarm.decode.schedule import Block
from swarm.decode.settings import Commit, DecodeSettings, Order

LAST_TIME = np.float32(1e-3)


def committed(
    settings: DecodeSettings,
    block: Block,
    step_in_block: int,
    step: int,
    rank: npt.NDArray[np.float64],
    positions: npt.NDArray[np.int32],
) -> npt.NDArray[np.bool_]:
    """bool [P]. `step` counts over the whole request and addresses the noise; `step_in_block` starts at 0."""
    if settings.commit is Commit.ORIGIN:
        return _flipped(settings, block, step_in_block, step, positions)
    if settings.compares_confidences:
        count = max(1, _confident(settings, rank))
    else:
        count = _share(settings, block, step_in_block, len(positions))
        if settings.alg_temp > 0 and settings.order is not Order.RANDOM:
            # The best of rank / T + Gumbel are draws without replacement by softmax(rank / T).
            rank = rank / settings.alg_temp + _gumbel(settings.seed, step, positions)
    chosen = np.zeros(len(positions), dtype=np.bool_)
    chosen[np.argsort(-rank, kind="stable")[:count]] = True
    return chosen


def idle(
    settings: DecodeSettings, block: Block, step_in_block: int, step: int, positions: npt.NDArray[np.int32]
) -> bool:
    """Whether the step fixes nothing, whatever the scores say: its pass need not be run."""
    if settings.commit is Commit.ORIGIN:
        return not _flipped(settings, block, step_in_block, step, positions).any()
    if settings.commit is Commit.TIMESTEPS:
        return _share(settings, block, step_in_block, len(positions)) == 0
    return False


def step_share(steps: int, index: int) -> np.float32:
    """1 - s/t of the step from time t to time s; 1 in the last step.

    In float32 as in the published sampler, because a share of masks is rounded down: the last bit can matter.
    """
    if index >= steps - 1:
        return np.float32(1)
    return np.float32(1) - _time(steps, index + 1) / _time(steps, index)


def _time(steps: int, index: int) -> np.float32:
    width = (LAST_TIME - np.float32(1)) / np.float32(steps)
    if index < (steps + 1) // 2:
        return np.float32(1) + width * np.float32(index)
    return LAST_TIME - width * np.float32(steps - index)


def _share(settings: DecodeSettings, block: Block, step_in_block: int, masks: int) -> int:
    if settings.commit is Commit.QUOTA:
        return block.quota[step_in_block]
    return int(np.float32(masks) * step_share(block.steps, step_in_block))


def _confident(settings: DecodeSettings, rank: npt.NDArray[np.float64]) -> int:
    if settings.commit is Commit.THRESHOLD:
        return int((rank >= settings.threshold).sum())
    best_first = -np.sort(-rank)
    wanted = 1 - settings.factor / (np.arange(1, len(rank) + 1) + 1)
    return int((best_first >= wanted).sum())


def _flipped(
    settings: DecodeSettings, block: Block, step_in_block: int, step: int, positions: npt.NDArray[np.int32]
) -> npt.NDArray[np.bool_]:
    draws = uniform(settings.seed, step, positions, np.zeros((len(positions), 1), np.int32), ORDER_STREAM)[:, 0]
    flips: npt.NDArray[np.bool_] = draws < float(step_share(block.steps, step_in_block))
    return flips


def _gumbel(seed: int, step: int, positions: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    return gumbel(seed, step, positions, np.zeros((len(positions), 1), np.int32), ORDER_STREAM)[:, 0]
