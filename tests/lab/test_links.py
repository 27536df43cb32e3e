"""A link keeps packets for its delay, at its rate, and drops its share. `scripts/bench link` has the figures."""

import pytest

from scripts.netlab import Lab, LabError, NodeSpec, public_nodes
from scripts.netlab.probes import round_trips, throughput

pytestmark = pytest.mark.lab


def test_packets_arrive_after_the_delay_of_both_links() -> None:
    with Lab.made([NodeSpec("near", rtt_ms=20), NodeSpec("far", rtt_ms=100), NodeSpec("plain")]) as lab:
        assert min(round_trips(lab, "near", "far", 10)) > 0.059
        assert min(round_trips(lab, "far", "plain", 10)) > 0.049
        assert throughput(lab, "near", "far", seconds=0.5, skip_s=0.5) > 1


def test_a_rate_is_not_exceeded() -> None:
    with Lab.made([*public_nodes(1, rtt_ms=10, rate_mbit=8), NodeSpec("p2", rtt_ms=10)]) as lab:
        assert 1 < throughput(lab, "p1", "p2", seconds=1.5, skip_s=0.5) < 10
        assert 1 < throughput(lab, "p2", "p1", seconds=1.5, skip_s=0.5) < 10


def test_lost_packets_are_lost() -> None:
    with Lab.made([NodeSpec("p1", loss=0.5), NodeSpec("p2")]) as lab:
        back = len(round_trips(lab, "p1", "p2", 60, pause_s=0, patience_s=0.1))
    assert 0 < back < 45  # of 60 a quarter is expected: each way half gets through


def test_traffic_is_counted_on_the_links_that_carry_it() -> None:
    with Lab.made(public_nodes(3, rtt_ms=4)) as lab:
        before = {name: lab.traffic(name) for name in ("p1", "p2", "p3")}
        assert throughput(lab, "p1", "p2", seconds=0.5) > 1
        grown = {name: lab.traffic(name) - was for name, was in before.items()}
        assert min(grown["p1"], grown["p2"]) > 60_000
        assert grown["p3"] < 10_000


def test_a_blocked_node_hears_nothing_until_it_is_let_through() -> None:
    with Lab.made(public_nodes(2, rtt_ms=4)) as lab:
        assert round_trips(lab, "p1", "p2", 2)
        lab.block("p2")
        lab.block("p2")
        assert not round_trips(lab, "p1", "p2", 2, patience_s=0.2)
        lab.unblock("p2")
        assert round_trips(lab, "p1", "p2", 2)
        with pytest.raises(LabError, match="no node p7 in the lab; there are p1, p2"):
            lab.block("p7")
