"""The numerics of the published modelling code, layer by layer and split by split."""

import numpy as np
import pytest
import torch

from swarm.ids import Span
from swarm.mixture.rows import ScoreRows
from swarm.model.forward import HeadWork, run_span
from swarm.model.head import score_rows
from swarm.model.weights import DTYPES, load_span
from tests.model.checkpoints import checkpoint, dense, reference, splits

SHAPES = ("llada-mha", "llada-gqa-tied", "dream")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("shape", SHAPES)
@torch.inference_mode()
def test_float32_logits_and_hidden_states_equal_the_reference(shape: str) -> None:
    point, want = checkpoint(shape, "float32"), reference(shape, "float32")
    module = load_span(point, Span(0, point.config.n_parts), torch.float32)
    x = module.run(want["input_ids"], Span(0, 1))
    for layer in range(point.config.n_layers):
        torch.testing.assert_close(x, want[f"hidden_{layer}"], atol=1e-5, rtol=0)
        x = module.run(x, Span(layer + 1, layer + 2))
    assert module.head is not None
    torch.testing.assert_close(module.head.norm(x), want[f"hidden_{point.config.n_layers}"], atol=1e-5, rtol=0)
    logits = dense([module], want["input_ids"])
    torch.testing.assert_close(logits, want["logits"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("shape", SHAPES)
def test_bfloat16_logits_stay_within_two_units_in_the_last_place(shape: str) -> None:
    point, want = checkpoint(shape, "bfloat16"), reference(shape, "bfloat16")
    module = load_span(point, Span(0, point.config.n_parts), torch.bfloat16)
    logits = dense([module], want["input_ids"]).float()
    reference_logits = want["logits"].float()
    unit = 2.0 ** (torch.floor(torch.log2(reference_logits.abs().max())).item() - 7)
    assert (logits - reference_logits).abs().max().item() <= 2 * unit


@pytest.mark.parametrize("shape", SHAPES)
def test_every_split_gives_the_same_bits(shape: str) -> None:
    point = checkpoint(shape, "float32")
    ids = reference(shape, "float32")["input_ids"]
    whole = dense([load_span(point, Span(0, point.config.n_parts), torch.float32)], ids)
    for split in splits(point.config.n_parts):
        parts = [load_span(point, span, torch.float32) for span in split]
        assert torch.equal(dense(parts, ids), whole), split


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dream_reads_the_prediction_for_a_position_one_before_it(dtype: str) -> None:
    point, want = checkpoint("dream", dtype), reference("dream", dtype)
    module = load_span(point, Span(0, point.config.n_parts), DTYPES[dtype])
    positions = np.array([0, 1, 7, 46, 47], dtype=np.int32)
    n_tokens = 512
    rows = run_span(module, module.span, want["input_ids"][:1], HeadWork(positions, 0.0, n_tokens))
    shifted = want["logits_shifted"][0, torch.from_numpy(positions).long()]
    expected = score_rows(shifted, positions, point.config.mask_id, n_tokens)
    assert isinstance(rows, ScoreRows)
    tolerance = 1e-5 if dtype == "float32" else 0.05
    assert [len(set(a) & set(b)) > 250 for a, b in zip(rows.ids, expected.ids, strict=True)] == [True] * 5
    np.testing.assert_allclose(rows.log_probs, expected.log_probs, atol=tolerance)


def test_score_rows_are_normalised_ordered_and_without_banned_tokens() -> None:
    point = checkpoint("llada-mha", "float32")
    ids = reference("llada-mha", "float32")["input_ids"][:1]
    module = load_span(point, Span(0, point.config.n_parts), DTYPES["float32"])
    n_tokens = 450
    head = HeadWork(np.array([0, 5, 47], dtype=np.int32), 0.0, n_tokens)
    rows = run_span(module, module.span, ids, head)
    assert isinstance(rows, ScoreRows)
    assert rows.ids.shape == (3, 256)
    assert rows.ids.max() < n_tokens
    total = np.exp(rows.log_probs.astype(np.float64)).sum(1) + np.exp(rows.log_tail.astype(np.float64))
    np.testing.assert_allclose(total, 1, atol=1e-5)
    assert (np.diff(rows.log_probs, axis=1) <= 0).all()
    banned = run_span(module, module.span, ids, HeadWork(head.positions, 0.0, 512))
    assert isinstance(banned, ScoreRows)
    assert (banned.ids != point.config.mask_id).all()


def test_ties_are_ordered_by_token_id() -> None:
    logits = torch.zeros(2, 600)
    logits[1, 300] = 1
    rows = score_rows(logits, np.array([3, 9]), mask_id=2, n_tokens=600, k=4)
    assert rows.ids.tolist() == [[0, 1, 3, 4], [300, 0, 1, 3]]
