"""Real daemons on nodes of a lab: far from each other, behind routers, and cut off."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scripts.netlab import Lab, NodeSpec, public_nodes
from tests.swarmlab.daemons import Daemon, swarm

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

BODY = {"chat": "Reverse: stream", "seed": 3, "temperature": 0.5}
Launch = Callable[..., Daemon]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Start a daemon on a node, without waiting; it joins by `join`."""
    started: list[Daemon] = []

    def launch_one(lab: Lab, name: str, layers: str, join: Daemon | None = None) -> Daemon:
        flags: dict[str, object] = {"host": lab.own_address(name), "port": 4001, "layers": layers}
        if join is not None:
            flags["join"] = [join.join_address]
        started.append(Daemon(tmp_path / name, flags, enter=lab.enter(name)))
        return started[-1].launch()

    yield launch_one
    for daemon in started:
        daemon.end()


def test_two_nodes_over_a_slow_link_answer_as_one_does(launch: Launch) -> None:
    with swarm("0:8") as (lone,):
        want = lone.ask(BODY)
    with Lab.made(public_nodes(2, rtt_ms=50)) as lab:
        first = launch(lab, "p1", "0:4").wait_ready()
        second = launch(lab, "p2", "4:8", first).wait_ready()
        for daemon in (first, second):
            daemon.wait_covered(peers=2)
        before = lab.traffic("p2")
        done = first.ask(BODY)
        assert done.token_ids == want.token_ids
        assert len(done.peers) == 2
        assert lab.traffic("p2") - before > 10_000
        assert second.ask(BODY).token_ids == want.token_ids
        assert [first.end(), second.end()] == [0, 0]


def test_nodes_behind_routers_ask_public_hosts(launch: Launch) -> None:
    with Lab.made([*public_nodes(2), NodeSpec("n1", "cone"), NodeSpec("n2", "symmetric")]) as lab:
        first = launch(lab, "p1", "0:4").wait_ready()
        nodes = [first, launch(lab, "p2", "4:8", first), *(launch(lab, name, "none", first) for name in ("n1", "n2"))]
        answers = []
        for daemon in nodes:
            daemon.wait_ready().wait_covered(peers=2)
            answers.append(daemon.ask(BODY).token_ids)
        assert answers == answers[:1] * 4


def test_a_node_whose_way_out_is_blocked_says_so_and_joins_when_it_opens(launch: Launch) -> None:
    with Lab.made(public_nodes(2, rtt_ms=10)) as lab:
        first = launch(lab, "p1", "0:4").wait_ready()
        lab.block("p2")
        second = launch(lab, "p2", "4:8", first).wait_ready()
        assert not second.status().covered
        alone = next(line for line in second.log.splitlines() if "no node to join answers" in line)
        assert f"/ip4/{lab.address('p1')}/tcp/4001" in alone
        lab.unblock("p2")
        for daemon in (first, second):
            daemon.wait_covered(peers=2)
        assert first.ask(BODY).token_ids == second.ask(BODY).token_ids
