"""What strangers send to a host: refused, one by one, while the work of others goes on."""

import asyncio
import contextlib

import numpy as np
import pytest

from swarm.chain.answers import HopFailed
from swarm.errors import BadAnswer, CacheMiss, LinkBroken
from swarm.wire.frames import encode, read_frame, write_frame
from swarm.wire.messages import PASS_PROTOCOL, Epoch, PassRequest, Ping, Pong
from swarm.wire.tensors import Tensor
from tests.chain.swarm import Swarm, peer
from tests.chain.test_bad_answers import outcome
from tests.chain.test_exactness import SETTINGS
from tests.wire.mutate import hundred_damaged

IDS = Tensor.of("ids", np.zeros((1, 4), np.int32))


def row(name: str, *values: int) -> Tensor:
    return Tensor.of(name, np.array(values, np.int32))


def request(swarm: Swarm, reply_to: str) -> PassRequest:
    return PassRequest(
        request="x", step=0, attempt=0, model=swarm.book.model, start=0, stop=6, rows=1, columns=4, budget_ms=2000,
        reply_to=peer(reply_to), session="0" * 32,
    )  # fmt: skip


@pytest.mark.parametrize(
    "positions",
    [
        row("positions", 4),
        row("positions", -1),
        row("positions", 2, 1),
        row("positions", 1, 1),
        row("positions", 2**31 - 1),
        Tensor.of("positions", np.zeros((1, 1), np.int32)),
        Tensor.of("positions", np.zeros(1, np.float32)),
    ],
    ids=str,
)
async def test_positions_outside_the_canvas_are_refused(positions: Tensor) -> None:
    swarm = await Swarm.of(A="0:6")
    tensors = {"ids": IDS, "positions": positions}
    failed = await outcome(swarm, "A", {"stop": 6}, tensors)
    assert isinstance(failed, HopFailed)
    assert isinstance(failed.reason, BadAnswer)
    good = await outcome(swarm, "A", {"stop": 6}, tensors | {"positions": row("positions", 0, 3)})
    assert isinstance(good, tuple)
    await swarm.close()


@pytest.mark.parametrize("active", [row("active", 0, 1, 2, 4), row("active", 0, 2, 1, 3), row("active", 0, 1, 2)])
async def test_active_positions_outside_the_canvas_are_refused(active: Tensor) -> None:
    swarm = await Swarm.of(A="0:6")
    tensors, positions = {"ids": IDS}, {"positions": row("positions", 1)}
    primed = {"stop": 6, "epoch": Epoch(number=3, primes=True)}
    step = {"stop": 6, "epoch": Epoch(number=3, primes=False)}
    assert isinstance(await outcome(swarm, "A", primed, tensors | positions), tuple)
    failed = await outcome(swarm, "A", step, tensors | positions | {"active": active})
    assert isinstance(failed, HopFailed)
    assert isinstance(failed.reason, BadAnswer)
    whole = {"active": row("active", 0, 1, 2, 3)}
    assert isinstance(await outcome(swarm, "A", step, tensors | positions | whole), tuple)
    other = {"stop": 6, "epoch": Epoch(number=4, primes=False)}
    assert isinstance(await outcome(swarm, "A", other, tensors | positions | whole), CacheMiss)
    await swarm.close()


@pytest.mark.parametrize("sender", ["me", "S"])
async def test_a_stream_cut_within_a_frame_harms_no_other(sender: str) -> None:
    swarm = await Swarm.of(A="0:3", B="3:6")
    node = swarm.network.nodes.get(peer(sender)) or swarm.network.node(peer(sender))
    want = await swarm.decode(SETTINGS["greedy"])
    frame = b"".join(encode(request(swarm, sender), [IDS]))
    other = await node.open(peer("A"), PASS_PROTOCOL)
    passes = asyncio.create_task(swarm.decode(SETTINGS["greedy"], swarm.source("beside")))
    for cut in (1, 7, 8, 60, len(frame) - 1):
        stream = await node.open(peer("A"), PASS_PROTOCOL)
        await stream.write(frame[:cut])
        await stream.close()
    assert await passes == want
    await write_frame(other, Ping())
    assert (await read_frame(other))[0] == Pong()
    await swarm.close()


async def test_damaged_frames_end_their_stream_and_nothing_else() -> None:
    swarm = await Swarm.of(A="0:6")
    stranger = swarm.network.node(peer("S"))
    want = await swarm.decode(SETTINGS["greedy"])
    frame = b"".join(encode(request(swarm, "S"), [IDS, row("positions", 1)]))
    passes = asyncio.create_task(swarm.decode(SETTINGS["greedy"], swarm.source("beside")))
    for damaged in hundred_damaged(frame, seed=1):
        stream = await stranger.open(peer("A"), PASS_PROTOCOL)
        with contextlib.suppress(LinkBroken):
            await stream.write(damaged, frame)
        await stream.close()
    assert await passes == want
    link = await stranger.open(peer("A"), PASS_PROTOCOL)
    await write_frame(link, Ping())
    assert (await read_frame(link))[0] == Pong()
    await swarm.close()
