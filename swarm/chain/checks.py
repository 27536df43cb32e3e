"""Checks on what peers answer, made before anything is used. A failed check is a BadAnswer of that peer."""

import numpy as np

from swarm.decode.events import Work
from swarm.errors import BadAnswer
from swarm.mixture.rows import TOP_K, ScoreRows
from swarm.wire.messages import PassAnswer, PassRequest
from swarm.wire.tensors import Tensor, is_finite

NORMALISATION_ERROR = 1e-3


def check_key(request: PassRequest, answer: PassAnswer) -> None:
    if (answer.request, answer.step, answer.attempt) != (request.request, request.step, request.attempt):
        raise BadAnswer("the answer belongs to another pass")


def hidden_from(tensors: dict[str, Tensor], shape: tuple[int, int, int], dtype: str) -> Tensor:
    """The hidden states of an answer, if they have the wanted shape [rows, length, hidden] and are finite."""
    hidden = tensors.get("hidden")
    if len(tensors) != 1 or hidden is None or hidden.dtype != dtype or tuple(hidden.shape) != shape:
        found = {name: (t.dtype, list(t.shape)) for name, t in tensors.items()}
        raise BadAnswer(f"wanted hidden states {list(shape)} of {dtype}, got {found}")
    if not is_finite(hidden):
        raise BadAnswer("hidden states are not finite")
    return hidden


def rows_from(tensors: dict[str, Tensor], work: Work, mask_id: int, n_tokens: int) -> ScoreRows:
    """The score rows of a head's answer, if they are what a head can say of `work`."""
    count = len(work.positions)
    k = min(TOP_K, n_tokens - (mask_id < n_tokens))
    want = {"ids": ("int32", (count, k)), "log_probs": ("float32", (count, k)), "log_tail": ("float32", (count,))}
    found = {name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()}
    if found != want:
        raise BadAnswer(f"wanted score rows {want}, got {found}")
    ids, log_probs, log_tail = (tensors[name].array() for name in ("ids", "log_probs", "log_tail"))
    if not np.isfinite(log_probs).all() or np.isnan(log_tail).any():
        raise BadAnswer("score rows are not finite")
    if ids.min() < 0 or ids.max() >= n_tokens or (ids == mask_id).any():
        raise BadAnswer("score rows name a token that does not exist or the mask")
    if (np.diff(log_probs, axis=1) > 0).any():
        raise BadAnswer("score rows are not in order")
    ordered = np.sort(ids, axis=1)
    if (ordered[:, 1:] == ordered[:, :-1]).any():
        raise BadAnswer("score rows name a token twice")
    with np.errstate(over="ignore"):
        mass = np.exp(log_probs.astype(np.float64)).sum(axis=1) + np.exp(log_tail.astype(np.float64))
    if (np.abs(mass - 1) > NORMALISATION_ERROR).any():
        raise BadAnswer("score rows are not normalised")
    return ScoreRows(work.positions, ids, log_probs, log_tail)
