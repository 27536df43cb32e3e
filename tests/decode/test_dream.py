"""Dream's sampler against a plain reading of it, position by position, and the laws that its noise must obey."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.decode.choose import choose
from swarm.decode.commit import committed, step_share
from swarm.decode.decoder import Decoder
from swarm.decode.events import Stepped
from swarm.decode.noise import ORDER_STREAM, gumbel, uniform
from swarm.decode.schedule import Block
from swarm.decode.settings import Commit, DecodeSettings, Order
from swarm.mixture.rows import ScoreRows

MASK, EOS = 0, 1
ORDERS = (Order.MASKGIT_PLUS, Order.TOPK_MARGIN, Order.ENTROPY)
ALGORITHMS = ("origin", *ORDERS)


def scores(canvas: np.ndarray, n_tokens: int, salt: int) -> np.ndarray:
    """Log-probabilities [length, n_tokens] that depend on the whole canvas; the mask has none."""
    logits = 2.5 * np.random.default_rng([salt, *canvas.tolist()]).normal(size=(len(canvas), n_tokens))
    logits[:, MASK] = -np.inf
    return np.asarray(torch.log_softmax(torch.from_numpy(logits), -1).float().numpy())


def rows_of(log_probs: np.ndarray, positions: np.ndarray, k: int = 256) -> ScoreRows:
    dense = log_probs[positions][:, 1:]
    order = np.argsort(-dense, axis=1, kind="stable")
    best, rest = order[:, :k], order[:, k:]
    tail = np.exp(np.take_along_axis(dense, rest, 1).astype(np.float64)).sum(1)
    with np.errstate(divide="ignore"):
        log_tail = np.log(tail).astype(np.float32)
    return ScoreRows(positions, (best + 1).astype(np.int32), np.take_along_axis(dense, best, 1), log_tail)


def one(seed: int, step: int, position: int) -> float:
    return float(uniform(seed, step, np.array([position], np.int32), np.zeros((1, 1), np.int32), ORDER_STREAM)[0, 0])


def reference_token(log_probs: np.ndarray, step: int, position: int, s: DecodeSettings) -> tuple[int, float]:
    """Token and confidence of one position: temperature, top-p, top-k, then a sample, then the measure."""
    logits = [float(v) / s.temperature if s.temperature > 0 else float(v) for v in log_probs]
    by_weight = sorted(range(len(logits)), key=lambda i: -logits[i])

    def softmax() -> list[float]:
        weights = [math.exp(v - max(logits)) for v in logits]
        return [w / sum(weights) for w in weights]

    if s.top_p < 1:
        probabilities, mass = softmax(), 0.0
        for token in by_weight:
            if mass > s.top_p:
                logits[token] = -math.inf
            mass += probabilities[token]
    if s.top_k > 0:
        least = logits[by_weight[min(s.top_k, len(logits)) - 1]]
        logits = [v if v >= least else -math.inf for v in logits]
    probabilities = softmax()
    token = by_weight[0]
    if s.temperature > 0:
        at, ids = np.array([position], np.int32), np.arange(len(logits), dtype=np.int32)[None]
        noise = gumbel(s.seed, step, at, ids)[0]
        token = max(range(len(logits)), key=lambda i: logits[i] + noise[i])
    if s.order is Order.TOPK_MARGIN:
        first, second = sorted(probabilities)[-1:-3:-1]
        return token, first - second
    if s.order is Order.ENTROPY:
        return token, sum(p * math.log(p) for p in probabilities if p > 0)
    return token, probabilities[token]


def reference(canvas: np.ndarray, s: DecodeSettings, n_tokens: int, salt: int) -> tuple[list[int], dict[int, int]]:
    """The final canvas, and how many tokens each step fixed."""
    x, counts = canvas.copy(), {}
    steps = s.steps or int((canvas == MASK).sum())
    times = torch.linspace(1, 1e-3, steps + 1)
    for i in range(steps):
        masked = [int(p) for p in np.flatnonzero(x == MASK)]
        log_probs, last = scores(x, n_tokens, salt), i == steps - 1
        found = {p: reference_token(log_probs[p], i, p, s) for p in masked}
        share = 1 - times[i + 1] / times[i]
        if s.commit is Commit.ORIGIN:
            chosen = [p for p in masked if last or one(s.seed, i, p) < float(share)]
        else:
            count = len(masked) if last else int(len(masked) * share)
            key = {p: found[p][1] for p in masked}
            if s.alg_temp > 0:
                key = {p: v / s.alg_temp - math.log(-math.log(one(s.seed, i, p))) for p, v in key.items()}
            chosen = sorted(masked, key=lambda p: (-key[p], p))[:count]
        for p in chosen:
            x[p] = found[p][0]
        if chosen:
            counts[i] = len(chosen)
    return x.tolist(), counts


def decoded(canvas: np.ndarray, s: DecodeSettings, n_tokens: int, salt: int) -> tuple[list[int], dict[int, int]]:
    decoder, counts = Decoder(canvas, s, MASK, EOS), {}
    while work := decoder.wanted():
        rows = rows_of(scores(work[0].ids[0], n_tokens, salt), work[0].positions)
        for event in decoder.apply(work[0].step, rows):
            if isinstance(event, Stepped):
                counts[event.step] = len(event.committed)
    return decoder.canvas.tolist(), counts


def dream(algorithm: str, **rest: object) -> DecodeSettings:
    if algorithm == "origin":
        return DecodeSettings(commit=Commit.ORIGIN, order=Order.MASKGIT_PLUS, stop_at_eos=False, **rest)  # type: ignore[arg-type]
    return DecodeSettings(commit=Commit.TIMESTEPS, order=Order(algorithm), stop_at_eos=False, **rest)  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(
    algorithm=st.sampled_from(ALGORITHMS),
    seed=st.integers(0, 2**64 - 1),
    salt=st.integers(0, 9),
    temperature=st.sampled_from([0.0, 0.2, 1.0]),
    top_p=st.sampled_from([1.0, 0.95, 0.4]),
    top_k=st.sampled_from([0, 1, 3, 500]),
    alg_temp=st.sampled_from([0.0, 0.3]),
    steps=st.none() | st.integers(1, 30),
)
def test_token_for_token_and_count_for_count(algorithm: str, salt: int, **rest: object) -> None:
    canvas = np.array([5, 6, *[MASK] * 6, 9, *[MASK] * 5], np.int32)
    s = dream(algorithm, **rest)
    assert decoded(canvas, s, 40, salt) == reference(canvas, s, 40, salt)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_published_defaults_agree_beyond_the_256_best(algorithm: str) -> None:
    canvas = np.array([5, *[MASK] * 12], np.int32)
    s = dream(algorithm, temperature=0.2, top_p=0.95, steps=8, seed=4)
    assert decoded(canvas, s, 700, 0) == reference(canvas, s, 700, 0)


@pytest.mark.parametrize("order", ORDERS)
def test_confidences_count_the_tail(order: Order) -> None:
    """At temperature 0 the mass of the tail is exact, so probability and margin are those of the full vocabulary."""
    log_probs = scores(np.array([MASK], np.int32), 700, 3) * 0.2
    log_probs = np.asarray(torch.log_softmax(torch.from_numpy(log_probs), -1).numpy())
    rows = rows_of(log_probs, np.array([0], np.int32))
    assert np.exp(rows.log_tail[0]) > 0.2
    choice = choose(rows, dream(order), 0, EOS)
    best = np.sort(np.exp(log_probs[0].astype(np.float64)))[::-1]
    tail = best[256:].sum()
    want = {
        Order.MASKGIT_PLUS: best[0],
        Order.TOPK_MARGIN: best[0] - best[1],
        Order.ENTROPY: (best[:256] * np.log(best[:256])).sum() + tail * np.log(tail),
    }
    assert choice.rank[0] == pytest.approx(want[order], abs=1e-5)
    assert choice.confidence[0] == pytest.approx(best[0], abs=1e-5)


def test_steps_that_fix_nothing_run_no_pass() -> None:
    canvas = np.full(3, MASK, np.int32)
    final, counts = decoded(canvas, dream(Order.ENTROPY, steps=50), 40, 0)
    assert MASK not in final
    assert sum(counts.values()) == 3
    assert len(counts) <= 3


def test_shares_follow_the_published_times() -> None:
    for steps in (1, 2, 7, 64, 512):
        times = torch.linspace(1, 1e-3, steps + 1, dtype=torch.float64)
        want = [float(1 - times[i + 1] / times[i]) for i in range(steps - 1)] + [1.0]
        np.testing.assert_allclose([step_share(steps, i) for i in range(steps)], want, rtol=1e-3, atol=1e-6)


def test_alg_temp_draws_positions_by_their_rank() -> None:
    """The first position fixed is p with probability softmax(rank / alg_temp): 3,000 draws, five standard errors."""
    rank, positions = np.array([-0.1, -0.5, -0.9]), np.arange(3, dtype=np.int32)
    block = Block(0, 3, (1, 1, 1), 3)
    n, first = 3000, Counter[int]()
    for seed in range(n):
        s = DecodeSettings(seed=seed, order=Order.ENTROPY, alg_temp=0.4)
        first[int(np.flatnonzero(committed(s, block, 0, 0, rank, positions))[0])] += 1
    want = np.exp(rank / 0.4) / np.exp(rank / 0.4).sum()
    share = np.array([first[i] / n for i in range(3)])
    assert (np.abs(share - want) < 5 * np.sqrt(want * (1 - want) / n)).all()


def test_origin_flips_each_position_on_its_own() -> None:
    positions, block = np.arange(2000, dtype=np.int32), Block(0, 2000, (2000,), 4)
    s = DecodeSettings(seed=8, commit=Commit.ORIGIN)
    flips = committed(s, block, 1, 1, np.zeros(2000), positions)
    p = float(step_share(4, 1))
    assert abs(flips.mean() - p) < 5 * math.sqrt(p * (1 - p) / 2000)
    few = committed(s, block, 1, 1, np.zeros(3), positions[[7, 900, 1999]])
    assert few.tolist() == flips[[7, 900, 1999]].tolist(), "a flip is addressed by its position"
    assert committed(s, block, 3, 3, np.zeros(2000), positions).all()


@pytest.mark.parametrize("order", [*ORDERS, Order.LOW_CONFIDENCE])
def test_filters_leave_out_improbable_tokens(order: Order) -> None:
    positions = np.arange(400, dtype=np.int32)
    p = np.tile(np.log(np.array([1, 0.4, 0.3, 0.2, 0.1], np.float32)), (400, 1))
    rows = rows_of(p, positions)
    drawn = {}
    for name, extra in {"all": {}, "p": {"top_p": 0.5}, "k": {"top_k": 3}, "one": {"top_k": 1}}.items():
        s = DecodeSettings(seed=1, temperature=1.0, order=order, **extra)  # type: ignore[arg-type]
        drawn[name] = set(choose(rows, s, 0, EOS).ids.tolist())
    assert drawn == {"all": {1, 2, 3, 4}, "p": {1, 2}, "k": {1, 2, 3}, "one": {1}}
