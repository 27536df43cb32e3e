"""Peers that answer with something else than the truth's form: caught before use, left out, the answer unchanged."""

import asyncio
import contextlib
from typing import Any

import numpy as np
import pytest

from swarm.chain.answers import HopFailed
from swarm.errors import BadAnswer, CacheMiss, CoverageLost, LinkBroken
from swarm.host.host import Answer
from swarm.ids import PeerId, Span
from swarm.net.transport import Stream
from swarm.wire.messages import PASS_PROTOCOL, PassRequest, RouteHop
from swarm.wire.tensors import Tensor
from tests.chain.swarm import Swarm, peer, record
from tests.chain.test_exactness import SETTINGS


def changed(name: str, array: np.ndarray) -> "object":
    async def twist(request: PassRequest, answer: Answer) -> Answer:
        message, tensors = answer
        return message, tuple(Tensor.of(name, array(t.array())) if t.name == name else t for t in tensors)  # type: ignore[operator]

    return twist


def put(value: float, index: tuple[int, ...]) -> "object":
    def change(array: np.ndarray) -> np.ndarray:
        copy = array.copy()
        copy[index] = value
        return copy

    return change


HIDDEN = {
    "not a number": changed("hidden", put(np.nan, (0, 1, 2))),
    "infinite": changed("hidden", put(np.inf, (0, 0, 0))),
    "wrong shape": changed("hidden", lambda a: a[:, :-1]),
    "wrong type": changed("hidden", lambda a: a.astype(np.float16)),
}
ROWS = {
    "mask id": changed("ids", put(500, (0, 0))),
    "id too large": changed("ids", put(512, (0, 3))),
    "id negative": changed("ids", put(-1, (0, 3))),
    "id twice": changed("ids", lambda a: np.repeat(a[:, :1], a.shape[1], 1)),
    "unordered": changed("log_probs", lambda a: a[:, ::-1].copy()),
    "not normalised": changed("log_probs", lambda a: a + np.float32(0.1)),
    "rows missing": changed("log_tail", lambda a: a[1:]),
    "nan rows": changed("log_probs", put(np.nan, (0, 0))),
    "tail too large": changed("log_tail", put(90.0, (0,))),
}


@pytest.mark.parametrize("fault", [*HIDDEN, *ROWS])
async def test_a_bad_answer_is_caught_and_its_peer_left_out(fault: str) -> None:
    swarm = await Swarm.of(A="0:3", B="3:6")
    want = await swarm.decode(SETTINGS["greedy"])
    for host in swarm.hosts.values():
        host.twist = HIDDEN.get(fault) if host.span.start == 0 else ROWS.get(fault)
    source = swarm.source("bad")
    with pytest.raises(CoverageLost) as lost:
        await swarm.decode(SETTINGS["greedy"], source)
    assert lost.value.parts == ((0, 1, 2) if fault in HIDDEN else (3, 4, 5))
    await swarm.close()
    spare = await Swarm.of(A="0:3", B="3:6", C="0:3", D="3:6")
    bad = {hop.peer for hop in spare.source("bad").chain}
    for name, host in spare.hosts.items():
        if peer(name) in bad:
            host.twist = HIDDEN.get(fault) if host.span.start == 0 else ROWS.get(fault)
    source = spare.source("bad")
    assert await spare.decode(SETTINGS["greedy"], source) == want
    assert source.counts.replays == 1
    await spare.close()


async def test_an_answer_to_another_step_is_not_used() -> None:
    swarm = await Swarm.of(A="0:3", B="3:6")

    async def stale(request: PassRequest, answer: Answer) -> Answer:
        return answer[0].model_copy(update={"step": request.step + 1}), answer[1]

    swarm.hosts["B"].twist = stale
    swarm.timeout_s = 0.1
    with pytest.raises(CoverageLost):
        await swarm.decode(SETTINGS["greedy"])
    assert "did not answer" in swarm.book.state(peer("B")).last_error
    assert not swarm.book.state(peer("A")).failures
    await swarm.close()


