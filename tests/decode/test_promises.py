"""What the decoder promises whatever the scores are."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.decode.commit import committed
from swarm.decode.decoder import Decoder
from swarm.decode.events import Finished, Stepped
from swarm.decode.noise import gumbel, uniform
from swarm.decode.schedule import blocks
from swarm.decode.settings import Commit, DecodeSettings, Order
from swarm.errors import BadAnswer, BadRequest
from swarm.mixture.rows import ScoreRows

MASK, EOS, VOCAB = 0, 1, 12
UNFIT = list(itertools.product((Commit.THRESHOLD, Commit.FACTOR), (Order.RANDOM, Order.ENTROPY)))


def rows_for(canvas: np.ndarray, positions: np.ndarray, salt: int) -> ScoreRows:
    """Scores that depend on the whole canvas, as a model's do."""
    rng = np.random.default_rng([salt, *canvas.tolist()])
    logits = rng.normal(size=(len(canvas), VOCAB))[positions][:, 1:]
    log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    order = np.argsort(-log_probs, axis=1, kind="stable")
    return ScoreRows(
        positions,
        (order + 1).astype(np.int32),
        np.take_along_axis(log_probs, order, 1).astype(np.float32),
        np.full(len(positions), -np.inf, np.float32),
    )


def settings_strategy() -> st.SearchStrategy[DecodeSettings]:
    pairs = itertools.product(Commit, Order)
    commits = st.sampled_from([pair for pair in pairs if pair not in UNFIT])
    return st.builds(
        lambda commit, **rest: DecodeSettings(commit=commit[0], order=commit[1], **rest),
        commits,
        seed=st.integers(0, 2**64 - 1),
        temperature=st.sampled_from([0.0, 0.8, 1.0, 3.0]),
        block_length=st.none() | st.integers(1, 9),
        steps=st.none() | st.integers(1, 20),
        threshold=st.sampled_from([0.1, 0.3, 0.9]),
        cfg_scale=st.sampled_from([0.0, 1.5]),
        stop_at_eos=st.booleans(),
        suppress_eos=st.booleans(),
        suppress_eos_confidence=st.booleans(),
        factor=st.sampled_from([0.5, 1.0, 4.0]),
        top_p=st.sampled_from([1.0, 0.9, 0.2]),
        top_k=st.sampled_from([0, 1, 4]),
        alg_temp=st.sampled_from([0.0, 0.5]),
    )


def canvases() -> st.SearchStrategy[np.ndarray]:
    cells = st.lists(st.sampled_from([MASK, MASK, 3, 5, 7]), min_size=1, max_size=24)
    return cells.filter(lambda c: MASK in c).map(lambda c: np.array(c, dtype=np.int32))


def run(canvas: np.ndarray, settings: DecodeSettings, salt: int) -> tuple[Decoder, list[Stepped | Finished]]:
    decoder = Decoder(canvas, settings, MASK, EOS)
    events: list[Stepped | Finished] = []
    while work := decoder.wanted():
        before = decoder.canvas.copy()
        new = decoder.apply(work[0].step, rows_for(work[0].ids[0], work[0].positions, salt))
        fixed = before != MASK
        assert (decoder.canvas[fixed] == before[fixed]).all(), "a committed token changed"
        stepped = new[0]
        assert isinstance(stepped, Stepped)
        assert stepped.committed, "a step committed nothing"
        assert stepped.masks_left == int((before == MASK).sum()) - len(stepped.committed)
        if settings.suppress_eos_confidence and settings.commit is not Commit.ORIGIN:
            early = any(token.id == EOS for token in stepped.committed)
            assert not early or all(token.id == EOS for token in stepped.guessed), "an end token went first"
        events += new
    return decoder, events


@given(canvases(), settings_strategy(), st.integers(0, 5))
def test_masks_fall_and_commits_stay(canvas: np.ndarray, settings: DecodeSettings, salt: int) -> None:
    decoder, events = run(canvas, settings, salt)
    assert isinstance(events[-1], Finished)
    assert sum(isinstance(e, Finished) for e in events) == 1
    if events[-1].reason == "length":
        assert decoder.masks_left == 0
    else:
        end = int(np.flatnonzero((decoder.canvas == EOS) & (canvas == MASK))[0])
        assert (decoder.canvas[:end] != MASK).all()
    if settings.suppress_eos:
        assert not ((decoder.canvas == EOS) & (canvas == MASK)).any()


@given(canvases(), settings_strategy())
def test_same_seed_same_tokens(canvas: np.ndarray, settings: DecodeSettings) -> None:
    assert run(canvas, settings, 1)[0].canvas.tolist() == run(canvas, settings, 1)[0].canvas.tolist()


@given(canvases(), settings_strategy())
def test_quota_needs_no_more_steps_than_asked(canvas: np.ndarray, settings: DecodeSettings) -> None:
    cut = blocks(np.flatnonzero(canvas == MASK).astype(np.int32), settings)
    assert sum(sum(b.quota) for b in cut) == int((canvas == MASK).sum())
    if settings.steps is not None:
        assert sum(len(b.quota) for b in cut) <= max(settings.steps, len(cut))


def test_seeds_matter_at_a_temperature() -> None:
    canvas = np.zeros(20, dtype=np.int32)
    answers = {tuple(run(canvas, DecodeSettings(seed=s, temperature=1.0), 0)[0].canvas) for s in range(5)}
    assert len(answers) == 5


