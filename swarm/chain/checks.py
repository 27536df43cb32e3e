"""Checks on what heads answer, made before anything is used. A failed check is a BadAnswer of that peer.

What spans push to each other is checked by the one that receives it.
"""

import numpy as np

from swarm.decode.events import Work
from swarm.errors import BadAnswer
from swarm.mixture.rows import TOP_K, ScoreRows
from swarm.wire.tensors import Tensor

NORMALISATION_ERROR = 1e-3


def rows_from(tensors: dict[str, Tensor], work: Work, mask_id: int, n_tokens: int) -> ScoreRows:
    """The score rows of a head's answer, if they are what a head can say of `work`."""
    count = len(work.positions)
    k = min(TOP_K, n_tokens - (mask_id < n_tokens))
    want = {"ids": ("integers", (count, k)), "log_probs": ("float32", (count, k)), "log_tail": ("float32", (count,))}
    found = {name: ("integers" if t.is_integer else t.dtype, t.shape) for name, t in tensors.items()}
    if found != want:
        raise BadAnswer(f"wanted score rows {want}, got {found}")
    ids, log_probs, log_tail = tensors["ids"].as_int32(), tensors["log_probs"].array(), tensors["log_tail"].array()
    if not np.isfinite(log_probs).all() or np.isnan(log_tail).any():
        raise BadAnswer("score rows are not finite")
    if ids.min() < 0 or ids.max() >= n_tokens or (ids == mask_id).any():
        raise BadAnswer("score rows name a token that does not exist or the mask")
    if (log_probs[:, 1:] > log_probs[:, :-1]).any():
        raise BadAnswer("score rows are not in order")
    ordered = np.sort(ids, axis=1)
    if (ordered[:, 1:] == ordered[:, :-1]).any():
        raise BadAnswer("score rows name a token twice")
    with np.errstate(over="ignore"):
        mass = np.exp(log_probs).sum(axis=1) + np.exp(log_tail)
    if (np.abs(mass - 1) > NORMALISATION_ERROR).any():
        raise BadAnswer("score rows are not normalised")
    return ScoreRows(work.positions, ids, log_probs, log_tail)