async def silent(stream: Stream) -> None:
    await asyncio.sleep(3600)


async def half_a_frame(stream: Stream) -> None:
    await stream.read_exactly(8)
    await stream.write(b"\0\0\1\0\0\0\0")


async def garbage(stream: Stream) -> None:
    await stream.write(b"\xff" * 4096)
    with contextlib.suppress(LinkBroken):
        await stream.read_exactly(1 << 20)


@pytest.mark.parametrize("handler", [silent, half_a_frame, garbage])
async def test_a_peer_that_announces_what_it_does_not_serve(handler: object) -> None:
    swarm = await Swarm.of(A="0:3", B="3:6")
    want = await swarm.decode(SETTINGS["greedy"])
    swarm.timeout_s = 0.3
    liar = swarm.network.node(peer("L"))
    await liar.serve(PASS_PROTOCOL, handler)  # type: ignore[arg-type]
    await liar.announce(record("L", Span(0, 6), throughput=1e9))
    await swarm.book.refresh()
    source = swarm.source("liar")
    assert source.chain[0].peer == peer("L")
    assert await swarm.decode(SETTINGS["greedy"], source) == want
    await swarm.close()


async def test_a_host_refuses_what_does_not_fit_and_goes_on() -> None:
    swarm = await Swarm.of(A="0:3", B="3:6")
    good = {"ids": Tensor.of("ids", np.zeros((1, 4), np.int32))}
    hidden = {"start": 1, "stop": 3}
    bad: list[tuple[dict[str, int], dict[str, Tensor]]] = [
        ({"stop": 6}, good),
        ({}, {}),
        ({"columns": 5}, good),
        ({"rows": 2}, good),
        ({}, {"ids": Tensor.of("ids", np.full((1, 4), 512, np.int32))}),
        ({}, {"ids": Tensor.of("ids", np.full((1, 4), -1, np.int32))}),
        ({"columns": 300}, {"ids": Tensor.of("ids", np.zeros((1, 300), np.int32))}),
        ({}, {"ids": Tensor.of("ids", np.zeros((1, 0), np.int32))}),
        (hidden, {"hidden": Tensor.of("hidden", np.zeros((1, 4, 63), np.float32))}),
        (hidden, {"hidden": Tensor.of("hidden", np.zeros((1, 4, 0), np.float32))}),
        (hidden, {"hidden": Tensor.of("hidden", np.zeros((1, 4, 64), np.float16))}),
        (hidden, {"hidden": Tensor.of("hidden", np.full((1, 4, 64), np.nan, np.float32))}),
        (hidden, {}),
        ({}, good | {"positions": Tensor.of("positions", np.zeros(1, np.int32))}),
        ({"route": [RouteHop(peer=peer("B"), start=3, stop=6)]}, good),
    ]
    for changes, tensors in bad:
        failed = await outcome(swarm, "A", changes, tensors)
        assert isinstance(failed, HopFailed), (changes, failed)
        assert isinstance(failed.reason, BadAnswer)
    assert len(await swarm.decode(SETTINGS["greedy"])) == 22
    assert swarm.hosts["A"].passes > 0
    await swarm.close()


async def outcome(swarm: Swarm, first: str, changes: dict[str, Any], tensors: dict[str, Tensor]) -> object:
    """What comes of one pass that this node asks of a peer by hand."""
    want = {
        "request": "x", "step": 0, "attempt": 0, "model": swarm.book.model, "start": 0, "stop": 3, "rows": 1,
        "columns": 4, "budget_ms": 2000, "reply_to": peer("me"), "session": "0" * 32,
    }  # fmt: skip
    request = PassRequest(**(want | changes))
    # A peer accuses the one that pushed to it, which here is this node.
    peers = (peer("me"), peer(first), *(PeerId(hop.peer) for hop in request.route))
    with swarm.answers.expect(request.key, peers) as future:
        await swarm.links.send(peer(first), PASS_PROTOCOL, request, list(tensors.values()))
        try:
            return await asyncio.wait_for(future, 5.0)
        except (HopFailed, CacheMiss) as error:
            return error