def test_ties_go_to_the_earlier_position() -> None:
    decoder = Decoder(np.zeros(4, np.int32), DecodeSettings(), MASK, EOS)
    flat = ScoreRows(
        np.arange(4, dtype=np.int32),
        np.tile(np.array([4, 5], np.int32), (4, 1)),
        np.log(np.full((4, 2), 0.5, np.float32)),
        np.full(4, -np.inf, np.float32),
    )
    stepped = decoder.apply(0, flat)[0]
    assert isinstance(stepped, Stepped)
    assert [(t.position, t.id) for t in stepped.committed] == [(0, 4)]


def test_rows_of_another_step_are_refused() -> None:
    decoder = Decoder(np.zeros(4, np.int32), DecodeSettings(), MASK, EOS)
    work = decoder.wanted()[0]
    rows = rows_for(work.ids[0], work.positions, 0)
    decoder.apply(0, rows)
    with pytest.raises(BadAnswer):
        decoder.apply(0, rows)


def test_the_unconditional_canvas_hides_the_prompt_only() -> None:
    decoder = Decoder(np.array([5, 7, MASK, MASK], np.int32), DecodeSettings(cfg_scale=1.0), MASK, EOS)
    work = decoder.wanted()[0]
    assert work.ids.tolist() == [[5, 7, MASK, MASK], [MASK] * 4]
    decoder.apply(0, rows_for(work.ids[0], work.positions, 0))
    second = decoder.wanted()[0].ids
    assert second[1, :2].tolist() == [MASK, MASK]
    assert second[1, 2:].tolist() == second[0, 2:].tolist()


@pytest.mark.parametrize(("commit", "order"), UNFIT)
def test_commits_that_compare_confidences_need_them(commit: Commit, order: Order) -> None:
    with pytest.raises(BadRequest, match=order) as caught:
        Decoder(np.zeros(4, np.int32), DecodeSettings(commit=commit, order=order), MASK, EOS)
    assert caught.value.field == "order"


@given(
    confidences=st.lists(st.floats(0, 1), min_size=1, max_size=12),
    factor=st.sampled_from([0.2, 0.5, 1.0, 1.9]),
)
def test_factor_commits_by_rank(confidences: list[float], factor: float) -> None:
    """The r-th best (from 1) is fixed iff its confidence reaches 1 - factor / (r + 1); the best one always."""
    positions = np.arange(len(confidences), dtype=np.int32)
    settings = DecodeSettings(commit=Commit.FACTOR, factor=factor)
    block = blocks(positions, settings)[0]
    chosen = committed(settings, block, 0, 0, np.array(confidences), positions)
    ranked = sorted(range(len(confidences)), key=lambda i: (-confidences[i], i))
    want = {i for r, i in enumerate(ranked, 1) if r == 1 or confidences[i] >= 1 - factor / (r + 1)}
    assert set(np.flatnonzero(chosen).tolist()) == want


@given(canvases(), settings_strategy())
def test_settings_that_draw_nothing_ignore_the_seed(canvas: np.ndarray, settings: DecodeSettings) -> None:
    other = replace(settings, seed=settings.seed ^ 12345)
    if not settings.draws:
        assert run(canvas, settings, 2)[0].canvas.tolist() == run(canvas, other, 2)[0].canvas.tolist()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1.0),
        ("steps", 0),
        ("block_length", 0),
        ("threshold", 0.0),
        ("cfg_scale", -0.1),
        ("seed", -1),
        ("top_p", 0.0),
        ("top_k", -1),
        ("alg_temp", -1.0),
        ("factor", 0.0),
    ],
)
def test_impossible_settings_name_the_field(field: str, value: float) -> None:
    with pytest.raises(BadRequest, match=field):
        DecodeSettings(**{field: value})


def test_noise_is_addressed_not_sequential() -> None:
    positions = np.array([3, 8], np.int32)
    ids = np.array([[1, 2, 900], [5, 6, 7]], np.int32)
    both = gumbel(9, 4, positions, ids)
    assert np.array_equal(gumbel(9, 4, positions[1:], ids[1:, 2:]), both[1:, 2:])
    assert len({float(x) for x in both.flat} | {float(x) for x in gumbel(9, 5, positions, ids).flat}) == 12


def test_noise_is_uniform() -> None:
    draws = uniform(1, 2, np.arange(200, dtype=np.int32), np.tile(np.arange(500, dtype=np.int32), (200, 1)))
    assert draws.min() > 0 and draws.max() < 1
    counts, _ = np.histogram(draws, bins=20, range=(0, 1))
    chi_squared = ((counts - 5000) ** 2 / 5000).sum()
    assert chi_squared < 50


def test_philox_matches_the_published_vector() -> None:
    from swarm.decode.noise import _philox

    word = np.array([0xFFFFFFFF], np.uint64)
    out = _philox([word.copy() for _ in range(4)], (0xFFFFFFFF, 0xFFFFFFFF))
    assert [int(x[0]) for x in out] == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def test_temperature_one_samples_the_model() -> None:
    """log p + Gumbel at its maximum is a draw from p: 4,000 draws within five standard errors."""
    p = np.array([0.6, 0.3, 0.1])
    n = 4000
    ids = np.tile(np.array([2, 3, 4], np.int32), (n, 1))
    chosen = (np.log(p) + gumbel(3, 0, np.arange(n, dtype=np.int32), ids)).argmax(1)
    share = np.bincount(chosen, minlength=3) / n
    assert (np.abs(share - p) < 5 * np.sqrt(p * (1 - p) / n)).all()
