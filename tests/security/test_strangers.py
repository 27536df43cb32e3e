"""What strangers can send to a host over the real network; another client is served throughout.

The stranger is a peer of its own identity that writes its bytes by hand.
"""

import asyncio
import contextlib
import json
import random
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest

from swarm.errors import LinkBroken
from swarm.ids import PeerId
from swarm.net.hivemind import HivemindNode
from swarm.net.transport import Stream
from swarm.wire.frames import encode, read_frame, write_frame
from swarm.wire.messages import (
    ANSWER_PROTOCOL,
    BODY_LIMIT,
    HEAD_LIMIT,
    PASS_PROTOCOL,
    PassAnswer,
    PassRequest,
    Ping,
    Pong,
)
from swarm.wire.tensors import Tensor
from tests.faults.bodies import SHORT
from tests.swarmlab.daemons import Daemon, swarm
from tests.swarmlab.history import History
from tests.waiting import until
from tests.wire.mutate import hundred_damaged

pytestmark = pytest.mark.timeout(300)

SEED = 1
A_PING = b"".join(encode(Ping()))
GROWTH_BYTES = 64 * 2**20
"""What a host's memory may grow by while strangers promise it sixty times as much."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Daemon]]:
    with swarm("0:4", "4:8") as daemons:
        yield daemons


@pytest.fixture(scope="module")
def host(nodes: list[Daemon]) -> Daemon:
    return nodes[0]


@pytest.fixture(scope="module")
def history(host: Daemon) -> History:
    return History.by(host, SHORT[:3])


@pytest.fixture
async def stranger(host: Daemon, tmp_path: Path) -> AsyncIterator[HivemindNode]:
    node = await HivemindNode.start(tmp_path / "key", join=[host.join_address])
    try:
        yield node
    finally:
        await node.close()


@pytest.fixture(autouse=True)
def another_client(nodes: list[Daemon], history: History) -> Iterator[None]:
    """Asks both nodes all the while, which need each other, and is answered rightly."""
    with history.load(nodes, 1, SEED):
        yield
    assert not history.problems, history.problems
    assert history.entries


def frame(head: bytes, body_size: int = 0) -> bytes:
    return struct.pack(">II", len(head), body_size) + head


def a_pass(me: PeerId, **changes: object) -> dict[str, object]:
    request = PassRequest(
        request="x", step=0, attempt=0, model="ab" * 32, start=0, stop=8, rows=1, columns=4, budget_ms=2000,
        reply_to=me, session="0" * 32,
    )  # fmt: skip
    return request.model_dump(mode="json") | changes


OVERSIZED = [struct.pack(">II", head, body) for head, body in ((2**31, 0), (2**32 - 1, 0), (HEAD_LIMIT + 1, 0), (0, 9))]
OVERSIZED += [struct.pack(">II", 2, body) + b"{}" for body in (BODY_LIMIT + 1, 2**31, 2**32 - 1)]
MALFORMED = {
    "no json": b"\xff\xfe{",
    "deep": b"[" * HEAD_LIMIT,
    "deep in a field": b'{"kind":"pass","route":' + b"[" * 4000 + b"]" * 4000 + b"}",
    "doubled key": b'{"kind":"ping","kind":"pass"}',
    "unknown kind": b'{"kind":"kill"}',
    "half utf-8": b'{"kind":"p\xc3"}',
    "number": b'{"kind":' + b"9" * 5000 + b"}",
    "list": b"[]",
}


@pytest.mark.parametrize("data", OVERSIZED, ids=bytes.hex)
async def test_oversized_frames_end_their_stream(host: Daemon, stranger: HivemindNode, data: bytes) -> None:
    assert await is_ended_by(host, stranger, data)


@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_heads_end_their_stream(host: Daemon, stranger: HivemindNode, name: str) -> None:
    assert await is_ended_by(host, stranger, frame(MALFORMED[name]))


async def test_tensors_beyond_all_limits_end_their_stream(host: Daemon, stranger: HivemindNode) -> None:
    for shape in ([2**31 - 1] * 4, [0, 2**31 - 1, 2**31 - 1], [BODY_LIMIT]):
        tensors = [{"name": "ids", "dtype": "int32", "shape": shape}]
        head = json.dumps(a_pass(stranger.peer_id, tensors=tensors)).encode()
        assert await is_ended_by(host, stranger, frame(head, BODY_LIMIT))


async def test_memory_is_taken_for_what_came_and_not_for_what_was_promised(
    host: Daemon, stranger: HivemindNode
) -> None:
    tensors = [{"name": "ids", "dtype": "uint16", "shape": [BODY_LIMIT // 2]}]
    promise = frame(json.dumps(a_pass(stranger.peer_id, tensors=tensors)).encode(), BODY_LIMIT)
    before = memory(host)
    streams = [await stranger.open(peer_of(host), PASS_PROTOCOL) for _ in range(60)]
    for stream in streams:
        with contextlib.suppress(LinkBroken):
            await stream.write(promise, b"x" * 1000)
    assert memory(host) - before < GROWTH_BYTES
    for stream in streams:
        await stream.close()
    await answers_pings(host, stranger)


async def test_junk_by_the_megabyte(host: Daemon, stranger: HivemindNode) -> None:
    """Its sender is not listened to any more."""
    rng = random.Random(SEED)
    before = memory(host)
    for number in range(80):
        stream = await stranger.open(peer_of(host), (PASS_PROTOCOL, ANSWER_PROTOCOL)[number % 2])
        with contextlib.suppress(LinkBroken):
            await stream.write(rng.randbytes(2**20))
        await stream.close()
    assert await is_ended_by(host, stranger, A_PING)
    assert memory(host) - before < GROWTH_BYTES


async def test_damaged_frames(host: Daemon, stranger: HivemindNode) -> None:
    ids = Tensor.raw("ids", "uint16", (1, 4), bytes(8))
    valid = b"".join(encode(PassRequest.model_validate(a_pass(stranger.peer_id)), [ids]))
    for damaged in hundred_damaged(valid, SEED):
        stream = await stranger.open(peer_of(host), PASS_PROTOCOL)
        with contextlib.suppress(LinkBroken):
            await stream.write(damaged)
        await stream.close()
    assert await is_ended_by(host, stranger, A_PING)


async def test_answers_to_what_nobody_asked(host: Daemon, stranger: HivemindNode) -> None:
    stream = await stranger.open(peer_of(host), ANSWER_PROTOCOL)
    with contextlib.suppress(LinkBroken):
        for step in range(200):
            await write_frame(stream, PassAnswer(request="x", step=step, attempt=0, computed_us=[1]))
    await stream.close()


async def test_more_streams_than_a_peer_may_hold(host: Daemon, stranger: HivemindNode) -> None:
    files = psutil.Process(host.pid).num_fds()
    streams: list[Stream] = []
    for _ in range(200):
        streams.append(await stranger.open(peer_of(host), PASS_PROTOCOL))
        with contextlib.suppress(LinkBroken):
            await streams[-1].write(b"\0\0")
    assert psutil.Process(host.pid).num_fds() - files < 150
    for stream in streams:
        await stream.close()
    await until(lambda: psutil.Process(host.pid).num_fds() <= files + 20, 30)
    await answers_pings(host, stranger)


async def test_passes_for_a_model_that_nobody_hosts(host: Daemon, stranger: HivemindNode) -> None:
    """Four hundred well-formed requests at once: each is refused, none is waited for."""
    stream = await stranger.open(peer_of(host), PASS_PROTOCOL)
    refused: asyncio.Queue[object] = asyncio.Queue()

    async def collect(back: Stream) -> None:
        with contextlib.suppress(LinkBroken):
            while True:
                refused.put_nowait((await read_frame(back))[0])

    await stranger.serve(ANSWER_PROTOCOL, collect)
    ids = Tensor.raw("ids", "uint16", (1, 4), bytes(8))
    for step in range(400):
        await write_frame(stream, PassRequest.model_validate(a_pass(stranger.peer_id, step=step)), [ids])
    async with asyncio.timeout(60):
        codes = {getattr(await refused.get(), "code", None) for _ in range(400)}
    assert codes <= {"refused", "overloaded"}
    await stream.close()


async def is_ended_by(host: Daemon, stranger: HivemindNode, data: bytes) -> bool:
    stream = await stranger.open(peer_of(host), PASS_PROTOCOL)
    try:
        await stream.write(data)
        async with asyncio.timeout(30):
            await stream.read_exactly(1)
    except LinkBroken:
        return True
    finally:
        await stream.close()
    return False


async def answers_pings(host: Daemon, stranger: HivemindNode) -> None:
    async with asyncio.timeout(30):
        while True:
            stream = await stranger.open(peer_of(host), PASS_PROTOCOL)
            try:
                await write_frame(stream, Ping())
                assert (await read_frame(stream))[0] == Pong()
                return
            except LinkBroken:  # it still holds more streams than it may
                await asyncio.sleep(0.1)
            finally:
                await stream.close()


def peer_of(host: Daemon) -> PeerId:
    return PeerId(host.join_address.rpartition("/p2p/")[2])


def memory(host: Daemon) -> int:
    return psutil.Process(host.pid).memory_info().rss
