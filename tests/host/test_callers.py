"""No caller takes more than its share: streams, passes, bytes and sessions are counted by peer."""

import asyncio
import contextlib
from collections.abc import Awaitable

import pytest

from swarm.errors import LinkBroken, Overloaded
from swarm.host import callers as module
from swarm.host import sessions as sessions_module
from swarm.host.callers import MAX_BYTES, MAX_STREAMS, Caller, Callers
from swarm.host.host import MAX_WAITING
from swarm.host.server import serve_passes
from swarm.host.sessions import Sessions
from swarm.ids import PeerId
from swarm.model.batch import Cache
from swarm.net.memory import MemoryNetwork
from swarm.trust.bans import Bans
from swarm.trust.door import JUNK_ALLOWED, Door
from swarm.wire.frames import read_frame, write_frame
from swarm.wire.messages import PASS_PROTOCOL, Ping, Pong
from tests.waiting import until

BAD, GOOD = PeerId("bad1111111"), PeerId("good111111")


async def waits(entering: Awaitable[None]) -> "asyncio.Future[None]":
    task = asyncio.ensure_future(entering)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_passes_beyond_the_share_wait_for_one_to_end() -> None:
    caller = Caller()
    for _ in range(MAX_WAITING):
        await caller.enter(1)
    waiting = await waits(caller.enter(1))
    await caller.leave(1)
    await waiting


async def test_bytes_beyond_the_share_wait_and_a_lone_pass_never_does() -> None:
    caller = Caller()
    await caller.enter(MAX_BYTES + 1)
    waiting = await waits(caller.enter(1))
    await caller.leave(MAX_BYTES + 1)
    await waiting
    await caller.enter(MAX_BYTES - 1)
    gone = await waits(caller.enter(1))
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await caller.leave(1)
    await caller.enter(1)


def test_streams_are_counted_by_peer_and_forgotten() -> None:
    callers = Callers()
    with contextlib.ExitStack() as open_ones:
        for _ in range(MAX_STREAMS):
            open_ones.enter_context(callers.stream(BAD))
        with pytest.raises(Overloaded), callers.stream(BAD):
            pass
        with callers.stream(GOOD):
            pass
    assert not callers._callers


async def answers(network: MemoryNetwork, name: PeerId, host: PeerId) -> bool:
    stream = await network.nodes[name].open(host, PASS_PROTOCOL)
    try:
        await write_frame(stream, Ping())
        return isinstance((await read_frame(stream))[0], Pong)
    except LinkBroken:
        return False
    finally:
        await stream.close()


async def test_a_flood_of_streams_and_junk_harms_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STREAMS", 3)
    network = MemoryNetwork()
    for name in (BAD, GOOD):
        network.node(name)
    host = PeerId("host111111")
    door = Door(network.node(host), Bans())
    await serve_passes(door, None, door.sent_junk)  # type: ignore[arg-type]
    held = [await network.nodes[BAD].open(host, PASS_PROTOCOL) for _ in range(3)]
    assert not await answers(network, BAD, host)
    assert await answers(network, GOOD, host)
    for stream in held:
        await stream.close()
    await until(lambda: answers(network, BAD, host))
    for _ in range(JUNK_ALLOWED):
        stream = await network.nodes[BAD].open(host, PASS_PROTOCOL)
        with contextlib.suppress(LinkBroken):
            await stream.write(b"\xff" * 4096)
            await stream.read_exactly(1)
        await stream.close()
    assert not await answers(network, BAD, host)
    assert await answers(network, GOOD, host)


def test_who_holds_most_sessions_makes_room() -> None:
    sessions = Sessions(100, lambda: 0.0)
    sessions.open(("good", 0), 0, Cache(1, 1), 20)
    for number in range(50):
        sessions.open(("bad", number), 0, Cache(1, 1), 20)
    assert sessions.get(("good", 0), 0)
    assert (len(sessions), sessions.size_bytes) == (5, 100)
    assert sessions.get(("bad", 49), 0)


def test_sessions_that_hold_nothing_are_counted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "MAX_SESSIONS", 4)
    sessions = Sessions(100, lambda: 0.0)
    sessions.open(("good", 0), 0, Cache(1, 1), 0)
    for number in range(50):
        sessions.open(("bad", number), 0, Cache(1, 1), 0)
    assert len(sessions) == 5
    assert sessions.get(("good", 0), 0)
