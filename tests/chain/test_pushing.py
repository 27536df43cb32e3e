"""Spans push to each other and the head answers: who talks to whom, whose word counts, and whose sessions are whose."""

import asyncio

import numpy as np
import pytest

from swarm.chain.answers import HopFailed
from swarm.decode.settings import Cache, DecodeSettings
from swarm.errors import CacheMiss, CoverageLost, DialFailed, PassFailed
from swarm.host.host import Answer
from swarm.ids import PeerId
from swarm.net.transport import Stream
from swarm.wire.frames import Message, Tensors, read_frame, write_frame
from swarm.wire.messages import ANSWER_PROTOCOL, PASS_PROTOCOL, PassAnswer, PassRequest, Ping, Pong, RouteHop
from swarm.wire.tensors import Tensor
from tests.chain.swarm import Swarm, peer
from tests.chain.test_bad_answers import outcome, put
from tests.chain.test_exactness import SETTINGS

NAMES = ("A", "B", "C")
CHAIN = {"A": "0:2", "B": "2:4", "C": "4:6"}


async def test_hidden_states_never_pass_through_the_coordinator() -> None:
    swarm = await Swarm.of(**CHAIN)
    seen = listen(swarm)
    await swarm.decode(SETTINGS["greedy"])
    assert {(sender, names) for sender, names in seen} == {(peer("C"), ("ids", "log_probs", "log_tail"))}
    assert len(seen) == 16
    links = {name: set(swarm.links_of[name]._links) for name in ("me", *NAMES)}
    assert links["me"] == {(peer(name), PASS_PROTOCOL) for name in NAMES}
    assert links["A"] == {(peer("B"), PASS_PROTOCOL)}
    assert links["B"] == {(peer("C"), PASS_PROTOCOL)}
    assert links["C"] == {(peer("me"), ANSWER_PROTOCOL)}
    await swarm.close()


@pytest.mark.parametrize("me", NAMES)
async def test_the_coordinator_may_be_any_hop(me: str) -> None:
    lone = await Swarm.of(A="0:6")
    want = await lone.decode(SETTINGS["warm"])
    await lone.close()
    swarm = await Swarm.of(me=me, **CHAIN)
    assert await swarm.decode(SETTINGS["warm"]) == want
    assert peer(me) not in {name for name, _ in swarm.links_of[me]._links}
    await swarm.close()


async def test_hops_of_one_peer_that_follow_each_other_stay_there() -> None:
    swarm = await Swarm.of(A="0:6")
    want = await swarm.decode(SETTINGS["greedy"])
    request = PassRequest(
        request="x", step=0, attempt=0, model=swarm.book.model, start=0, stop=2, rows=1, columns=22, budget_ms=5000,
        reply_to=peer("me"), session="0" * 32,
        route=[RouteHop(peer=peer("A"), start=2, stop=3), RouteHop(peer=peer("A"), start=3, stop=6)],
    )  # fmt: skip
    canvas = np.array([[*want[:6], *[500] * 16]], np.int32)
    tensors = Tensor.of("ids", canvas), Tensor.of("positions", np.arange(6, 22, dtype=np.int32))
    with swarm.answers.expect(request.key, (peer("A"),) * 3) as future:
        await swarm.links.send(peer("A"), PASS_PROTOCOL, request, tensors)
        answer, rows = await asyncio.wait_for(future, 5.0)
    assert len(answer.computed_us) == 3
    assert rows["ids"].array().shape == (16, 256)
    assert set(swarm.links_of["A"]._links) == {(peer("me"), ANSWER_PROTOCOL)}
    await swarm.close()


async def test_requests_at_once_share_links() -> None:
    swarm = await Swarm.of(**CHAIN)
    want = await swarm.decode(SETTINGS["warm"])
    many = await asyncio.gather(*(swarm.decode(SETTINGS["warm"], swarm.source(f"r{n}")) for n in range(8)))
    assert all(answer == want for answer in many)
    assert all(len(links._links) <= len(NAMES) for links in swarm.links_of.values())
    await swarm.close()


async def test_who_cannot_be_reached_by_its_neighbour_is_left_out_of_this_request_only() -> None:
    swarm = await Swarm.of(A="0:3", B="3:6", C="3:6")
    want = await swarm.decode(SETTINGS["greedy"], swarm.source("quiet"))
    await swarm.links_of["A"].close()
    source = swarm.source()
    victim = source.chain[1].peer
    refuse_dials(swarm, "A", victim)
    assert await swarm.decode(SETTINGS["greedy"], source) == want
    assert source.counts.replays == 1
    assert swarm.book.state(victim).failures == swarm.book.state(peer("A")).failures == 0
    await swarm.close()


