import asyncio

import pytest

from swarm.errors import DialFailed, LinkBroken
from swarm.ids import ModelId, PeerId
from swarm.net.directory import LEASE_S
from swarm.net.memory import WINDOW_BYTES, MemoryNetwork, MemoryNode
from swarm.net.transport import Stream
from swarm.wire.records import NodeRecord

A, B = PeerId("peerAAAAAA"), PeerId("peerBBBBBB")
MODEL = ModelId("ab" * 32)
ECHO = "/echo"


def record_of(peer: PeerId) -> NodeRecord:
    return NodeRecord(
        peer=peer, model=MODEL, tokenizer="cd" * 32, start=0, stop=4, dtype="float32", throughput=1.0, issued_ms=0
    )


async def echo(stream: Stream) -> None:
    while True:
        await stream.write(await stream.read_exactly(4))


async def silent(stream: Stream) -> None:
    await asyncio.Event().wait()


async def hang(work: object) -> None:
    """Assert that `work` has not ended after the loop has run everything that can run."""
    task = asyncio.ensure_future(work)  # type: ignore[arg-type]
    for _ in range(50):
        await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def network() -> MemoryNetwork:
    return MemoryNetwork()


@pytest.fixture
def nodes(network: MemoryNetwork) -> tuple[MemoryNode, MemoryNode]:
    return network.node(A), network.node(B)


async def test_bytes_go_there_and_back(nodes: tuple[MemoryNode, MemoryNode]) -> None:
    a, b = nodes
    await b.serve(ECHO, echo)
    stream = await a.open(B, ECHO)
    assert stream.peer == B
    await stream.write(b"pi", memoryview(b"ngpong"))
    assert await stream.read_exactly(4) == b"ping"
    assert await stream.read_exactly(4) == b"pong"


async def test_a_reader_may_want_more_than_the_window(nodes: tuple[MemoryNode, MemoryNode]) -> None:
    a, b = nodes
    size = 20 * WINDOW_BYTES
    sizes = []

    async def sink(stream: Stream) -> None:
        sizes.append(len(await stream.read_exactly(size)))
        await stream.write(b"done")

    await b.serve(ECHO, sink)
    stream = await a.open(B, ECHO)
    await stream.write(*[bytes(WINDOW_BYTES)] * 20)
    assert await stream.read_exactly(4) == b"done"
    assert sizes == [size]


async def test_a_writer_waits_for_a_slow_reader(nodes: tuple[MemoryNode, MemoryNode]) -> None:
    a, b = nodes
    await b.serve(ECHO, silent)
    stream = await a.open(B, ECHO)
    await hang(stream.write(*[bytes(WINDOW_BYTES)] * 20))


async def test_a_stream_that_a_handler_leaves_ends_after_its_last_bytes(nodes: tuple[MemoryNode, MemoryNode]) -> None:
    a, b = nodes

    async def once(stream: Stream) -> None:
        await stream.write(b"last")

    await b.serve(ECHO, once)
    stream = await a.open(B, ECHO)
    assert await stream.read_exactly(4) == b"last"
    with pytest.raises(LinkBroken):
        await stream.read_exactly(1)
    with pytest.raises(LinkBroken):
        await stream.write(b"more")


async def test_closing_wakes_whoever_reads(nodes: tuple[MemoryNode, MemoryNode]) -> None:
    a, b = nodes
    await b.serve(ECHO, silent)
    stream = await a.open(B, ECHO)
    reading = asyncio.create_task(stream.read_exactly(1))
    await asyncio.sleep(0)
    await stream.close()
    with pytest.raises(LinkBroken):
        await reading


async def test_what_cannot_be_dialled(network: MemoryNetwork, nodes: tuple[MemoryNode, MemoryNode]) -> None:
    a, b = nodes
    await b.serve(ECHO, echo)
    for peer, protocol in ((PeerId("nobody"), ECHO), (B, "/other"), (A, ECHO)):
        with pytest.raises(DialFailed):
            await a.open(peer, protocol)
    await a.close()
    with pytest.raises(DialFailed):
        await a.open(B, ECHO)


