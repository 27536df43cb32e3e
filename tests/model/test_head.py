"""Score rows say what the logits say: the best tokens in order, normalised over everything that is allowed."""

import numpy as np
import pytest
import torch

from swarm.mixture.rows import ScoreRows
from swarm.model.head import CHUNK_ITEMS, score_rows

MASK = 3


def rows_of(logits: torch.Tensor, n_tokens: int, k: int = 256) -> ScoreRows:
    return score_rows(logits, np.arange(len(logits), dtype=np.int32), MASK, n_tokens, k)


def check(logits: torch.Tensor, n_tokens: int, k: int) -> None:
    """Against the definition, token by token."""
    rows = rows_of(logits, n_tokens, k)
    for at, row in enumerate(logits.double()[:, :n_tokens]):
        allowed = [token for token in range(n_tokens) if token != MASK]
        order = sorted(allowed, key=lambda token: (-float(row[token]), token))
        kept = min(k, len(order))
        assert rows.ids[at].tolist() == order[:kept]
        total = torch.logsumexp(row[allowed], 0)
        np.testing.assert_allclose(rows.log_probs[at], (row[order[:kept]] - total).numpy(), rtol=1e-6, atol=1e-6)
        rest = torch.logsumexp(row[order[kept:]], 0) - total if order[kept:] else -torch.inf
        np.testing.assert_allclose(rows.log_tail[at], float(rest), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n_tokens", "k"), [(300, 256), (300, 10), (200, 256), (MASK, 256), (300, 1)])
def test_rows_are_what_their_definition_says(dtype: torch.dtype, n_tokens: int, k: int) -> None:
    logits = torch.randn(5, 320, generator=torch.Generator().manual_seed(n_tokens + k)) * 4
    check(logits.to(dtype), n_tokens, k)


def test_ties_go_to_the_lower_id_and_zero_has_no_sign() -> None:
    logits = torch.randint(-2, 3, (6, 200), generator=torch.Generator().manual_seed(0)).float()
    logits[:, ::2] *= -1.0  # makes negative zeros
    check(logits, 180, 50)
    check(torch.zeros(1, 60), 60, 7)


def test_a_tail_far_below_the_best_keeps_its_mass() -> None:
    logits = torch.full((1, 400), -30.0)
    logits[0, 7] = 30.0
    check(logits, 400, 5)


def test_a_row_does_not_depend_on_its_neighbours_or_on_chunks() -> None:
    n_tokens = CHUNK_ITEMS // 3
    logits = torch.randn(8, n_tokens, generator=torch.Generator().manual_seed(1))
    together = rows_of(logits, n_tokens)
    for at in range(len(logits)):
        alone = rows_of(logits[at : at + 1], n_tokens)
        for field in ("ids", "log_probs", "log_tail"):
            assert np.array_equal(getattr(alone, field)[0], getattr(together, field)[at])


def test_logits_that_are_no_numbers_give_rows_that_are_none() -> None:
    logits = torch.zeros(2, 100)
    logits[1, 50] = torch.nan
    rows = rows_of(logits, 100, 10)
    assert np.isfinite(rows.log_probs[0]).all()
    assert np.isnan(rows.log_probs[1]).any()
