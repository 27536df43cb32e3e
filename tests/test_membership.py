"""Nodes of one process on a network in memory: how they join, spread, pause, move and leave, as others see it."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from glossd.config import Settings
from glossd.hosting import Hosting
from glossd.library import EMBEDDED
from glossd.models import Model, Recipe
from glossd.moving import Pace
from glossd.node import Node
from glossd.observe import Metrics
from swarm.chain.drive import drive
from swarm.decode.decoder import Decoder
from swarm.decode.settings import DecodeSettings
from swarm.errors import BadRequest, CoverageLost, IdentityError, StartError
from swarm.host.host import SpanHost
from swarm.ids import RequestId, Span
from swarm.model.tokenizer import TextTokenizer
from swarm.net.memory import MemoryNetwork
from swarm.plan.routes import uncovered
from swarm.wire.records import NodeRecord
from tests.chain.swarm import ALPHABET, canvas, checkpoint, peer
from tests.waiting import until

N_PARTS = 6
LAYER_BYTES = 190_000
QUICK = Pace(look_s=0.02, settle_s=0.1, rest_s=0.05, known_s=0.02, quiet_s=5.0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.chain.peers.REFRESH_S", 0.02)


class World:
    def __init__(self, folder: Path) -> None:
        self.network = MemoryNetwork()
        self.nodes: list[Node] = []
        self.names: list[str] = []
        self._folder = folder
        self._model = Model(checkpoint(), TextTokenizer(EMBEDDED / "gloss-tiny"), Recipe())

    def made(self, name: str, layers: str, parts: int = 6) -> Node:
        """A node that has not joined yet, with room for so many layers."""
        resolved = Settings.model_validate(
            {"state_dir": self._folder / name, "layers": layers, "threads": 1, "dtype": "float32"}
        )
        node = Node(resolved, self._model, self.network.node(peer(name)), Metrics(), QUICK)
        node._hosting._budget_bytes = parts * LAYER_BYTES
        self.nodes.append(node)
        self.names.append(name)
        return node

    async def node(self, name: str, layers: str, parts: int = 6) -> Node:
        node = self.made(name, layers, parts)
        await node.join()
        return node

    async def records(self) -> dict[str, NodeRecord]:
        """What the directory says, by node."""
        first = self.nodes[0]
        names = {node.peer_id: name for name, node in zip(self.names, self.nodes, strict=True)}
        return {names[peer]: record for peer, record in (await first.network.records(first.book.model)).items()}

    async def covered(self) -> bool:
        online = [record.span for record in (await self.records()).values() if record.state == "online"]
        return not uncovered(online, N_PARTS)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    yield made
    for node in made.nodes:
        await node.leave()


async def answer(node: Node, request: str = "r") -> list[int]:
    config = node.model.checkpoint.config
    decoder = Decoder(canvas(), DecodeSettings(), config.mask_id, config.eos_id)
    async with asyncio.timeout(60):
        async for _ in drive(decoder, node.new_source(RequestId(request)), lambda: False):
            pass
    return [int(token) for token in decoder.canvas]


async def test_a_node_shows_in_every_state_until_it_is_gone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = await world.node("W", "none")
    loading, go_on = asyncio.Event(), asyncio.Event()
    load = Hosting.load

    async def slowly(self: Hosting, span: Span) -> SpanHost:
        loading.set()
        await go_on.wait()
        return await load(self, span)

    monkeypatch.setattr(Hosting, "load", slowly)
    node = world.made("A", "0:6")
    joining = asyncio.create_task(node.join())
    await loading.wait()
    record = (await world.records())["A"]
    assert (record.state, record.span) == ("joining", Span(0, 6))
    await watcher.book.refresh()
    assert watcher.book.uncovered(), "nobody plans with a node that still loads"
    go_on.set()
    await joining
    assert (await world.records())["A"].state == "online"
    await node.say_leaving()
    assert (await world.records())["A"].state == "draining"
    await node.leave()
    assert (await world.records())["A"].state == "offline"
    await watcher.book.refresh()
    assert set(watcher.book.records()) == set(), "gone at once, not when its lease ends"


async def test_twenty_nodes_that_start_at_once_cover_the_model(world: World) -> None:
    nodes = [world.made(f"N{name}", "auto", parts=2) for name in ALPHABET[:20]]
    await asyncio.gather(*(node.join() for node in nodes))
    await until(world.covered)
    spans = [node.span for node in nodes if node.span is not None]
    assert len(spans) == 20
    assert all(len(span) == 2 for span in spans)
    hosted = [sum(part in span for span in spans) for part in range(N_PARTS)]
    assert max(hosted) <= 6 * min(hosted)


async def test_a_node_moves_to_where_a_peer_has_left(world: World) -> None:
    asker = await world.node("W", "none")
    leaver = await world.node("A", "0:3")
    mover = await world.node("M", "auto", parts=3)
    await world.node("B", "3:6")
    assert mover.span == Span(3, 6)
    await asker.book.refresh()
    want = await answer(asker)
    await leaver.leave()
    await until(lambda: mover.span == Span(0, 3))
    await until(world.covered)
    await until(lambda: not asker.book.uncovered())
    assert await answer(asker, "again") == want
    await until(lambda: [host.span for host in mover._hosting.spans] == [Span(0, 3)])


async def test_of_two_nodes_that_could_move_one_stays(world: World) -> None:
    await world.node("W", "none")
    leaver = await world.node("A", "0:3")
    first = await world.node("M", "auto", parts=3)
    second = world.made("P", "3:6", parts=3)
    await second.join()
    object.__setattr__(second._settings, "layers", "auto")  # one that came to the same span by itself
    second._start_moving()
    await leaver.leave()

    async def has_settled() -> bool:
        online = [record.span for record in (await world.records()).values()]
        assert any(span.stop == 6 for span in online), "both left"
        return await world.covered()

    await until(has_settled)
    await asyncio.sleep(0.5)
    assert await has_settled()
    assert {first.span, second.span} == {Span(0, 3), Span(3, 6)}
    assert first._mover.moves + second._mover.moves == 1


async def test_paused_it_computes_nothing_and_asks_others(world: World) -> None:
    node, other = await world.node("A", "0:6"), await world.node("B", "0:6")
    await node.book.refresh()
    want = await answer(node)
    assert want == await answer(node)
    host = next(iter(node._hosting.spans))
    await node.pause()
    assert (node.state, (await world.records())["A"].state) == ("paused", "paused")
    before = host.passes
    assert await answer(node, "mine") == want
    await other.book.refresh()
    assert await answer(other, "theirs") == want
    assert (host.passes, node._hosting.spans.running) == (before, 0)
    await node.resume()
    await other.leave()
    await node.book.refresh()
    assert (node.state, (await world.records())["A"].state) == ("online", "online")
    assert await answer(node, "again") == want
    assert host.passes > before


async def test_a_request_that_runs_goes_on_elsewhere_when_its_host_is_paused(world: World) -> None:
    asker = await world.node("W", "none")
    hosts = {name: await world.node(name, "0:6") for name in "AB"}
    await asker.book.refresh()
    want = await answer(asker)
    source = asker.new_source(RequestId("long"))
    config = asker.model.checkpoint.config
    decoder = Decoder(canvas(), DecodeSettings(), config.mask_id, config.eos_id)
    steps = drive(decoder, source, lambda: False)
    await anext(steps)
    used = next(node for node in hosts.values() if node.peer_id == source.chain[0].peer)
    await used.pause()
    async for _ in steps:
        pass
    assert [int(token) for token in decoder.canvas] == want
    assert source.counts.replays == 1


async def test_without_others_a_paused_node_says_what_is_missing(world: World) -> None:
    node = await world.node("A", "0:6")
    await node.pause()
    with pytest.raises(CoverageLost) as lost:
        await answer(node)
    assert lost.value.parts == tuple(range(N_PARTS))


async def test_a_node_that_hosts_nothing_is_not_paused(world: World) -> None:
    node = await world.node("W", "none")
    with pytest.raises(BadRequest, match="hosts nothing"):
        await node.pause()


async def test_a_node_without_room_for_a_part_says_so(world: World) -> None:
    node = world.made("A", "auto", parts=0)
    with pytest.raises(StartError, match="--memory"):
        await node.join()


async def test_of_two_nodes_with_one_identity_the_younger_ends(world: World) -> None:
    node = await world.node("A", "0:6")
    now = int(time.time() * 1000)
    mine = (await world.records())["A"].model_copy(update={"issued_ms": now})
    node._membership.check_twin(mine)
    for started, issued in ((now - 60_000, now - 20_000), (now + 60_000, now + 61_000), (0, now)):
        node._membership.check_twin(mine.model_copy(update={"started_ms": started, "issued_ms": issued}))
    with pytest.raises(IdentityError, match="another running node uses the identity"):
        node._membership.check_twin(mine.model_copy(update={"started_ms": now - 60_000, "issued_ms": now + 10_000}))


async def test_of_two_that_go_to_the_same_place_one_yields(world: World) -> None:
    a, b = await world.node("A", "0:3"), await world.node("B", "0:3")
    for node in (a, b):
        await node._membership.announce("online", Span(0, 3), Span(3, 6))
    rivals = {node.peer_id: len(await node._others(False)) for node in (a, b)}
    assert rivals == {min(rivals): 0, max(rivals): 1}
    for node in (a, b):
        (other,) = await node._others(True)
        assert (other.span, other.serves) == (Span(3, 6), False)


async def test_a_boast_counts_as_far_as_it_was_seen(world: World) -> None:
    asker, boaster = await world.node("W", "none"), await world.node("A", "0:6")
    await asker.book.refresh()
    peer_id, announced = boaster.peer_id, asker.book.records()[boaster.peer_id].throughput
    assert asker.book.throughput(peer_id) == announced
    asker.book.succeeded(peer_id, 64, 2 * 64 / announced, 0.0)
    assert announced / 2 <= asker.book.throughput(peer_id) <= announced
    asker.book.succeeded(peer_id, 64, 1e6, 0.0)
    assert asker.book.throughput(peer_id) < announced / 2
    asker.book.succeeded(peer_id, 64, 1e-9, 0.0)
    assert asker.book.throughput(peer_id) <= announced


async def test_measured_work_is_announced(world: World) -> None:
    node = await world.node("A", "0:6")
    trial = (await world.records())["A"].throughput
    assert trial > 0
    host = next(iter(node._hosting.spans))
    for _ in range(40):
        host._batcher._measure(64, 6, 1.0)
    await node._membership.announce("online", node.span)
    assert (await world.records())["A"].throughput == pytest.approx(64 * 6, rel=0.01)