async def test_a_killed_node_breaks_its_streams(network: MemoryNetwork, nodes: tuple[MemoryNode, MemoryNode]) -> None:
    a, b = nodes
    ended = asyncio.Event()

    async def served(stream: Stream) -> None:
        try:
            await silent(stream)
        finally:
            ended.set()

    await b.serve(ECHO, served)
    stream = await a.open(B, ECHO)
    reading = asyncio.create_task(stream.read_exactly(1))
    await asyncio.sleep(0)
    network.kill(B)
    with pytest.raises(LinkBroken):
        await reading
    with pytest.raises(LinkBroken):
        await stream.write(b"x")
    with pytest.raises(DialFailed):
        await a.open(B, ECHO)
    await ended.wait()
    back = network.node(B)
    await back.serve(ECHO, echo)
    await (await a.open(B, ECHO)).write(b"ping")


async def test_a_killed_node_frees_writers_that_wait(
    network: MemoryNetwork, nodes: tuple[MemoryNode, MemoryNode]
) -> None:
    a, b = nodes
    await b.serve(ECHO, silent)
    stream = await a.open(B, ECHO)
    writing = asyncio.create_task(stream.write(*[bytes(WINDOW_BYTES)] * 20))
    await asyncio.sleep(0)
    network.kill(B)
    with pytest.raises(LinkBroken):
        await writing


async def test_a_frozen_node_takes_and_says_nothing(
    network: MemoryNetwork, nodes: tuple[MemoryNode, MemoryNode]
) -> None:
    a, b = nodes
    await b.serve(ECHO, echo)
    old = await a.open(B, ECHO)
    network.freeze(B)
    new = await a.open(B, ECHO)
    for stream in (old, new):
        await stream.write(b"ping")
        await hang(stream.read_exactly(4))
    network.thaw(B)
    for stream in (old, new):
        assert await stream.read_exactly(4) == b"ping"


async def test_a_handler_that_fails_ends_its_stream_only(nodes: tuple[MemoryNode, MemoryNode]) -> None:
    a, b = nodes

    async def faulty(stream: Stream) -> None:
        if await stream.read_exactly(1) == b"x":
            raise RuntimeError("a fault of the handler")
        await stream.write(b"fine")

    await b.serve(ECHO, faulty)
    bad, good = await a.open(B, ECHO), await a.open(B, ECHO)
    await bad.write(b"x")
    with pytest.raises(LinkBroken):
        await bad.read_exactly(1)
    await good.write(b"y")
    assert await good.read_exactly(4) == b"fine"


async def test_records_last_as_long_as_their_lease() -> None:
    now = 100.0
    network = MemoryNetwork(clock=lambda: now)
    a, b = network.node(A), network.node(B)
    await a.announce(record_of(A))
    now += LEASE_S / 2
    await b.announce(record_of(B))
    assert set(await a.records(MODEL)) == {A, B}
    assert await a.records(ModelId("cd" * 32)) == {}
    network.kill(A)
    assert set(await b.records(MODEL)) == {A, B}
    now += LEASE_S / 2
    assert set(await b.records(MODEL)) == {B}
    assert (await b.records(MODEL))[B].issued_ms == 106_000
    for _ in range(2):
        await b.withdraw(MODEL)
        assert {peer: record.state for peer, record in (await b.records(MODEL)).items()} == {B: "offline"}
    now += LEASE_S
    assert await b.records(MODEL) == {}


async def test_a_node_announces_only_itself(nodes: tuple[MemoryNode, MemoryNode]) -> None:
    with pytest.raises(ValueError, match="cannot announce"):
        await nodes[0].announce(record_of(B))


async def test_a_frozen_node_renews_nothing(network: MemoryNetwork, nodes: tuple[MemoryNode, MemoryNode]) -> None:
    network.freeze(B)
    await nodes[1].announce(record_of(B))
    assert await nodes[0].records(MODEL) == {}
