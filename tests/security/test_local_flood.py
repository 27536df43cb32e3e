"""Two thousand connections to the local socket, silent ones and slow ones: another client is served throughout."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import psutil
import pytest

from tests.faults.bodies import SHORT
from tests.swarmlab.daemons import Daemon, swarm, until
from tests.swarmlab.history import History

pytestmark = pytest.mark.timeout(300)

CONNECTIONS, AT_ONCE = 2000, 400


@pytest.fixture(scope="module")
def lone() -> Iterator[Daemon]:
    with swarm("0:8") as (daemon,):
        yield daemon


@pytest.mark.parametrize("first", [b"", b"POST /api/prompt HTTP/1.1\r\nHost: x\r\nX-Slow: "], ids=["silent", "slow"])
def test_a_flood_of_connections_keeps_nobody_out(lone: Daemon, first: bytes) -> None:
    history = History.by(lone, SHORT[:2])
    files = psutil.Process(lone.pid).num_fds()
    with history.load([lone], 1, seed=1), ExitStack() as stack:
        flood: list[socket.socket] = []
        for number in range(CONNECTIONS):
            one = stack.enter_context(socket.socket(socket.AF_UNIX))
            one.settimeout(10)
            with suppress(OSError):
                one.connect(str(lone.socket))
                one.sendall(first)
            flood.append(one)
            for slow in flood[-AT_ONCE::40]:
                with suppress(OSError):
                    slow.sendall(b"y" if first else b"")
            if number >= AT_ONCE:
                flood[number - AT_ONCE].close()
        asked = len(history.entries)
        until(lambda: len(history.entries) >= asked + 5)
        assert psutil.Process(lone.pid).num_fds() - files < 200
    assert not history.problems
    until(lambda: psutil.Process(lone.pid).num_fds() <= files + 5, 30)
