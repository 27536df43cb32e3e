"""Late passes are sent to replicas too: the tokens stay, the loser is no failure, and few passes are sent twice."""

import asyncio
import random

import pytest

from swarm.chain.hedges import BURST, ENOUGH, Hedges
from swarm.chain.source import ChainSource
from swarm.decode.settings import Cache, DecodeSettings
from swarm.host.host import Answer
from swarm.ids import PeerId
from swarm.wire.messages import PassRequest
from tests.chain.swarm import Swarm, TwistedHost, peer
from tests.chain.test_bad_answers import ROWS
from tests.chain.test_exactness import SETTINGS
from tests.waiting import until

CACHED = DecodeSettings(cache=Cache.DUAL, block_length=5, temperature=0.8, seed=4, stop_at_eos=False)
MODES = {"whole": SETTINGS["warm"], "guided": SETTINGS["guided"], "cached": CACHED}
NEVER = 3600.0


def trained(share: float = 1.0) -> Hedges:
    """As after many quick passes of every size that these tests have."""
    hedges = Hedges(share)
    for size in (1 << bit for bit in range(9)):
        for _ in range(ENOUGH):
            hedges.took(size, 0.001)
    return hedges


def stall(swarm: Swarm, name: PeerId, first_step: int, seconds: float) -> None:
    async def twist(request: PassRequest, answer: Answer) -> Answer:
        if request.step >= first_step:
            await asyncio.sleep(seconds)
        return answer

    host_of(swarm, name).twist = twist


def host_of(swarm: Swarm, name: PeerId) -> TwistedHost:
    return next(host for each, host in swarm.hosts.items() if peer(each) == name)


def hedged(swarm: Swarm, request: str, hedges: Hedges) -> ChainSource:
    source = swarm.source(request)
    source._hedges = hedges
    return source


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(3))
async def test_a_peer_that_stalls_at_any_step_changes_nothing(mode: str, seed: int) -> None:
    swarm = await Swarm.of(A="0:3", B="3:6", C="0:3", D="3:6")
    want = await swarm.decode(MODES[mode])
    rng = random.Random(f"{mode}{seed}")
    hedges = trained()
    source = hedged(swarm, f"r{seed}", hedges)
    victim = source.chain[rng.randrange(2)].peer
    stall(swarm, victim, rng.randrange(12), NEVER)
    assert await swarm.decode(MODES[mode], source) == want
    assert source.counts.hedges >= 1
    assert source.counts.replays == 0
    assert victim not in {hop.peer for hop in source.chain}
    assert all(swarm.book.state(peer(name)).failures == 0 for name in swarm.hosts)
    await hedges.close()
    await swarm.close()


async def test_a_slow_peer_is_measured_by_passes_that_lost_and_asked_less_but_not_avoided() -> None:
    swarm = await Swarm.of(A="0:6", B="0:6")
    want = await swarm.decode(SETTINGS["greedy"], swarm.source("quiet"))
    hedges = trained()
    source = hedged(swarm, "r", hedges)
    slow = source.chain[0].peer
    stall(swarm, slow, 0, 0.4)
    assert await swarm.decode(SETTINGS["greedy"], source) == want
    await asyncio.gather(*hedges._stragglers)
    assert swarm.book.slowness(slow) > 0.05
    assert not swarm.book.state(slow).is_avoided
    assert slow not in {hop.peer for number in range(9) for hop in swarm.source(f"r{number}").chain}
    await swarm.close()


async def test_a_slow_peer_is_given_another_chance_when_it_was_not_measured_for_long() -> None:
    swarm = await Swarm.of(A="0:6", B="0:6")
    swarm.book.succeeded(peer("A"), 132, 9.0, 8.0)
    slowed = swarm.book.offers()[peer("A")]
    swarm.book.state(peer("A")).measured_at -= 1000
    fresh = swarm.book.offers()[peer("A")]
    assert (slowed.parts_per_s, slowed.latency_s) < (fresh.parts_per_s, fresh.latency_s)
    assert fresh == swarm.book.offers()[peer("B")]
    await swarm.close()


async def test_a_hedge_that_fails_leaves_the_late_answer_to_win() -> None:
    swarm = await Swarm.of(A="0:6", B="0:6")
    want = await swarm.decode(SETTINGS["greedy"], swarm.source("quiet"))
    hedges = trained()
    source = hedged(swarm, "r", hedges)
    late = source.chain[0].peer
    liar = peer("B") if late == peer("A") else peer("A")
    stall(swarm, late, 15, 0.4)
    host_of(swarm, liar).twist = ROWS["not normalised"]  # type: ignore[assignment]
    assert await swarm.decode(SETTINGS["greedy"], source) == want
    assert source.chain[0].peer == late
    assert swarm.book.state(liar).failures == 1
    await hedges.close()
    await swarm.close()


@pytest.mark.parametrize("spans", [{"A": "0:3", "B": "3:6"}, {"A": "0:6"}])
async def test_without_a_replica_nothing_is_sent_twice(spans: dict[str, str]) -> None:
    swarm = await Swarm.of(**spans)
    hedges = trained()
    source = hedged(swarm, "r", hedges)
    stall(swarm, peer("A"), 14, 0.1)
    await swarm.decode(SETTINGS["greedy"], source)
    assert (source.counts.hedges, source.counts.passes, hedges.sent) == (0, 16, 0)
    await swarm.close()


async def test_a_request_that_ends_takes_its_racing_passes_along() -> None:
    swarm = await Swarm.of(A="0:6", B="0:6")
    hedges = trained()
    for name in swarm.hosts:
        stall(swarm, peer(name), 0, NEVER)
    source = hedged(swarm, "r", hedges)
    task = asyncio.create_task(swarm.decode(SETTINGS["greedy"], source))
    await until(lambda: source.counts.hedges == 1 and len(swarm.answers._expected) == 2)
    task.cancel()
    await asyncio.wait({task})
    assert not swarm.answers._expected
    await swarm.close()


@pytest.mark.parametrize("seed", range(20))
def test_hedges_never_exceed_their_share(seed: int) -> None:
    rng = random.Random(seed)
    share = rng.choice([0.0, 0.02, 0.1, 0.5])
    hedges = Hedges(share)
    for passes in range(1, 1000):
        hedges.started()
        if rng.random() < rng.choice([0.01, 0.9]):
            hedges.spend()
        assert hedges.sent <= share * passes + BURST * (share > 0)


def test_late_is_later_than_nearly_all_passes_of_that_size() -> None:
    hedges = Hedges(1.0)
    assert hedges.late_s([30]) is None
    for milliseconds in range(100, 200):
        hedges.took(20, milliseconds / 1000)
    assert hedges.late_s([30]) == 0.194
    assert hedges.late_s([30, 17]) == 2 * 0.194
    assert hedges.late_s([30, 100]) is None
