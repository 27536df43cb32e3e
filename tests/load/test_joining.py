"""Many nodes that start at the same moment: all are seen by all, and each of them answers.

GLOSSD_JOINING sets how many (20); each takes half a gigabyte of memory.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults.bodies import SHORT
from tests.swarmlab.daemons import Daemon

NODES = int(os.environ.get("GLOSSD_JOINING", "20"))
CONVERGED_S = 20.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_many_join_at_once(tmp_path: Path) -> None:
    with ExitStack() as stack, ThreadPoolExecutor(NODES) as pool:
        first = Daemon(tmp_path / "0", {"layers": "0:8"}).launch()
        stack.callback(first.end)
        join = {"join": [first.wait_ready().join_address]}
        others = [Daemon(tmp_path / str(n), {"layers": ("0:4", "4:8")[n % 2], **join}) for n in range(1, NODES)]
        for node in others:
            stack.callback(node.end)
            node.launch()
        list(pool.map(Daemon.wait_ready, others))
        for node in (first, *others):
            node.wait_covered(CONVERGED_S, peers=NODES)
        want = first.ask(SHORT[0]).token_ids
        assert {answer.token_ids for answer in pool.map(lambda node: node.ask(SHORT[0]), others)} == {want}
        list(pool.map(Daemon.end, others))
