"""The schedule of churn: the rate that was asked for, and never the last host of a span."""

import pytest

from tests.swarmlab.schedule import churn

SPANS = ("0:3", "0:3", "0:3", "3:6", "3:6", "3:6", "6:8", "6:8")


@pytest.mark.parametrize("seed", range(20))
def test_a_span_is_never_left_alone(seed: int) -> None:
    moves = churn(seed, SPANS, 0.2, 60)
    assert moves == churn(seed, SPANS, 0.2, 60)
    assert len(moves) == pytest.approx(60 * 0.2 * len(SPANS), rel=0.1)
    assert [move.at_s for move in moves] == sorted(move.at_s for move in moves)
    there = set(range(len(SPANS)))
    for move in moves:
        assert (move.host in there) is (move.what != "joins")
        there ^= {move.host}
        assert {SPANS[host] for host in there} == set(SPANS)
        assert len(there) >= 6
    assert {move.what for move in moves} == {"killed", "leaves", "joins"}
