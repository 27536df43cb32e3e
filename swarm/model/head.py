"""From dense logits to score rows: ban, guide, normalise, keep the best K.

Tokens are ordered by their logits as they are. Sums over the vocabulary are float64, so that rows do not depend on how
they are summed, and are made a few rows at a time, so that no copy of all rows is ever in memory.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swarm.mixture.rows import TOP_K, ScoreRows

CHUNK_ITEMS = 2**18
"""Logits that are worked on at once; their copies, 32 bytes for each, then fit a core's cache or nearly so."""


def guide(conditional: Tensor, unconditional: Tensor, scale: float) -> Tensor:
    """Classifier-free guidance, un + (scale + 1) * (cond - un), as in LLaDA's sampler (Nie et al., 2025)."""
    return unconditional + (scale + 1) * (conditional - unconditional)


def score_rows(
    logits: Tensor, positions: npt.NDArray[np.int32], mask_id: int, n_tokens: int, k: int = TOP_K
) -> ScoreRows:
    """logits: [P, V] on the CPU, at most float32; positions: int32 [P]; tokens from `n_tokens` on are padding rows.

    Banned tokens leave the vocabulary before it is normalised. Ties are ordered by ascending id.
    """
    n_tokens = min(n_tokens, logits.shape[1])
    k = min(k, n_tokens - (mask_id < n_tokens))
    count = len(logits)
    rows = ScoreRows(
        positions=positions.astype(np.int32),
        ids=np.empty((count, k), np.int32),
        log_probs=np.empty((count, k), np.float32),
        log_tail=np.empty(count, np.float32),
    )
    at_once = max(1, CHUNK_ITEMS // n_tokens)
    for start in range(0, count, at_once):
        some = slice(start, start + at_once)
        scores = logits[some, :n_tokens].to(torch.float32, copy=True).numpy()
        if mask_id < n_tokens:
            scores[:, mask_id] = -np.inf
        # Logits that are not finite give rows that are not: whoever asked for them refuses those.
        with np.errstate(all="ignore"):
            ids = _best(scores, k)
            rows.ids[some] = ids
            rows.log_probs[some], rows.log_tail[some] = _normalised(scores, ids)
    return rows


def _best(scores: npt.NDArray[np.float32], k: int) -> npt.NDArray[np.int64]:
    """Indices [P, k] of the largest scores, by (score desc, index asc).

    Score and index are packed in one integer that sorts so. No two are equal, so it does not matter that the fast ways
    to sort leave the order of ties open.
    """
    size = scores.shape[1]
    bits = (scores + 0.0).view(np.int32)  # -0.0 equals 0.0 but has other bits
    bits ^= (bits >> 31) & 0x7FFFFFFF
    keys = bits.astype(np.int64)
    keys <<= 32
    keys |= np.arange(size - 1, -1, -1)
    if k < size:
        keys.partition(size - k, axis=1)
    best = keys[:, size - k :]
    best.sort(axis=1)
    ids: npt.NDArray[np.int64] = size - 1 - (best[:, ::-1] & 0xFFFFFFFF)
    return ids


def _normalised(
    scores: npt.NDArray[np.float32], ids: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Log-probabilities [P, k] of `ids`, the best first, and the log mass [P] of all others."""
    best = np.take_along_axis(scores, ids, axis=1).astype(np.float64)
    peak = best[:, :1].copy()
    best -= peak
    weights = scores.astype(np.float64)
    weights -= peak
    np.exp(weights, out=weights)
    np.put_along_axis(weights, ids, 0.0, axis=1)
    rest = weights.sum(axis=1)
    total = np.log(np.exp(best).sum(axis=1) + rest)
    return best - total[:, None], np.log(rest) - total