async def test_who_accuses_others_twice_is_left_out_too() -> None:
    swarm = await Swarm.of(A="0:3", B="3:6", C="3:6", D="3:6", E="0:3")
    want = await swarm.decode(SETTINGS["greedy"], swarm.source("quiet"))
    source = swarm.source()
    accuser = "A" if source.chain[0].peer == peer("A") else "E"
    await swarm.links_of[accuser].close()
    for name in ("B", "C", "D"):
        refuse_dials(swarm, accuser, peer(name))
    assert await swarm.decode(SETTINGS["greedy"], source) == want
    assert source.counts.replays == 2
    assert peer(accuser) not in {hop.peer for hop in source.chain}
    await swarm.close()


async def test_a_peer_that_answers_pings_but_passes_nothing_on_is_found() -> None:
    swarm = await Swarm.of(A="0:3", B="3:6", C="3:6")
    want = await swarm.decode(SETTINGS["greedy"], swarm.source("quiet"))
    swarm.timeout_s = 0.2
    source = swarm.source()
    victim = source.chain[1].peer
    swarm.book.state(victim).pass_s.clear()

    async def swallow(stream: Stream) -> None:
        while True:
            message, _ = await read_frame(stream)
            if isinstance(message, Ping):
                await write_frame(stream, Pong())

    await swarm.network.nodes[victim].serve(PASS_PROTOCOL, swallow)
    await swarm.links.close()
    await swarm.links_of["A"].close()
    assert await swarm.decode(SETTINGS["greedy"], source) == want
    assert source.counts.replays == 2
    assert victim not in {hop.peer for hop in source.chain}
    await swarm.close()


async def test_wrong_guesses_do_not_end_a_request() -> None:
    """The head keeps silent, and those before it are suspected first, until none of them is left."""
    swarm = await Swarm.of(A="0:2", B="2:4", C="2:4", D="4:6", E="4:6")
    want = await swarm.decode(SETTINGS["greedy"], swarm.source("quiet"))
    swarm.timeout_s = 0.1
    source = swarm.source()
    victim = source.chain[2].peer
    for name in ("B", "C"):
        swarm.book.state(peer(name)).pass_s[1] = 60.0

    async def swallow(stream: Stream) -> None:
        while True:
            message, _ = await read_frame(stream)
            if isinstance(message, Ping):
                await write_frame(stream, Pong())

    await swarm.network.nodes[victim].serve(PASS_PROTOCOL, swallow)
    for name in ("me", "B", "C"):
        await swarm.links_of[name].close()
    assert await swarm.decode(SETTINGS["greedy"], source) == want
    assert victim not in {hop.peer for hop in source.chain}
    await swarm.close()


async def test_only_the_head_answers_and_only_for_its_pass() -> None:
    swarm = await Swarm.of(**CHAIN)
    key = ("r", 3, 1)
    answer = PassAnswer(request="r", step=3, attempt=1, computed_us=[1])
    with swarm.answers.expect(key, (peer("A"), peer("C"))) as future:
        swarm.answers.deliver(peer("B"), answer, {})
        for change in ({"request": "s"}, {"step": 2}, {"attempt": 0}):
            swarm.answers.deliver(peer("C"), answer.model_copy(update=change), {})
        assert not future.done()
        swarm.answers.deliver(peer("C"), answer, {})
        swarm.answers.deliver(peer("A"), answer, {})
        assert await future == (answer, {})
    swarm.answers.deliver(peer("C"), answer, {})
    with swarm.answers.expect(key, (peer("A"), peer("C"))) as future:
        swarm.answers.deliver(peer("A"), answer, {})
        with pytest.raises(HopFailed, match="in the place of the head"):
            await future
    await swarm.close()


@pytest.mark.parametrize("data", [b"\xff" * 64, b"\0\0\0\x02\0\0\0\0{}"])
async def test_bytes_that_do_not_decode_fail_the_pass_of_their_sender(data: bytes) -> None:
    swarm = await Swarm.of(**CHAIN)
    stranger = swarm.network.node(peer("S"))
    with swarm.answers.expect(("r", 0, 0), (peer("A"), peer("C"))) as future:
        await (await stranger.open(peer("me"), ANSWER_PROTOCOL)).write(data)
        await asyncio.sleep(0.01)
        assert not future.done()
        await (await swarm.network.nodes[peer("C")].open(peer("me"), ANSWER_PROTOCOL)).write(data)
        with pytest.raises(HopFailed, match="do not decode") as failed:
            await asyncio.wait_for(future, 5.0)
    assert failed.value.peer == peer("C")
    await swarm.close()


