"""A request that ends, however it does, leaves no work and no memory behind at its peers."""

import asyncio
import threading

import pytest

from swarm.errors import CoverageLost
from swarm.host import batcher
from swarm.ids import Span
from swarm.model.forward import Job, run_jobs
from swarm.model.span import SpanModule
from tests.chain.swarm import Swarm, peer
from tests.chain.test_exactness import SETTINGS
from tests.chain.test_hedging import CACHED
from tests.waiting import until

SPANS = {"A": "0:3", "B": "3:6"}


async def test_sessions_are_freed_when_a_request_ends() -> None:
    swarm = await Swarm.of(**SPANS)
    first, second = swarm.source("one"), swarm.source("two")
    want = await swarm.decode(CACHED, first)
    assert await swarm.decode(CACHED, second) == want
    assert [len(host.sessions) for host in swarm.hosts.values()] == [2, 2]
    first.close()
    await until(lambda: [len(host.sessions) for host in swarm.hosts.values()] == [1, 1])
    assert await swarm.decode(CACHED, second) == want
    second.close()
    await until(lambda: not any(len(host.sessions) for host in swarm.hosts.values()))
    await swarm.close()


async def test_only_who_knows_the_session_can_release_it() -> None:
    swarm = await Swarm.of(**SPANS)
    source = swarm.source()
    await swarm.decode(CACHED, source)
    swarm.relays["A"].release(peer("B"), source._session)
    swarm.relays["A"].release(peer("me"), "0" * 32)
    assert len(swarm.hosts["A"].sessions) == 1
    await swarm.close()


async def test_waiting_passes_of_a_request_that_was_cancelled_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    swarm = await Swarm.of(A="0:6")
    want = await swarm.decode(SETTINGS["warm"])
    goes_on, ran = threading.Event(), []

    def slow(module: SpanModule, span: Span, jobs: list[Job]) -> object:
        assert goes_on.wait(30)
        ran.extend(jobs)
        return run_jobs(module, span, jobs)

    monkeypatch.setattr(batcher, "run_jobs", slow)
    waiting = swarm.hosts["A"]._batcher._queue
    first, gone = swarm.source("first"), swarm.source("gone")
    staying = asyncio.create_task(swarm.decode(SETTINGS["warm"], first))
    await until(lambda: first.counts.passes == 1 and not waiting)
    going = asyncio.create_task(swarm.decode(SETTINGS["warm"], gone))
    await until(lambda: len(waiting) == 1)
    going.cancel()
    await asyncio.wait({going})
    gone.close()
    await until(lambda: not waiting)
    goes_on.set()
    assert await staying == want
    assert len(ran) == first.counts.passes == 16
    await swarm.close()


async def test_a_request_that_failed_asks_nothing_of_the_dead() -> None:
    swarm = await Swarm.of(**SPANS)
    source = swarm.source()
    await swarm.decode(CACHED, source)
    swarm.network.kill(peer("B"))
    with pytest.raises(CoverageLost):
        await swarm.decode(CACHED, source)
    source.close()
    await until(lambda: len(swarm.hosts["A"].sessions) == 0)
    await swarm.close()
