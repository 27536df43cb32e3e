"""Minutes of steady load: nothing grows. GLOSSD_SOAK_MINUTES sets how many (3)."""

import os
import time

import numpy as np
import psutil
import pytest

from tests.faults.bodies import SHORT
from tests.swarmlab.daemons import Daemon, swarm
from tests.swarmlab.history import History

MINUTES = float(os.environ.get("GLOSSD_SOAK_MINUTES", "3"))
WARM_S, EVERY_S = 45.0, 5.0
SLACK = 2
"""Files and threads more or less that are no growth."""
BYTES_PER_REQUEST = 2**20 / 1000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 + 120 * MINUTES)]


def test_nothing_grows() -> None:
    with swarm("0:4", "4:8", "none") as nodes:
        history = History.by(nodes[0], SHORT)
        samples: list[list[tuple[int, int, int, int]]] = []
        with history.load(nodes, 2, seed=1):
            time.sleep(WARM_S)
            until = time.monotonic() + 60 * MINUTES
            while time.monotonic() < until:
                samples.append([sample(node, len(history.entries)) for node in nodes])
                time.sleep(EVERY_S)
    assert not history.problems
    for number in range(len(nodes)):
        requests, files, threads, rss = map(np.array, zip(*(each[number] for each in samples), strict=True))
        for counts in (files, threads):
            third = len(counts) // 3
            assert np.median(counts[-third:]) <= np.median(counts[:third]) + SLACK, counts
        slope = np.polyfit(requests, rss, 1)[0]
        assert slope <= BYTES_PER_REQUEST, f"{slope * 1000 / 2**20:.2f} MB per 1000 requests: {rss}"


def sample(node: Daemon, requests: int) -> tuple[int, int, int, int]:
    """Requests so far; files, threads and resident bytes of the daemon, p2pd's files included."""
    daemon = psutil.Process(node.pid)
    return requests, daemon.num_fds() + node.p2pd().num_fds(), daemon.num_threads(), daemon.memory_info().rss
