"""Chains cover every part once, in order; the cheapest is taken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import CoverageLost
from swarm.ids import PeerId, Span
from swarm.plan.routes import Offer, choose_chain, uncovered

N = 8
spans = st.tuples(st.integers(0, N - 1), st.integers(1, N)).filter(lambda s: s[0] < s[1]).map(lambda s: Span(*s))
offers = st.dictionaries(
    st.sampled_from([PeerId(f"p{i}") for i in range(6)]),
    st.builds(Offer, spans, st.floats(0.1, 1e6), st.floats(0, 1)),
    max_size=6,
)


@given(offers, st.text(max_size=3))
def test_a_chain_covers_every_part_once_or_names_what_is_missing(found: dict[PeerId, Offer], salt: str) -> None:
    missing = uncovered([offer.span for offer in found.values()], N)
    if missing:
        with pytest.raises(CoverageLost) as lost:
            choose_chain(found, N, salt)
        assert lost.value.parts == missing
        return
    chain = choose_chain(found, N, salt)
    assert [part for hop in chain for part in hop.span] == list(range(N))
    assert all(set(hop.span) <= set(found[hop.peer].span) for hop in chain)
    assert choose_chain(found, N, salt) == chain


def test_this_node_is_preferred_to_a_round_trip() -> None:
    found = {PeerId("me"): Offer(Span(0, N), 100.0, 0.0), PeerId("far"): Offer(Span(0, N), 110.0, 0.1)}
    assert [hop.peer for hop in choose_chain(found, N)] == ["me"]


def test_a_much_faster_peer_takes_what_both_hold() -> None:
    found = {PeerId("slow"): Offer(Span(0, 5), 1.0, 0.01), PeerId("fast"): Offer(Span(1, N), 1000.0, 0.01)}
    assert [(hop.peer, str(hop.span)) for hop in choose_chain(found, N)] == [("slow", "0:1"), ("fast", "1:8")]


def test_equal_peers_share_requests() -> None:
    found = {PeerId(f"p{i}"): Offer(Span(0, N), 100.0, 0.02) for i in range(3)}
    assert {choose_chain(found, N, str(salt))[0].peer for salt in range(40)} == set(found)
