"""How a daemon ends and starts again: killed, told to leave, taken twice. The tests run in order on one daemon."""

import os
import subprocess
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from signal import SIGINT, SIGTERM

import psutil
import pytest

from glossd.events import Error, RequestEvent, Step
from tests.faults.bodies import LONG
from tests.swarmlab.daemons import Daemon, until

ENDLESS = LONG | {"max_tokens": 480}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path_factory.mktemp("life"), {"layers": "0:8"}).launch()
    try:
        yield daemon.wait_ready()
    finally:
        daemon.end()


def test_a_state_folder_belongs_to_one_daemon(daemon: Daemon, tmp_path: Path) -> None:
    error = refusal(Daemon(tmp_path, {"state_dir": str(daemon.folder), "layers": "0:8"}))
    assert f"another glossd (pid {daemon.pid}) uses {daemon.folder}" in error
    assert "glossd leave" in error


def test_a_socket_belongs_to_one_daemon(daemon: Daemon, tmp_path: Path) -> None:
    error = refusal(Daemon(tmp_path, {"socket": str(daemon.socket), "layers": "0:8"}))
    assert f"another daemon holds {daemon.socket}" in error
    assert daemon.status().covered


def test_after_a_kill_nothing_is_in_the_way(daemon: Daemon) -> None:
    peer, p2pd = daemon.status().peer, daemon.p2pd()
    sockets = socket_folder(p2pd)
    daemon.kill()
    until(lambda: not alive(p2pd))
    assert daemon.socket.exists() and sockets.is_dir()
    hour_ago = time.time() - 3600
    os.utime(sockets, (hour_ago, hour_ago))
    daemon.launch().wait_ready()
    assert daemon.status().peer == peer
    assert not sockets.exists()


def test_told_to_leave_it_ends_the_answer_and_itself(daemon: Daemon) -> None:
    p2pd = daemon.p2pd()
    sockets = socket_folder(p2pd)
    events = daemon.client.events(ENDLESS)
    wait_step(events, 3)
    daemon.send(SIGINT)
    *_, last = events
    assert isinstance(last, Error)
    assert (last.code, last.http_status) == ("overloaded", 503)
    assert "leaving" in last.message
    assert exit_code(daemon) == 0
    assert not alive(p2pd) and not sockets.exists() and not daemon.socket.exists()
    assert [line.split("event=")[1].split()[0] for line in daemon.log.splitlines()[-3:]] == [
        "leaving",
        '"request',
        "left",
    ]


def test_told_to_leave_while_it_starts(daemon: Daemon) -> None:
    (daemon.folder / "lock").write_text("")
    daemon.launch()
    until(lambda: (daemon.folder / "lock").read_text() != "")
    daemon.send(SIGTERM)
    assert exit_code(daemon) == 0
    assert "ready" not in daemon.log
    assert "Traceback" not in daemon.log


def test_told_to_leave_before_it_has_imported_anything(daemon: Daemon) -> None:
    (daemon.folder / "lock").write_text("")
    daemon.launch()
    until(lambda: holds_back(daemon.pid, SIGTERM))
    daemon.send(SIGTERM)
    assert exit_code(daemon) == 0
    assert "ready" not in daemon.log and "Traceback" not in daemon.log


def test_the_second_signal_does_not_wait(daemon: Daemon) -> None:
    daemon.flags["drain_s"] = 600
    daemon.launch().wait_ready()
    p2pd = daemon.p2pd()
    with closing(daemon.client.events(ENDLESS)) as events:
        wait_step(events, 3)
        daemon.send(SIGTERM)
        until(lambda: "event=leaving running=1" in daemon.log)
        wait_step(events, 20)
        daemon.send(SIGTERM)
        assert exit_code(daemon) == 1
    until(lambda: not alive(p2pd))


def wait_step(events: Generator[RequestEvent, None, None], step: int) -> None:
    next(event for event in events if isinstance(event, Step) and event.step == step)


def exit_code(daemon: Daemon) -> int:
    assert daemon.process is not None
    try:
        return daemon.process.wait(60)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"still running:\n{daemon.log}") from None


def refusal(daemon: Daemon) -> str:
    """The one line of a daemon that does not start."""
    assert exit_code(daemon.launch()) == 1
    said = [line for line in daemon.log.splitlines() if "event=hosting" not in line]
    assert len(said) == 1, said
    assert said[0].startswith("glossd: ")
    return said[0]


def socket_folder(p2pd: psutil.Process) -> Path:
    listen = next(word for word in p2pd.cmdline() if word.startswith("-listen=/unix"))
    return Path(listen.removeprefix("-listen=/unix")).parent


def holds_back(pid: int, number: int) -> bool:
    blocked = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigBlk"))
    return bool(int(blocked.split()[1], 16) & 1 << (number - 1))


def alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