async def test_a_pass_from_part_0_comes_from_its_coordinator() -> None:
    swarm = await Swarm.of(A="0:6")
    stranger = swarm.network.node(peer("S"))
    request = PassRequest(
        request="x", step=0, attempt=0, model=swarm.book.model, start=0, stop=3, rows=1, columns=4, budget_ms=5000,
        reply_to=peer("me"), session="0" * 32,
    )  # fmt: skip
    stream = await stranger.open(peer("A"), PASS_PROTOCOL)
    await write_frame(stream, request, [Tensor.of("ids", np.zeros((1, 4), np.int32))])
    with pytest.raises(PassFailed, match="ended"):
        await stream.read_exactly(1)
    assert swarm.hosts["A"].passes == 0
    await swarm.close()


async def test_a_session_is_open_to_those_who_know_its_secret() -> None:
    swarm = await Swarm.of(A="0:3", B="3:6")
    settings = DecodeSettings(cache=Cache.DUAL, block_length=8, temperature=0.8, seed=4, stop_at_eos=False)
    want = await swarm.decode(settings, swarm.source("quiet"))
    seen: list[PassRequest] = []
    tries: list[object] = []

    async def meddle(request: PassRequest, answer: Answer) -> Answer:
        if request.step == 2:
            seen.append(request)
            changes = {"request": request.request, "stop": 3, "columns": 8, "epoch": request.epoch}
            active = Tensor.of("active", np.arange(6, 14, dtype=np.int32))
            step = {"ids": Tensor.of("ids", np.full((1, 8), 7, np.int32)), "active": active}
            tries.append(await outcome(swarm, "A", changes, step))
            prime = {"epoch": request.epoch.model_copy(update={"primes": True}), "columns": 22}  # type: ignore[union-attr]
            canvas = {"ids": Tensor.of("ids", np.full((1, 22), 7, np.int32))}
            tries.append(await outcome(swarm, "A", changes | prime, canvas))
        return answer

    swarm.hosts["B"].twist = meddle
    assert await swarm.decode(settings, swarm.source("mine")) == want
    assert isinstance(tries[0], CacheMiss)
    assert isinstance(tries[1], tuple)
    assert len({request.session for request in seen}) == 1
    await swarm.close()


async def test_bad_rows_count_against_the_head_alone() -> None:
    swarm = await Swarm.of(A="0:3", B="3:6")
    swarm.hosts["B"].twist = bad_rows
    with pytest.raises(CoverageLost):
        await swarm.decode(SETTINGS["greedy"])
    assert swarm.book.state(peer("B")).failures == 1
    assert swarm.book.state(peer("A")).failures == 0
    await swarm.close()


async def bad_rows(request: PassRequest, answer: Answer) -> Answer:
    change = put(np.nan, (0, 0))
    return answer[0], tuple(
        Tensor.of(t.name, change(t.array())) if t.name == "log_probs" else t  # type: ignore[operator]
        for t in answer[1]
    )


def listen(swarm: Swarm) -> list[tuple[PeerId, tuple[str, ...]]]:
    """What the coordinator is told from now on: sender and names of tensors."""
    seen = []
    deliver = swarm.answers.deliver

    def noting(sender: PeerId, message: Message, tensors: Tensors) -> None:
        seen.append((sender, tuple(tensors)))
        deliver(sender, message, tensors)

    swarm.answers.deliver = noting  # type: ignore[method-assign]
    return seen


def refuse_dials(swarm: Swarm, name: str, to: PeerId) -> None:
    node = swarm.network.nodes[peer(name)]
    dial = node.open

    async def refusing(target: PeerId, protocol: str) -> Stream:
        if target == to:
            raise DialFailed("no way there")
        return await dial(target, protocol)

    node.open = refusing  # type: ignore[method-assign]


@pytest.mark.parametrize(("latency_s", "packs"), [(5.0, True), (0.0, False)])
async def test_a_far_head_packs_its_answers_and_a_near_one_does_not(latency_s: float, packs: bool) -> None:
    swarm = await Swarm.of(A="0:3", B="3:6")
    seen: list[bool] = []
    swarm.hosts["B"].before = lambda request: seen.append(request.packs)
    swarm.book.state(peer("B")).latency_s = latency_s
    await swarm.decode(SETTINGS["greedy"])
    assert seen[0] is packs
    await swarm.close()
