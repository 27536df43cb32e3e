"""Peers killed in the middle of answers: the same tokens while each part has another host, else a clear end."""

import random
from collections.abc import Iterator

import pytest

from glossd.events import Error, Step
from tests.faults.bodies import LONG, SHORT
from tests.swarmlab.daemons import Daemon, owner, swarm, until
from tests.swarmlab.history import History

SPANS = ("0:4", "0:4", "4:8", "4:8")
BODIES = (LONG, LONG | {"cache": "dual", "block_length": 16}, LONG | {"cfg_scale": 1.0, "max_tokens": 32})
LISTED_S = 15.0
"""How long a dead peer may be listed."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Daemon]]:
    """A coordinator that hosts nothing, and two hosts of each half."""
    with swarm("none", *SPANS) as daemons:
        yield daemons


@pytest.fixture(scope="module")
def history(lone: Daemon) -> History:
    return History.by(lone, BODIES)


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 20))])
def test_a_kill_at_a_random_step_changes_nothing(nodes: list[Daemon], history: History, seed: int) -> None:
    rng = random.Random(seed)
    index, hop = seed % len(BODIES), rng.randrange(2)
    victims: list[Daemon] = []

    def kill(step: Step) -> None:
        victims.append(owner(step.chain[hop].peer, nodes))
        victims[0].kill()

    entry = history.ask(nodes[0], index, rng.randrange(30), kill)
    (victim,) = victims
    victim.launch().wait_ready()
    nodes[0].wait_covered(peers=len(SPANS))
    assert not entry.problem
    assert entry.replays >= 1


def test_the_dead_are_asked_no_more_and_soon_not_listed(nodes: list[Daemon], history: History) -> None:
    node, victim = nodes[0], nodes[1]
    peer = victim.status().peer
    victim.kill()
    assert [history.ask(node, 0).problem for _ in range(4)] == [""] * 4
    assert sum(entry.replays for entry in history.entries[-4:]) <= 1
    until(lambda: peer not in {each.peer for each in node.client.peers()}, LISTED_S)
    victim.launch().wait_ready()
    node.wait_covered(peers=len(SPANS))


def test_without_the_last_host_the_missing_parts_are_named(nodes: list[Daemon], history: History) -> None:
    def kill_both(step: Step) -> None:
        for victim in nodes[3:]:
            victim.kill()

    entry = history.ask(nodes[0], 0, 4, kill_both)
    assert isinstance(entry.last, Error)
    assert (entry.last.code, entry.last.parts) == ("coverage_lost", (4, 5, 6, 7))
    *_, refused = nodes[0].client.events(SHORT[0])
    assert isinstance(refused, Error) and refused.parts == (4, 5, 6, 7)
