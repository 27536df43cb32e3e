"""Real daemons on nodes that are 50 ms apart. They are slow to start and slow to talk; their answers are the same."""

from pathlib import Path

import pytest

from scripts.netlab import Lab, public_nodes
from tests.swarmlab.daemons import Daemon, swarm

pytestmark = pytest.mark.lab

BODY = {"chat": "Reverse: stream", "seed": 3, "temperature": 0.5}


@pytest.mark.timeout(300)
def test_two_nodes_over_a_slow_link_answer_as_one_does(tmp_path: Path) -> None:
    with swarm("0:8") as (lone,):
        want = lone.ask(BODY)
    with Lab.made(public_nodes(2, rtt_ms=50)) as lab:
        daemons: list[Daemon] = []
        for name, layers in (("p1", "0:4"), ("p2", "4:8")):
            join = [daemons[0].join_address] if daemons else []
            flags = {"host": lab.address(name), "port": 4001, "layers": layers, "join": join}
            daemons.append(Daemon(tmp_path / name, flags, enter=lab.enter(name)).launch().wait_ready())
        for daemon in daemons:
            daemon.wait_covered(peers=2)
        before = lab.traffic("p2")
        done = daemons[0].ask(BODY)
        assert done.token_ids == want.token_ids
        assert len(done.peers) == 2
        assert lab.traffic("p2") - before > 10_000
        assert daemons[1].ask(BODY).token_ids == want.token_ids
        for daemon in daemons:
            assert daemon.end() == 0
