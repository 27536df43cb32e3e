"""A swarm of real daemons: the answer never depends on who computed it, nor on who was lost meanwhile.

The tests run in order: the later ones take the swarm apart.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from signal import SIGCONT, SIGSTOP

import psutil
import pytest

from glossd.events import Done, Plan, RequestEvent, Step
from tests.faults.bodies import LONG, SHORT, Body
from tests.swarmlab.daemons import Daemon, owner, swarm, until

PARTS = ("0:3", "3:6", "6:8")


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Daemon]]:
    """Three hosts, and a fourth node that hosts nothing."""
    with swarm(*PARTS, "none") as daemons:
        yield daemons


@pytest.fixture(scope="module")
def spare(nodes: list[Daemon], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A second host of parts 3:8."""
    folder = tmp_path_factory.mktemp("spare")
    daemon = Daemon(folder, {"layers": "3:8", "join": [nodes[0].join_address]}).launch()
    try:
        daemon.wait_ready()
        for node in nodes:
            node.wait_covered(peers=4)
        yield daemon
    finally:
        daemon.end()


@pytest.mark.parametrize("body", SHORT, ids=lambda body: " ".join(str(next(iter(body.values()))).split()[:3]))
def test_three_daemons_answer_as_one(lone: Daemon, nodes: list[Daemon], body: Body) -> None:
    want = lone.ask(body)
    for node in nodes[1:]:
        got = node.ask(body)
        assert (got.token_ids, got.text, got.gaps) == (want.token_ids, want.text, want.gaps)
        assert len(got.peers) == 3


def test_a_node_that_hosts_nothing_coordinates(nodes: list[Daemon]) -> None:
    idle = nodes[3]
    assert (idle.status().span, idle.status().covered) == ("", True)
    plan = next(e for e in idle.client.events(SHORT[0]) if isinstance(e, Plan))
    assert [hop.span for hop in plan.chain] == list(PARTS)
    assert not any(hop.local for hop in plan.chain)
    assert idle.status().peer not in {peer.peer for peer in idle.client.peers()}


def test_work_for_others_is_counted(nodes: list[Daemon]) -> None:
    host, idle = nodes[1], nodes[3]
    names = {
        "passes": ("glossd_passes_total", "glossd_pass_seconds_count", "glossd_steps_total"),
        "hops": ("glossd_hop_seconds_count",),
        "bytes": ("glossd_sent_bytes_total", "glossd_received_bytes_total"),
    }
    before = {name: idle.metric(name) for group in names.values() for name in group}
    served = [host.metric(name) for name in ("glossd_served_passes_total", "glossd_served_seconds_count")]
    done = idle.ask(SHORT[0])
    grown = {name: idle.metric(name) - value for name, value in before.items()}
    assert {grown[name] for name in names["passes"]} == {done.timings.passes}
    assert grown[names["hops"][0]] == 3 * done.timings.passes
    assert all(grown[name] > 0 for name in names["bytes"])
    after = [host.metric(name) for name in ("glossd_served_passes_total", "glossd_served_seconds_count")]
    assert [new - old for new, old in zip(after, served, strict=True)] == [done.timings.passes] * 2


def test_many_at_once_answer_as_one_after_the_other(lone: Daemon, nodes: list[Daemon]) -> None:
    want = [lone.ask(body).token_ids for body in SHORT]

    def all_right(number: int) -> bool:
        body = number % len(SHORT)
        return nodes[number % len(nodes)].ask(SHORT[body]).token_ids == want[body]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(all_right, range(50)))
        # Idle links are kept, up to a limit; a leak would grow with every round.
        for _ in range(5):
            before = open_files(nodes)
            assert all(pool.map(all_right, range(12)))
            if all(new <= old for new, old in zip(open_files(nodes), before, strict=True)):
                break
        else:
            pytest.fail(f"every round opened more files: {before}, {open_files(nodes)}")
    assert all(node.status().queue.running == node.status().queue.waiting == 0 for node in nodes)


