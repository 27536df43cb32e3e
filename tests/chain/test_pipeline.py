"""A displaced pipeline over real spans: the same tokens on every split and at every speed; failures end it, not the
request."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from swarm.chain.pipeline import Travel, drive_patches
from swarm.chain.source import ChainSource
from swarm.decode.patches import PatchDecoder
from swarm.decode.settings import Cache, Commit, DecodeSettings
from swarm.host.host import Answer
from swarm.wire.messages import PassRequest
from tests.chain.swarm import Swarm, canvas, checkpoint, peer

SETTINGS = DecodeSettings(
    commit=Commit.THRESHOLD, cache=Cache.DUAL, threshold=0.02, patches=4, block_length=8, stop_at_eos=False
)
SPLITS = ({"A": "0:6"}, {"A": "0:3", "B": "3:6"}, {"A": "0:1", "B": "1:5", "C": "5:6"})


async def decode(
    swarm: Swarm, settings: DecodeSettings = SETTINGS, source: ChainSource | None = None
) -> tuple[list[int], PatchDecoder]:
    config = checkpoint().config
    decoder = PatchDecoder(canvas(), settings, config.mask_id, config.eos_id)
    async with asyncio.timeout(60):
        async for _ in drive_patches(decoder, source or swarm.source(), lambda: False, Travel()):
            pass
    return [int(token) for token in decoder.canvas], decoder


def late(seed: int) -> Callable[[PassRequest, Answer], "asyncio.Future[Answer]"]:
    """Every answer some milliseconds late, but none before the one that came first."""
    rng, turn = random.Random(seed), asyncio.Lock()

    async def twist(request: PassRequest, answer: Answer) -> Answer:
        async with turn:
            await asyncio.sleep(rng.random() * 0.004)
        return answer

    return twist  # type: ignore[return-value]


@pytest.mark.parametrize(
    "more",
    [{}, {"temperature": 0.7, "seed": 3}, {"cfg_scale": 1.0, "threshold": 0.9}, {"refresh_steps": 3}],
    ids=str,
)
async def test_every_split_and_speed_gives_the_same_tokens(more: dict[str, float]) -> None:
    settings = replace(SETTINGS, **more)  # type: ignore[arg-type]
    answers = []
    for spans in SPLITS:
        for seed in (None, 1):
            swarm = await Swarm.of(**spans)
            if seed is not None:
                for host in swarm.hosts.values():
                    host.twist = late(seed)
            tokens, decoder = await decode(swarm, settings)
            answers.append(tokens)
            assert decoder.telemetry.displaced > 4
            await swarm.close()
    assert all(answer == answers[0] for answer in answers)


async def test_a_refresh_every_step_is_bit_equal_to_synchronous() -> None:
    settings = replace(SETTINGS, refresh_steps=1)
    swarm = await Swarm.of(A="0:3", B="3:6")
    tokens, _ = await decode(swarm, settings)
    assert tokens == await swarm.decode(replace(settings, patches=1))
    await swarm.close()


@pytest.mark.parametrize("step", [1, 3, 6])
async def test_a_peer_lost_ends_the_pipeline_and_not_the_request(step: int) -> None:
    swarm = await Swarm.of(A="0:3", B="3:6", C="3:6")
    source = swarm.source()
    victim = source.chain[1].peer

    def die(request: PassRequest) -> None:
        if request.step == step:
            swarm.network.kill(victim)
            raise RuntimeError("killed")

    swarm.hosts["B" if victim == peer("B") else "C"].before = die
    tokens, decoder = await decode(swarm, source=source)
    assert checkpoint().config.mask_id not in tokens
    assert decoder.telemetry.lost == 1
    assert decoder.telemetry.synchronous == 3
    await swarm.close()


async def test_what_a_span_forgot_ends_the_pipeline() -> None:
    swarm = await Swarm.of(A="0:3", B="3:6")
    host = swarm.hosts["B"]

    def forget(request: PassRequest) -> None:
        if request.step == 3 and request.attempt == 0:
            for key in list(host.sessions._held):
                host.sessions.drop(key)

    host.before = forget
    tokens, decoder = await decode(swarm)
    assert checkpoint().config.mask_id not in tokens
    assert decoder.telemetry.lost == 1
    assert not swarm.book.state(peer("B")).failures
    await swarm.close()
