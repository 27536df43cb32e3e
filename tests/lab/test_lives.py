"""A lab is found and removed whole, however its maker ended."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from scripts.netlab import Lab, LabError, public_nodes
from scripts.netlab.lab import down, remove_stale
from scripts.netlab.namespaces import found, pids, run
from tests.swarmlab.daemons import until

pytestmark = pytest.mark.lab

PREFIX = f"netlab-t{os.getpid()}"


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    down(PREFIX)


def command(*words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "scripts.netlab", "--prefix", PREFIX, *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=60)


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_command_line_makes_shows_uses_and_removes_a_lab() -> None:
    assert command("up", "--public", "2", "--nat", "cone", "--rtt", "10").returncode == 0
    shown = json.loads(command("status", "--json").stdout)
    assert [(node["name"], node["kind"], node["rtt_ms"]) for node in shown["nodes"]] == [
        ("p1", "public", 10), ("p2", "public", 10), ("n1", "cone", 10),
    ]  # fmt: skip
    assert not shown["stale"]
    assert shown["nodes"][0]["address"] in command("exec", "p1", "ip", "-brief", "address").stdout
    assert command("exec", "p1", "--", "sh", "-c", "exit 7").returncode == 7
    again = command("up", "--public", "1")
    assert again.returncode == 1
    assert "is up already" in again.stderr
    assert command("down").returncode == 0
    assert found(PREFIX) == []
    gone = command("status")
    assert gone.returncode == 1
    assert f"no lab {PREFIX} is up" in gone.stderr


def test_down_ends_what_runs_there() -> None:
    lab = Lab.up(public_nodes(1, rtt_ms=10), PREFIX)
    with lab.inside("p1"):
        process = subprocess.Popen(["sleep", "600"])
    assert pids(lab.namespace("p1")) == [process.pid]
    lab.down()
    assert process.wait(5) == -signal.SIGKILL
    until(lambda: not running(lab.carrier), 5)


def test_a_lab_whose_maker_was_killed_is_stale_and_goes() -> None:
    maker = subprocess.Popen(
        [sys.executable, "-c", f"""
from scripts.netlab import Lab, public_nodes
import time
with Lab.made(public_nodes(2, rtt_ms=10), "{PREFIX}"):
    print("up", flush=True)
    time.sleep(600)
"""],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert maker.stdout is not None
    with maker.stdout:
        assert maker.stdout.readline() == b"up\n"
        lab = Lab.found(PREFIX)
        assert not lab.is_stale()
        maker.kill()
        maker.wait()
    assert lab.is_stale()
    assert "STALE" in command("status").stdout
    remove_stale()
    assert found(PREFIX) == []
    until(lambda: not running(lab.carrier), 5)


def test_a_new_lab_takes_the_place_of_one_whose_links_died() -> None:
    first = Lab.up(public_nodes(2, rtt_ms=10), PREFIX)
    os.kill(first.carrier, signal.SIGKILL)
    until(first.is_stale, 5)
    second = Lab.up(public_nodes(3, rtt_ms=10), PREFIX)
    assert not second.is_stale()
    assert [node.name for node in Lab.found(PREFIX).nodes] == ["p1", "p2", "p3"]


def test_what_a_half_made_lab_left_is_named_and_removed() -> None:
    run("ip", "netns", "add", f"{PREFIX}-p1")
    with pytest.raises(LabError, match=f"a crash left {PREFIX}-p1"):
        Lab.found(PREFIX)
    assert command("down").returncode == 0
    assert found(PREFIX) == []


def test_labs_whose_prefixes_begin_alike_are_strangers() -> None:
    longer = Lab.up(public_nodes(1), f"{PREFIX}-b")
    try:
        Lab.up(public_nodes(1), PREFIX).down()
        assert not longer.is_stale()
    finally:
        longer.down()


def test_a_lab_that_cannot_be_made_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Lab) -> None:
        raise RuntimeError("no more addresses")

    monkeypatch.setattr(Lab, "_route", fails)
    with pytest.raises(RuntimeError, match="no more addresses"):
        Lab.up(public_nodes(2, rtt_ms=10), PREFIX)
    assert found(PREFIX) == []


def test_labs_that_are_being_made_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    carry = Lab._carry

    def sweep_first(lab: Lab) -> int:
        remove_stale()
        return carry(lab)

    monkeypatch.setattr(Lab, "_carry", sweep_first)
    with Lab.made(public_nodes(2, rtt_ms=10), PREFIX) as lab:
        assert not lab.is_stale()