def test_a_daemon_whose_p2pd_was_killed_goes_on(lone: Daemon, nodes: list[Daemon], spare: Daemon) -> None:
    before = nodes[3].status()
    events = Following(nodes[3], LONG)
    events.chain_at_step(6)
    nodes[3].p2pd().kill()
    done = events.end()
    assert isinstance(done, Done)
    assert done.token_ids == lone.ask(LONG).token_ids
    after = nodes[3].status()
    assert (after.peer, after.addresses) == (before.peer, before.addresses)
    until(lambda: nodes[3].status().peers >= before.peers)


def test_a_frozen_peer_is_passed_over(lone: Daemon, nodes: list[Daemon], spare: Daemon) -> None:
    events = Following(nodes[3], LONG)
    victim = owner(events.chain_at_step(6)[1], [*nodes, spare])
    victim.send(SIGSTOP)
    try:
        done = events.end()
    finally:
        victim.send(SIGCONT)
    assert isinstance(done, Done)
    assert done.token_ids == lone.ask(LONG).token_ids
    assert done.timings.replays + done.timings.hedges >= 1


def test_a_killed_peer_changes_nothing(lone: Daemon, nodes: list[Daemon], spare: Daemon) -> None:
    replays = nodes[0].metric("glossd_replays_total")
    events = Following(nodes[0], LONG)
    victim = owner(events.chain_at_step(6)[1], [*nodes, spare])
    victim.kill()
    done = events.end()
    assert isinstance(done, Done)
    assert done.token_ids == lone.ask(LONG).token_ids
    assert done.timings.replays + done.timings.hedges >= 1
    assert nodes[0].metric("glossd_replays_total") - replays == done.timings.replays


def test_without_a_spare_the_command_line_says_what_is_missing(nodes: list[Daemon], spare: Daemon) -> None:
    nodes[3].wait_covered()
    command = [sys.executable, "-m", "glossd.cli.main", "prompt", "--raw", LONG["prompt"], "--json"]
    command += ["--max-tokens", "400", "--commit", "quota", "--set", "suppress_eos=true"]
    command += ["--socket", str(nodes[3].socket)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as cli:
        assert cli.stdout is not None
        for line in cli.stdout:
            if json.loads(line).get("step") == 4:
                break
        nodes[0].kill()
        out, err = cli.communicate(timeout=20)
    last = json.loads(out.splitlines()[-1])
    assert (last["type"], last["code"], last["parts"]) == ("error", "coverage_lost", [0, 1, 2])
    assert cli.returncode == 4
    assert "0 (embedding), 1, 2" in err
    with nodes[3].http() as http:
        health = http.get("/health")
    assert (health.status_code, health.json()["uncovered"]) == (503, [0, 1, 2])


def test_who_leaves_is_gone_at_once_for_others(nodes: list[Daemon], spare: Daemon) -> None:
    leaver, watcher = nodes[2], nodes[3]
    peer = leaver.status().peer
    assert leaver.end() == 0
    until(lambda: "online" not in [each.state for each in watcher.client.peers() if each.peer == peer])


def test_logs_hold_neither_prompts_nor_strangers(nodes: list[Daemon], spare: Daemon) -> None:
    for node in (*nodes, spare):
        assert "fox" not in node.log
        assert LONG["prompt"] not in node.log
        assert "Traceback" not in node.log
        lines = [line for line in node.log.split("ready\n")[-1].splitlines() if not line.startswith("glossd: ")]
        assert all(line.startswith("time=") and re.search(" logger=(glossd|swarm)", line) for line in lines), lines


class Following:
    """A request whose events are read one by one."""

    def __init__(self, daemon: Daemon, body: Body) -> None:
        self._events = daemon.client.events(body)

    def chain_at_step(self, step: int) -> tuple[str, ...]:
        """Read up to a step; the peers that are to run the next one."""
        event = next(e for e in self._events if isinstance(e, Step) and e.step == step)
        return tuple(hop.peer for hop in event.chain)

    def end(self) -> RequestEvent:
        with closing(self._events):
            *_, last = self._events
        return last


def open_files(daemons: list[Daemon]) -> list[int]:
    """Of each daemon and its p2pd together."""
    return [psutil.Process(d.pid).num_fds() + d.p2pd().num_fds() for d in daemons]
