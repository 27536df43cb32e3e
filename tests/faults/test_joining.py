"""Real daemons find each other late, spread by themselves, and come back: the network's half of membership."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from swarm.net.identity import load_or_create
from tests.faults.bodies import SHORT
from tests.swarmlab.daemons import Daemon

Start = Callable[..., Daemon]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def launch(name: str, **flags: object) -> Daemon:
            daemon = Daemon(tmp_path / name, flags)
            stack.callback(daemon.end)
            return daemon.launch()

        yield launch


def test_a_node_that_finds_nobody_serves_alone_and_merges_later(lone: Daemon, start: Start, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir(mode=0o700)
    place = f"/ip4/127.0.0.1/tcp/{free_port()}"
    address = f"{place}/p2p/{load_or_create(tmp_path / 'first' / 'identity.key').peer_id}"
    early = start("early", layers="0:4", join=[address]).wait_ready()
    said = [line for line in early.log.splitlines() if "serving alone" in line]
    assert len(said) == 1 and address in said[0] and "connection refused" in said[0]
    assert early.status().uncovered == (4, 5, 6, 7)
    first = start("first", layers="4:8", port=int(place.rpartition("/")[2])).wait_ready()
    for daemon in (early, first):
        daemon.wait_covered(peers=2)
        assert daemon.ask(SHORT[0]).token_ids == lone.ask(SHORT[0]).token_ids
    # Killed and started again at once on the same port; the other one finds it again.
    peer = first.status().peer
    first.kill()
    first.launch().wait_ready()
    assert first.status().peer == peer
    for daemon in (early, first):
        daemon.wait_covered(peers=2)
    assert early.ask(SHORT[0]).token_ids == lone.ask(SHORT[0]).token_ids


def test_nodes_that_are_told_nothing_share_the_model_and_fill_a_gap(lone: Daemon, start: Start) -> None:
    small = {"layers": "auto", "memory_mb": 7}
    first = start("node0", **small).wait_ready()
    later = [start(f"node{number}", **small, join=[first.join_address]) for number in (1, 2)]
    nodes = [first, *later]
    for node in nodes:
        node.wait_ready().wait_covered(peers=3)
    assert all(node.status().span != "0:8" for node in nodes)
    assert nodes[2].ask(SHORT[0]).token_ids == lone.ask(SHORT[0]).token_ids
    nodes[1].client.pause()
    assert nodes[1].status().state == "paused"
    nodes[1].wait_covered(60)
    assert nodes[1].ask(SHORT[0]).token_ids == lone.ask(SHORT[0]).token_ids
    nodes[1].client.resume()
    assert nodes[1].status().state == "online"
    assert nodes[1].ask(SHORT[0]).token_ids == lone.ask(SHORT[0]).token_ids


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
