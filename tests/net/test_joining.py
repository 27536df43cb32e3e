"""Finding the swarm: who answers is met at once, who does not is tried again, and good addresses are kept."""

import asyncio
import json
import stat
from pathlib import Path

import pytest

from swarm.errors import DialFailed, GlossError, StartError
from swarm.ids import PeerId
from swarm.net import joining
from swarm.net.anchors import ANCHORS, Anchors
from swarm.net.joining import Joining
from tests.waiting import until


def at(name: str) -> str:
    return f"/ip4/10.0.0.1/tcp/1/p2p/{name}"


class World:
    """`there` are the peers that answer; `dialled` counts tries."""

    def __init__(self, *there: str) -> None:
        self.there = set(there)
        self.near: set[str] = set()
        self.dialled: list[str] = []

    async def meet(self, address: str) -> None:
        name = address.rpartition("/")[2]
        self.dialled.append(name)
        if name == "frozen":
            await asyncio.sleep(3600)
        if name == "skewed":
            raise StartError("clocks differ")
        if name not in self.there:
            raise DialFailed(f"nobody answers at {address}")
        self.near.add(name)

    async def neighbours(self) -> list[str]:
        return [at(name) for name in sorted(self.near)]

    def joining(self, *join: str, anchors: Anchors | None = None) -> Joining:
        kept = anchors or Anchors(None)
        return Joining([at(name) for name in join], kept, self.meet, lambda peer: peer in self.near, self.neighbours)


async def met() -> None: ...


async def test_one_that_answers_is_enough() -> None:
    world = World("b")
    assert await world.joining("a", "b", "frozen").first() is None
    assert world.near == {"b"}


async def test_who_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "FIRST_S", 0.05)
    failed = await World().joining("a", "frozen", "skewed").first()
    assert failed is not None
    assert {address: type(reason) for address, reason in failed.items()} == {
        at("a"): DialFailed,
        at("frozen"): GlossError,
        at("skewed"): StartError,
    }
    assert all(name in str(failed[at(name)]) for name in ("a", "frozen"))


async def test_nobody_to_join_is_no_failure() -> None:
    assert await World().joining().first() is None


async def test_who_appears_later_is_met_and_who_is_lost_is_met_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RETRY_S", "RETRY_MAX_S", "_TICK_S"):
        monkeypatch.setattr(joining, name, 0.001)
    world = World()
    keeping = asyncio.create_task(world.joining("a").keep(met))
    try:
        for _ in range(3):
            world.dialled.clear()
            await until(lambda: len(world.dialled) >= 3)
            world.there.add("a")
            await until(lambda: "a" in world.near)
            tried = len(world.dialled)
            await asyncio.sleep(0.02)
            assert len(world.dialled) == tried, "a neighbour is not dialled"
            world.there.clear()
            world.near.clear()
    finally:
        keeping.cancel()


async def test_neighbours_are_kept_for_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "_KEEP_FIRST_S", 0.0)
    monkeypatch.setattr(joining, "_TICK_S", 0.001)
    path, world = tmp_path / "peers.json", World("a", "b")
    first = world.joining("a", anchors=Anchors(path))
    assert await first.first() is None
    world.near.add("b")
    keeping = asyncio.create_task(first.keep(met))
    try:
        await until(path.exists)
    finally:
        keeping.cancel()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = World("b")
    assert await again.joining(anchors=Anchors(path)).first() is None
    assert PeerId("b") in again.near


def test_anchors_are_bounded_and_the_latest_come_first(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    anchors = Anchors(path)
    anchors.keep([at(f"p{number}") for number in range(ANCHORS)])
    anchors.keep([at("new")])
    assert Anchors(path).addresses == (at("new"), *(at(f"p{number}") for number in range(ANCHORS - 1)))


@pytest.mark.parametrize("data", [b"", b"{", b"{}", b"7", b"[" * 9000, b"\xff", b'["' + b"x" * 20000 + b'"]'])
def test_a_damaged_file_is_an_empty_one(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "peers.json"
    path.write_bytes(data)
    anchors = Anchors(path)
    assert anchors.addresses == ()
    anchors.keep([at("a")])
    assert Anchors(path).addresses == (at("a"),)


def test_strange_entries_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    path.write_text(json.dumps([7, None, "junk", "/ip4/1.2.3.4/tcp/1", at("x" * 400), at("a")]))
    assert Anchors(path).addresses == (at("a"),)
