"""What a lab may be made of. Needs no lab."""

import argparse

import pytest

from scripts.netlab.__main__ import parser, specs
from scripts.netlab.topology import Addresses, NodeSpec


def options(line: str) -> argparse.Namespace:
    return parser().parse_args(["up", *line.split()])


def test_options_describe_the_nodes() -> None:
    nodes = specs(
        options("--public 2 --nat cone --nat symmetric --rtt 50 --link p2:rtt=200,rate=20 --link n1:loss=0.1")
    )
    assert nodes == [
        NodeSpec("p1", "public", 50),
        NodeSpec("p2", "public", 200, 20),
        NodeSpec("n1", "cone", 50, 0, 0.1),
        NodeSpec("n2", "symmetric", 50),
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "--public N"),
        ("--public 1 --link p2:rtt=5", "no node p2; there are p1"),
        ("--public 1 --link p1:delay=5", "'delay=5' is none of"),
        ("--public 1 --link p1:rtt=soon", "'rtt=soon' is none of"),
        ("--public 1 --loss 1", "loss 1 is not a share"),
        ("--public 1 --rtt -1", "rtt -1 is not between"),
        ("--public 1 --rate -1", "rate -1 is negative"),
    ],
)
def test_a_wrong_option_is_named(line: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        specs(options(line))


@pytest.mark.parametrize("name", ["", "Node", "a-b", "ninechars", "core"])
def test_names_fit_an_interface(name: str) -> None:
    with pytest.raises(ValueError, match=r"name"):
        NodeSpec(name)


def test_a_pair_is_as_far_apart_as_the_mean_of_both() -> None:
    near, far = NodeSpec("a", rtt_ms=20), NodeSpec("b", rtt_ms=60)
    assert 2 * (near.link("a").delay_s + far.link("b").delay_s) == pytest.approx(0.040)


def test_no_two_nodes_share_an_address() -> None:
    all_of_them = [Addresses.of(index, kind) for index in range(99) for kind in ("cone", "none")]
    assert len({at.node for at in all_of_them}) == len(all_of_them)
    assert len({at.outside("cone") for at in all_of_them}) == 99
