"""The token that each scored position would take, and how the positions rank. Pure functions of score rows.

LLaDA's orders rank by the model's own probability of the chosen token (Nie et al., 2025), Dream's by the distribution
the token was drawn from, after temperature, top-p and top-k (Ye et al., 2025).

Score rows hold the best 256 tokens and the mass of all others, the tail. The tail counts as one more outcome, after
all tokens: it takes part in normalisation and entropy, a filter may cut it, and nothing ever chooses it.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from swarm.decode.noise import ORDER_STREAM, gumbel, uniform
from swarm.decode.settings import DecodeSettings, Order
from swarm.mixture.rows import ScoreRows

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Per position, [P]: token id, its probability, and the rank by which positions are fixed, the highest first."""

    ids: npt.NDArray[np.int32]
    confidence: Floats
    rank: Floats


def choose(rows: ScoreRows, settings: DecodeSettings, step: int, eos_id: int) -> Choice:
    """log p + T * Gumbel has its maximum at a sample of softmax(logits / T); T = 0 takes the most probable token."""
    log_probs, log_tail = rows.log_probs.astype(np.float64), rows.log_tail.astype(np.float64)
    if settings.suppress_eos:
        log_probs, log_tail = _without(log_probs, log_tail, rows.ids == eos_id)
    tempered = settings.order in (Order.MASKGIT_PLUS, Order.TOPK_MARGIN, Order.ENTROPY)
    filters = settings.temperature > 0 and (settings.top_p < 1 or settings.top_k > 0)
    scores = log_probs
    if tempered or filters:
        weights = _filtered(log_probs, log_tail, settings)
        scores = np.where(np.isneginf(weights[:, :-1]), -np.inf, log_probs)
    if settings.temperature > 0:
        scores = scores + settings.temperature * gumbel(settings.seed, step, rows.positions, rows.ids)
    best = scores.argmax(axis=1)
    row = np.arange(len(rows))
    ids = rows.ids[row, best]
    if tempered:
        probabilities = _softmax(weights)
        confidence = probabilities[row, best]
        rank = _dream_rank(settings.order, probabilities, confidence)
    else:
        confidence = rank = np.exp(log_probs[row, best])
    if settings.order is Order.RANDOM:
        none = np.zeros((len(rows), 1), np.int32)
        rank = uniform(settings.seed, step, rows.positions, none, ORDER_STREAM)[:, 0]
    if settings.suppress_eos_confidence:
        rank = np.where(ids == eos_id, -np.inf, rank)
    return Choice(ids, confidence, rank)


def _dream_rank(order: Order, probabilities: Floats, confidence: Floats) -> Floats:
    if order is Order.TOPK_MARGIN:
        tokens = np.sort(probabilities[:, :-1], axis=1)
        margin: Floats = tokens[:, -1] - (tokens[:, -2] if tokens.shape[1] > 1 else 0.0)
        return margin
    if order is Order.ENTROPY:
        logs = np.log(probabilities, where=probabilities > 0, out=np.zeros_like(probabilities))
        negative_entropy: Floats = (probabilities * logs).sum(axis=1)
        return negative_entropy
    return confidence


def _filtered(log_probs: Floats, log_tail: Floats, settings: DecodeSettings) -> Floats:
    """Log weights [P, K + 1], the tail last, after temperature, top-p, then top-k; -inf where an outcome is cut.

    Top-p keeps the most probable outcomes up to the first at which their mass exceeds p, at least one. Tokens equal to
    the k-th stay.
    """
    weights = np.concatenate((log_probs, log_tail[:, None]), axis=1)
    if settings.temperature > 0:
        weights = weights / settings.temperature
    if settings.top_p < 1:
        before = np.cumsum(_softmax(weights), axis=1)[:, :-1]
        weights[:, 1:][before > settings.top_p] = -np.inf
    k = weights.shape[1] - 1
    if 0 < settings.top_k <= k:
        least = np.sort(weights[:, :-1], axis=1)[:, k - settings.top_k, None]
        weights[weights < least] = -np.inf
        weights[:, -1] = -np.inf
    return weights


def _softmax(weights: Floats) -> Floats:
    powers: Floats = np.exp(weights - weights.max(axis=1, keepdims=True))
    total: Floats = powers.sum(axis=1, keepdims=True)
    return powers / total


def _without(log_probs: Floats, log_tail: Floats, banned: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Remove tokens from normalised rows and normalise again."""
    mass = np.where(banned, np.exp(log_probs), 0.0).sum(axis=1, keepdims=True)
    rest = np.log1p(-np.minimum(mass, 1 - 2.0**-53))
    return np.where(banned, -np.inf, log_probs - rest), log_tail - rest[:, 0]
