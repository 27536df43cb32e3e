"""The numerics of the published modelling code, layer by layer and split by split."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from swarm.ids import Span
from swarm.mixture.rows import ScoreRows
from swarm.model.forward import HeadWork, run_span
from swarm.model.head import score_rows
from swarm.model.span import SpanModule
from swarm.model.weights import DTYPES, Checkpoint, load_span, open_checkpoint

GOLDEN = Path(__file__).parents[1] / "golden"
SHAPES = ("llada-mha", "llada-gqa-tied")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


def checkpoint(shape: str, dtype: str) -> Checkpoint:
    return open_checkpoint(GOLDEN / f"{shape}-{dtype}", shape)


def reference(shape: str, dtype: str) -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / f"{shape}-{dtype}" / "ref.safetensors")


def splits(n_parts: int) -> list[list[Span]]:
    cuts = [list(c) for n in (0, 1, 2) for c in itertools.combinations(range(1, n_parts), n)]
    cuts.append(list(range(1, n_parts)))
    return [[Span(a, b) for a, b in itertools.pairwise([0, *cut, n_parts])] for cut in cuts]


@torch.inference_mode()
def dense(modules: list[SpanModule], ids: torch.Tensor) -> torch.Tensor:
    x = ids
    for module in modules:
        x = module(x)
    head = modules[-1].head
    assert head is not None
    return head(x)


@pytest.mark.parametrize("shape", SHAPES)
@torch.inference_mode()
def test_float32_logits_and_hidden_states_equal_the_reference(shape: str) -> None:
    point, want = checkpoint(shape, "float32"), reference(shape, "float32")
    module = load_span(point, Span(0, point.config.n_parts), torch.float32)
    x = module.run(want["input_ids"], Span(0, 1))
    for layer in range(point.config.n_layers):
        torch.testing.assert_close(x, want[f"hidden_{layer}"], atol=1e-5, rtol=0)
        x = module.run(x, Span(layer + 1, layer + 2))
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
