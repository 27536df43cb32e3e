"""Cached keys and values: the same tokens on every split and after every loss; exact when made anew each step."""

import pytest

from swarm.decode.settings import Cache, Commit, DecodeSettings
from swarm.host.host import SpanHost
from swarm.wire.messages import PassRequest
from tests.chain.swarm import Swarm, peer

BASE = {"block_length": 5, "temperature": 0.8, "seed": 4, "stop_at_eos": False}
MODES = [Cache.PREFIX, Cache.DUAL]
SPLITS = ({"A": "0:6"}, {"A": "0:3", "B": "3:6"}, {"A": "0:1", "B": "1:5", "C": "5:6"})


async def decode(spans: dict[str, str], settings: DecodeSettings) -> list[int]:
    swarm = await Swarm.of(**spans)
    answer = await swarm.decode(settings)
    await swarm.close()
    return answer


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("more", [{}, {"cfg_scale": 1.5}, {"refresh_steps": 2}], ids=str)
async def test_every_split_gives_the_same_tokens(mode: Cache, more: dict[str, float]) -> None:
    settings = DecodeSettings(cache=mode, **BASE, **more)  # type: ignore[arg-type]
    answers = [await decode(spans, settings) for spans in SPLITS]
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.parametrize("mode", MODES)
async def test_a_cache_made_anew_each_step_changes_nothing(mode: Cache) -> None:
    exact = await decode({"A": "0:6"}, DecodeSettings(**BASE))  # type: ignore[arg-type]
    fresh = await decode({"A": "0:3", "B": "3:6"}, DecodeSettings(cache=mode, refresh_steps=1, **BASE))  # type: ignore[arg-type]
    assert fresh == exact


async def test_steps_between_send_the_block_alone() -> None:
    swarm = await Swarm.of(A="0:6")
    seen: list[PassRequest] = []
    swarm.hosts["A"].before = seen.append
    await swarm.decode(DecodeSettings(cache=Cache.DUAL, block_length=8, stop_at_eos=False))
    assert [request.epoch.primes for request in seen if request.epoch] == ([True] + [False] * 7) * 2
    assert [request.epoch.number for request in seen if request.epoch] == [0] * 8 + [1] * 8
    await swarm.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("step", [1, 4, 6, 11])
async def test_a_peer_lost_within_an_epoch_changes_nothing(mode: Cache, step: int) -> None:
    settings = DecodeSettings(cache=mode, **BASE)  # type: ignore[arg-type]
    want = await decode({"A": "0:6"}, settings)
    swarm = await Swarm.of(A="0:3", B="3:6", C="3:6")
    source = swarm.source()
    victim = source.chain[1].peer
    host = swarm.hosts["B" if victim == peer("B") else "C"]

    def die(request: PassRequest) -> None:
        if request.step == step:
            swarm.network.kill(victim)
            raise RuntimeError("killed")

    host.before = die
    assert await swarm.decode(settings, source) == want
    assert source.counts.replays == 1
    await swarm.close()


async def test_what_a_span_forgot_is_primed_again() -> None:
    settings = DecodeSettings(cache=Cache.DUAL, commit=Commit.THRESHOLD, threshold=0.02, block_length=8)
    want = await decode({"A": "0:6"}, settings)
    swarm = await Swarm.of(A="0:3", B="3:6")
    host: SpanHost = swarm.hosts["B"]

    def forget(request: PassRequest) -> None:
        if request.step == 1 and request.attempt == 0:
            for key in list(host.sessions._held):
                host.sessions.drop(key)

    swarm.hosts["B"].before = forget
    source = swarm.source()
    assert await swarm.decode(settings, source) == want
    assert source.counts.replays == 1
    assert not swarm.book.state(peer("B")).failures
    await swarm.close()
