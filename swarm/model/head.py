"""From dense logits to score rows: ban, guide, normalise, keep the best K.

Logits stay in the weights' dtype; everything after them is float64, so that two replicas of a head agree on the order
of near-equal tokens whenever their logits agree.
"""

import numpy as np
import torch
from torch import Tensor

from swarm.mixture.rows import TOP_K, ScoreRows


def guide(conditional: Tensor, unconditional: Tensor, scale: float) -> Tensor:
    """Classifier-free guidance, un + (scale + 1) * (cond - un), as in LLaDA's sampler (Nie et al., 2025)."""
    return unconditional + (scale + 1) * (conditional - unconditional)


def score_rows(logits: Tensor, positions: np.ndarray, mask_id: int, n_tokens: int, k: int = TOP_K) -> ScoreRows:
    """logits: [P, V] in any float dtype; positions: int32 [P]; tokens from `n_tokens` on are padding rows.

    Banned tokens leave the vocabulary before it is normalised. Ties are ordered by ascending id.
    """
    allowed = logits[:, :n_tokens].to(torch.float64, copy=True)
    bans_mask = mask_id < n_tokens
    if bans_mask:
        allowed[:, mask_id] = -torch.inf
    log_probs = torch.log_softmax(allowed, dim=-1)
    k = min(k, n_tokens - bans_mask)
    ids = _best(log_probs, k)
    best = log_probs.gather(1, ids)
    rest = log_probs.scatter(1, ids, -torch.inf)
    return ScoreRows(
        positions=positions.astype(np.int32),
        ids=ids.to(torch.int32).numpy(),
        log_probs=best.float().numpy(),
        log_tail=torch.logsumexp(rest, dim=-1).float().numpy(),
    )


def _best(scores: Tensor, k: int) -> Tensor:
    """Indices [P, k] of the largest scores, by (score desc, index asc): torch.topk leaves the order of ties open."""
    threshold = scores.topk(k, dim=-1).values[:, -1:]
    tied = scores == threshold
    free = k - (scores > threshold).sum(-1, keepdim=True)
    chosen = (scores > threshold) | (tied & (tied.cumsum(-1) <= free))
    index = chosen.nonzero()[:, 1].view(len(scores), k)
    order = scores.gather(1, index).argsort(dim=-1, descending=True, stable=True)
    return index.gather(1, order)
