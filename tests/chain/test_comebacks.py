"""Peers that failed: avoided at once, back as soon as they answer, and better than nobody meanwhile."""

import asyncio
import time

import pytest

from swarm.errors import BadAnswer, CoverageLost, DialFailed, GlossError
from swarm.ids import PeerId
from swarm.net.directory import LEASE_S
from swarm.wire.records import NodeRecord
from tests.chain.swarm import Swarm, peer
from tests.chain.test_exactness import SETTINGS

GONE, LIED = DialFailed("nobody there"), BadAnswer("not a number")


@pytest.mark.parametrize("error", [GONE, LIED])
async def test_another_is_taken_at_once(error: GlossError) -> None:
    swarm = await Swarm.of(A="0:6", B="0:6")
    for name, other in (("A", "B"), ("B", "A")):
        swarm.book.failed(peer(name), error)
        assert {hop.peer for number in range(9) for hop in swarm.source(f"r{number}").chain} == {peer(other)}
        swarm.book.state(peer(name)).avoid_until = 0.0
    await swarm.close()


@pytest.mark.parametrize("error", [GONE, LIED])
async def test_where_there_is_no_other_it_is_asked_again(error: GlossError) -> None:
    swarm = await Swarm.of(A="0:3", B="3:6")
    want = await swarm.decode(SETTINGS["warm"])
    swarm.book.failed(peer("B"), error)
    assert swarm.book.uncovered() == (3, 4, 5)
    assert await swarm.decode(SETTINGS["warm"]) == want
    await swarm.close()


@pytest.mark.parametrize(("error", "answers", "back"), [(GONE, True, True), (GONE, False, False), (LIED, True, False)])
async def test_who_answers_again_is_back(error: GlossError, answers: bool, back: bool) -> None:
    swarm = await Swarm.of(A="0:6")
    swarm.book.failed(peer("A"), error)
    asked: list[PeerId] = []
    refreshed = asyncio.Event()

    async def ping(name: PeerId) -> bool:
        asked.append(name)
        return answers

    async def changed() -> None:
        refreshed.set()

    task = asyncio.create_task(swarm.book.keep_fresh(ping, changed))
    await refreshed.wait()
    task.cancel()
    assert asked == ([peer("A")] if error is GONE else [])
    assert swarm.book.state(peer("A")).is_avoided is not back
    await swarm.close()


async def test_a_banned_peer_is_not_asked_even_where_there_is_no_other() -> None:
    swarm = await Swarm.of(A="0:6", B="0:6")
    want = await swarm.decode(SETTINGS["warm"], swarm.source("quiet"))
    banned: set[PeerId] = set()
    swarm.book._banned = banned
    source = swarm.source()
    first = source.chain[0].peer
    banned.add(first)
    assert await swarm.decode(SETTINGS["warm"], source) == want
    assert source.counts.peers == {peer("A"), peer("B")} - {first}
    banned.update((peer("A"), peer("B")))
    with pytest.raises(CoverageLost):
        await swarm.decode(SETTINGS["warm"], source)
    await swarm.close()


async def test_failures_of_long_ago_no_longer_count() -> None:
    swarm = await Swarm.of(A="0:6")
    for _ in range(4):
        swarm.book.failed(peer("A"), LIED)
    assert swarm.book.state(peer("A")).failures == 4
    swarm.book.state(peer("A")).failed_at -= 10_000
    swarm.book.failed(peer("A"), LIED)
    assert swarm.book.state(peer("A")).failures == 1
    await swarm.close()


async def test_a_record_that_a_look_up_misses_counts_until_its_lease_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    swarm = await Swarm.of(A="0:6")

    async def nothing(model: str) -> dict[PeerId, NodeRecord]:
        return {}

    monkeypatch.setattr(swarm.network.nodes[peer("me")], "records", nothing)
    await swarm.book.refresh()
    assert swarm.book.uncovered() == ()
    later = time.monotonic() + LEASE_S + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    await swarm.book.refresh()
    assert swarm.book.uncovered() == (0, 1, 2, 3, 4, 5)
    monkeypatch.undo()
    await swarm.close()
