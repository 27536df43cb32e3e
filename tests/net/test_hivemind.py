"""The real network: two nodes, each with its own p2pd, in one process."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from swarm.errors import DialFailed, IdentityError, LinkBroken, NetworkDown, StartError
from swarm.ids import ModelId, PeerId
from swarm.net.hivemind import HivemindNode
from swarm.net.identity import load_or_create
from swarm.net.transport import Stream
from swarm.wire.envelope import seal
from swarm.wire.frames import read_frame, write_frame
from swarm.wire.messages import PASS_PROTOCOL, PassAnswer
from swarm.wire.records import NodeRecord
from swarm.wire.tensors import Tensor
from tests.waiting import until

MODEL = ModelId("ab" * 32)
NOBODY = "QmcgpsyWgH8Y8ajJz1Cu72KnS5uo2Aa2LpzU7kinSupNKC"


def record_of(peer: PeerId, model: ModelId = MODEL) -> NodeRecord:
    return NodeRecord(
        peer=peer, model=model, tokenizer="cd" * 32, start=0, stop=4, dtype="float32", throughput=1.0, issued_ms=0
    )


async def echo(stream: Stream) -> None:
    while True:
        message, tensors = await read_frame(stream)
        await write_frame(stream, message, list(tensors.values()))


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[tuple[HivemindNode, HivemindNode]]:
    a = await HivemindNode.start(tmp_path / "a")
    try:
        b = await HivemindNode.start(tmp_path / "b", join=await a.addresses())
        try:
            yield a, b
        finally:
            await b.close()
    finally:
        await a.close()


async def test_frames_go_there_and_back(nodes: tuple[HivemindNode, HivemindNode], tmp_path: Path) -> None:
    a, b = nodes
    assert b.peer_id == load_or_create(tmp_path / "b").peer_id
    await b.serve(PASS_PROTOCOL, echo)
    stream = await a.open(b.peer_id, PASS_PROTOCOL)
    assert stream.peer == b.peer_id
    hidden = np.arange(2**18, dtype=np.float32)
    message = PassAnswer(request="r", step=1, attempt=0, computed_us=[1])
    for _ in range(3):
        await write_frame(stream, message, [Tensor.of("hidden", hidden)])
        answer, tensors = await read_frame(stream)
        assert isinstance(answer, PassAnswer)
        assert np.array_equal(tensors["hidden"].array(), hidden)
    await stream.close()
    with pytest.raises(LinkBroken):
        await stream.read_exactly(1)


async def test_a_closed_node_is_noticed(
    nodes: tuple[HivemindNode, HivemindNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    from swarm.net import dht

    monkeypatch.setattr(dht, "LEASE_S", 1.0)
    a, b = nodes
    await b.serve(PASS_PROTOCOL, echo)
    stream = await a.open(b.peer_id, PASS_PROTOCOL)
    await b.announce(record_of(b.peer_id))
    assert set(await a.records(MODEL)) == {b.peer_id}
    await b.close()
    with pytest.raises(LinkBroken):
        await stream.read_exactly(1)
    await stream.close()
    with pytest.raises(DialFailed, match=b.peer_id):
        await a.open(b.peer_id, PASS_PROTOCOL)
    await asyncio.sleep(1.0)
    assert await a.records(MODEL) == {}


async def test_p2pd_that_ends_is_started_again(nodes: tuple[HivemindNode, HivemindNode]) -> None:
    a, b = nodes
    for node in nodes:
        await node.serve(PASS_PROTOCOL, echo)
    await b.announce(record_of(b.peer_id))
    stream, before = await b.open(a.peer_id, PASS_PROTOCOL), await b.addresses()
    b._p2pd.host._child.kill()
    with pytest.raises(NetworkDown):
        await stream.read_exactly(1)
    await stream.close()
    message = PassAnswer(request="r", step=1, attempt=0, computed_us=[1])
    for caller, called in ((b, a), (a, b)):
        stream = await caller.open(called.peer_id, PASS_PROTOCOL)
        await write_frame(stream, message)
        assert (await read_frame(stream))[0] == message
        await stream.close()
    assert await b.addresses() == before

    async def is_announced() -> bool:
        return set(await a.records(MODEL)) == {b.peer_id}

    await until(is_announced)


async def test_a_network_that_cannot_start_again_ends(
    nodes: tuple[HivemindNode, HivemindNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    from swarm.net import hivemind, p2pd

    async def refuse(*_: object) -> None:
        raise StartError("no")

    monkeypatch.setattr(hivemind, "RESTART_PAUSES_S", (0.0, 0.0))
    monkeypatch.setattr(p2pd.P2pd, "start", refuse)
    a, b = nodes
    b._p2pd.host._child.kill()
    async with asyncio.timeout(10):
        await b.wait_ended()
    with pytest.raises(NetworkDown):
        await b.open(a.peer_id, PASS_PROTOCOL, timeout_s=0.1)
    with pytest.raises(NetworkDown):
        await b.records(MODEL)


async def test_a_node_that_finds_nobody_joins_when_somebody_appears(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = f"/ip4/127.0.0.1/tcp/{port}"
    b = await HivemindNode.start(tmp_path / "b", join=[f"{place}/p2p/{load_or_create(tmp_path / 'a').peer_id}"])
    try:
        await b.announce(record_of(b.peer_id))
        a = await HivemindNode.start(tmp_path / "a", host_maddrs=[place])
        try:
            await a.announce(record_of(a.peer_id))

            async def see_each_other() -> bool:
                return all([len(await node.records(MODEL)) == 2 for node in (a, b)])

            await until(see_each_other)
        finally:
            await a.close()
    finally:
        await b.close()


async def test_a_node_comes_back_by_the_peers_that_it_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from swarm.net import joining

    monkeypatch.setattr(joining, "_KEEP_FIRST_S", 0.0)
    kept = tmp_path / "b.peers"
    a = await HivemindNode.start(tmp_path / "a")
    try:
        await a.announce(record_of(a.peer_id))
        b = await HivemindNode.start(tmp_path / "b", join=await a.addresses(), anchors_path=kept)
        await until(kept.exists)
        await b.close()
        b = await HivemindNode.start(tmp_path / "b", anchors_path=kept, require_join=True)
        try:
            assert set(await b.records(MODEL)) == {a.peer_id}
            with pytest.raises(IdentityError, match="another running node uses this identity"):
                await HivemindNode.start(tmp_path / "b", anchors_path=kept)
        finally:
            await b.close()
    finally:
        await a.close()


async def test_what_cannot_be_dialled(nodes: tuple[HivemindNode, HivemindNode]) -> None:
    a, b = nodes
    for peer, protocol in ((NOBODY, PASS_PROTOCOL), ("0junk", PASS_PROTOCOL), (b.peer_id, "/no"), (a.peer_id, "/no")):
        with pytest.raises(DialFailed, match=peer):
            await a.open(PeerId(peer), protocol)
    with pytest.raises(DialFailed, match="within 0 s"):
        await a.open(b.peer_id, PASS_PROTOCOL, timeout_s=0)


async def test_a_peer_holds_a_limited_number_of_streams(
    nodes: tuple[HivemindNode, HivemindNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    from swarm.net import p2pd

    monkeypatch.setattr(p2pd, "STREAMS_PER_PEER", 2)
    a, b = nodes

    async def letters(stream: Stream) -> None:
        while True:
            await stream.write(await stream.read_exactly(1))

    await b.serve("/letters", letters)

    async def ask(stream: Stream) -> bytes:
        await stream.write(b"x")
        return await stream.read_exactly(1)

    async def ask_once() -> bytes:
        stream = await a.open(b.peer_id, "/letters")
        try:
            return await ask(stream)
        finally:
            await stream.close()

    first, second = await a.open(b.peer_id, "/letters"), await a.open(b.peer_id, "/letters")
    assert [await ask(first), await ask(second)] == [b"x", b"x"]
    with pytest.raises(LinkBroken):
        await ask_once()
    await first.close()
    async with asyncio.timeout(5):
        while True:
            try:
                assert await ask_once() == b"x"
                break
            except LinkBroken:
                await asyncio.sleep(0.01)
    assert await ask(second) == b"x"
    await second.close()


async def test_records_are_seen_renewed_and_withdrawn(nodes: tuple[HivemindNode, HivemindNode]) -> None:
    a, b = nodes
    assert await b.records(MODEL) == {}
    await a.announce(record_of(a.peer_id))
    first = (await b.records(MODEL))[a.peer_id]
    assert first.span == record_of(a.peer_id).span
    await a.announce(record_of(a.peer_id).model_copy(update={"stop": 7}))
    await b.announce(record_of(b.peer_id))
    for node in nodes:
        found = await node.records(MODEL)
        assert {peer: record.stop for peer, record in found.items()} == {a.peer_id: 7, b.peer_id: 4}
        assert found[a.peer_id].issued_ms > first.issued_ms
    await a.withdraw(MODEL)
    await a.withdraw(ModelId("cd" * 32))
    states = {peer: record.state for peer, record in (await b.records(MODEL)).items()}
    assert states == {a.peer_id: "offline", b.peer_id: "online"}
    with pytest.raises(ValueError, match="cannot announce"):
        await a.announce(record_of(b.peer_id))


async def test_forged_records_are_neither_stored_nor_seen(
    nodes: tuple[HivemindNode, HivemindNode], tmp_path: Path
) -> None:
    a, b = nodes
    await a.announce(record_of(a.peer_id))
    key, now = f"glossd/1/{MODEL}", time.time()
    attacker = b._directory._node
    attacker.protocol.record_validator = None
    stamp = {"issued_ms": int(now * 1000)}
    identity = load_or_create(tmp_path / "b")
    own = seal(record_of(b.peer_id).model_copy(update=stamp), identity.public_key, identity.sign)
    other = seal(record_of(b.peer_id, ModelId("cd" * 32)), identity.public_key, identity.sign)

    async def store(value: object, expires: float, subkey: str | None = b.peer_id, place: str = key) -> bool:
        return bool(await attacker.store(place, value, expires, subkey=subkey, exclude_self=True))

    assert not await store(own, now + 12, subkey=NOBODY), "under another peer's name"
    assert not await store(own, now + 12, subkey=a.peer_id), "in place of another peer's record"
    assert not await store(own, now + 60), "kept alive beyond its lease"
    assert not await store(own, now + 12, subkey=None), "in place of all records"
    assert not await store(own, now + 12, place="glossd/1/" + "cd" * 32), "under another model"
    assert not await store(own[:-1] + bytes([own[-1] ^ 1]), now + 10), "with a wrong signature"
    assert not await store(other, 12.0 + now), "a record of another model"
    for junk in (b"", b"junk", "text", 7, None, [own], {"peer": own}, bytes(5000)):
        assert not await store(junk, now + 12), "junk"
    assert set(await a.records(MODEL)) == {a.peer_id}
    assert await store(own, now + 11.9)
    assert set(await a.records(MODEL)) == {a.peer_id, b.peer_id}
    attacker.protocol.storage.store_subkey(attacker_key(key), NOBODY, b"junk", now + 12)
    assert set(await a.records(MODEL)) == {a.peer_id, b.peer_id}


def attacker_key(key: str) -> object:
    from hivemind.dht.routing import DHTID

    return DHTID.generate(source=key)


async def test_a_node_says_why_it_cannot_start(nodes: tuple[HivemindNode, HivemindNode], tmp_path: Path) -> None:
    a, _ = nodes
    (here,) = await a.addresses()
    unanswered = f"/ip4/127.0.0.1/tcp/1/p2p/{NOBODY}"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=f"cannot listen on .*{port}.*in use"):
            await HivemindNode.start(tmp_path / "c", host_maddrs=[f"/ip4/127.0.0.1/tcp/{port}"])
    # libp2p itself would share the port of another p2pd without a word.
    with pytest.raises(StartError, match="in use"):
        await HivemindNode.start(tmp_path / "c", host_maddrs=[here.partition("/p2p/")[0]])
    with pytest.raises(StartError, match=f"nobody answers at {unanswered}: connection refused; check"):
        await HivemindNode.start(tmp_path / "c", join=[unanswered], require_join=True)
    stranger = f"{here.rpartition('/')[0]}/{NOBODY}"
    with pytest.raises(StartError, match=f"nobody answers at {stranger}: peer id mismatch"):
        await HivemindNode.start(tmp_path / "c", join=[stranger], require_join=True)
    with pytest.raises(IdentityError, match="another running node uses this identity"):
        await HivemindNode.start(tmp_path / "b", join=[here])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"join": ["127.0.0.1:4001"]}, "not a TCP multiaddress"),
        ({"join": ["/ip4/127.0.0.1/tcp/4001"]}, "end it with /p2p/"),
        ({"host_maddrs": ["/ip4/0.0.0.0/udp/4001/quic-v1"]}, "not a TCP multiaddress"),
        ({"announce_maddrs": ["/ip4/1.2.3.4/tcp/0"]}, "port"),
    ],
)
async def test_addresses_are_checked(tmp_path: Path, arguments: dict[str, list[str]], message: str) -> None:
    with pytest.raises(StartError, match=message):
        await HivemindNode.start(tmp_path / "key", **arguments)


async def test_a_node_does_not_join_itself(tmp_path: Path) -> None:
    own = load_or_create(tmp_path / "key").peer_id
    with pytest.raises(StartError, match="this node itself"):
        await HivemindNode.start(tmp_path / "key", join=[f"/ip4/127.0.0.1/tcp/4001/p2p/{own}"])


def test_the_peer_id_is_the_one_of_hivemind(tmp_path: Path) -> None:
    from hivemind.p2p import PeerID

    identity = load_or_create(tmp_path / "key")
    assert identity.peer_id == PeerID.from_identity((tmp_path / "key").read_bytes()).to_base58()
