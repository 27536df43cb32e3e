"""A peer that does one thing wrong, with an honest replica at hand: the answer is the undisturbed one.

Both hosts of the middle parts can be told to misbehave; the one that a request runs on is told, in the middle of it.
"""

from collections.abc import Iterator

import pytest

from glossd.events import Step
from tests.faults.bodies import LONG
from tests.swarmlab.daemons import Daemon, owner, swarm_of
from tests.swarmlab.faulty import Fault, Faulty
from tests.swarmlab.history import History

BODIES = (
    LONG | {"max_tokens": 32},
    LONG | {"max_tokens": 32, "cache": "dual", "block_length": 16},
    LONG | {"max_tokens": 16, "cfg_scale": 1.0},
)
REFUSED = (Fault.FAIL, Fault.NAN, Fault.WRONG_SHAPE, Fault.WRONG_DTYPE, Fault.HUGE)
SILENT = (Fault.HANG, Fault.STALE, Fault.DISCONNECT)
HARMLESS = (Fault.SLOW, Fault.REPLAY)
"""Nobody need be left out for these."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Faulty]]:
    with swarm_of(Faulty, "0:3", "3:6", "3:6", "6:8", "6:8") as daemons:
        yield daemons


@pytest.fixture(scope="module")
def history(lone: Daemon) -> History:
    return History.by(lone, BODIES)


@pytest.mark.parametrize("hop", [1, 2], ids=["middle", "head"])
@pytest.mark.parametrize("fault", REFUSED + SILENT + HARMLESS)
def test_the_answer_is_that_of_the_undisturbed_swarm(
    nodes: list[Faulty], history: History, fault: Fault, hop: int
) -> None:
    victims = []

    def misbehave(step: Step) -> None:
        victims.append(owner(step.chain[hop].peer, nodes))
        victims[0].tell(fault)

    index = (hop + list(Fault).index(fault)) % len(BODIES)
    before = sum(node.wrongs for node in nodes)
    try:
        entry = history.ask(nodes[0], index, 4, misbehave)
    finally:
        for victim in victims:
            victim.tell(Fault.NONE)
    assert not entry.problem
    assert sum(node.wrongs for node in nodes) > before
    assert fault not in REFUSED or entry.replays >= 1
