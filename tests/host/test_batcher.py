"""Passes that run together give the bits that they give alone; what is wrong with one harms no other."""

import asyncio
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from swarm.errors import BadRequest, CacheMiss, PassTimeout, PeerRefused
from swarm.host.batcher import Batcher
from swarm.host.sessions import IDLE_S, Sessions
from swarm.host.threads import Threads
from swarm.ids import Span
from swarm.mixture.rows import ScoreRows
from swarm.model.batch import Cache
from swarm.model.forward import HeadWork, Job, run_jobs
from swarm.model.span import SpanModule
from swarm.model.weights import load_span
from tests.chain.swarm import checkpoint

WHOLE = Span(0, 6)


@pytest.fixture(scope="module")
def module() -> SpanModule:
    return load_span(checkpoint(), WHOLE, torch.float32)


def job(length: int, salt: int, rows: int = 1) -> Job:
    ids = torch.randint(0, 500, (rows, length), generator=torch.Generator().manual_seed(salt))
    wanted = np.arange(1, length, 2, dtype=np.int32)
    return Job(ids, HeadWork(wanted, 1.5, 512))


def same(a: object, b: object) -> bool:
    assert isinstance(a, ScoreRows) and isinstance(b, ScoreRows)
    return all(np.array_equal(getattr(a, f), getattr(b, f)) for f in ("positions", "ids", "log_probs", "log_tail"))


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_passes_give_the_same_bits_joined_and_alone_on_any_number_of_threads(
    module: SpanModule, threads: Callable[[int], None]
) -> None:
    shapes = [(48, 1), (17, 2), (64, 1), *((length, 1) for length in range(2, 17)), (48, 1)]
    jobs = [job(length, salt, rows) for salt, (length, rows) in enumerate(shapes)]
    alone = [run_jobs(module, WHOLE, [one])[0] for one in jobs]
    for count in (1, 2):
        threads(count)
        assert all(same(a, b) for a, b in zip(run_jobs(module, WHOLE, jobs), alone, strict=True))


def test_joined_cached_passes_give_the_bits_of_lone_ones(module: SpanModule) -> None:
    def steps(together: bool) -> list[object]:
        caches = [Cache(1, 40), Cache(1, 33)]
        primes = [Job(job(c.length, i).x, job(c.length, i).head, None, c) for i, c in enumerate(caches)]
        run_jobs(module, WHOLE, primes)
        active = torch.arange(8, 24)
        later = [
            Job(job(40, 9 + i).x[:, 8:24], HeadWork(np.array([9, 20], np.int32), 0.0, 512), active, c)
            for i, c in enumerate(caches)
        ]
        return run_jobs(module, WHOLE, later) if together else [run_jobs(module, WHOLE, [j])[0] for j in later]

    assert all(same(a, b) for a, b in zip(steps(True), steps(False), strict=True))


async def test_waiting_passes_go_together_and_a_bad_one_fails_alone(module: SpanModule) -> None:
    batcher = Batcher(module)
    soon = time.monotonic() + 60
    bad = Job(torch.full((1, 4), 512), HeadWork(np.array([1], np.int32), 0.0, 512))
    jobs = [job(64, i) for i in range(6)]
    results = await asyncio.gather(
        *(batcher.run(WHOLE, one, soon) for one in jobs),
        batcher.run(WHOLE, bad, soon),
        batcher.run(WHOLE, jobs[0], time.monotonic() - 1),
        return_exceptions=True,
    )
    assert isinstance(results[-2], BadRequest)
    assert isinstance(results[-1], PassTimeout)
    for one, result in zip(jobs, results[:6], strict=True):
        assert not isinstance(result, BaseException)
        assert same(result[0], run_jobs(module, WHOLE, [one])[0])
    assert batcher.batches < 6
    batcher.close()


async def test_without_joining_each_pass_runs_alone(module: SpanModule) -> None:
    batcher = Batcher(module, joins=False)
    await asyncio.gather(*(batcher.run(WHOLE, job(20, i), time.monotonic() + 60) for i in range(4)))
    assert batcher.batches == 4
    batcher.close()


async def test_a_shared_forward_gives_the_bits_of_one_thread(
    module: SpanModule, threads: Callable[[int], None]
) -> None:
    threads(1)
    jobs = [job(64, i) for i in range(6)]
    alone = [run_jobs(module, WHOLE, [one])[0] for one in jobs]
    batcher = Batcher(module, threads=Threads(most=2, shared_from=100))
    soon = time.monotonic() + 60
    for _ in range(2):
        found = await asyncio.gather(*(batcher.run(WHOLE, one, soon) for one in jobs))
        assert all(same(result, want) for (result, _), want in zip(found, alone, strict=True))
    batcher.close()


async def test_a_pass_whose_caller_left_is_not_run(module: SpanModule) -> None:
    batcher = Batcher(module)
    first = asyncio.create_task(batcher.run(WHOLE, job(200, 1), time.monotonic() + 60))
    second = asyncio.create_task(batcher.run(Span(0, 6), job(200, 2), time.monotonic() + 60))
    await asyncio.sleep(0)
    second.cancel()
    await first
    await asyncio.sleep(0.05)
    assert batcher.batches == 1
    batcher.close()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_sessions_stay_within_their_budget_and_the_oldest_goes_first() -> None:
    clock = Clock()
    sessions = Sessions(100, clock)
    for name in "abc":
        sessions.open(name, 0, Cache(1, 1), 40)
        clock.now += 1
    assert (len(sessions), sessions.size_bytes, sessions.evicted) == (2, 80, 1)
    with pytest.raises(CacheMiss):
        sessions.get("a", 0)
    sessions.get("b", 0)
    sessions.open("d", 0, Cache(1, 1), 40)
    sessions.get("b", 0)
    with pytest.raises(CacheMiss):
        sessions.get("c", 0)
    with pytest.raises(CacheMiss):
        sessions.get("b", 1)
    with pytest.raises(PeerRefused, match="budget"):
        sessions.open("e", 0, Cache(1, 1), 101)


def test_a_new_epoch_replaces_the_old_and_idle_sessions_go() -> None:
    clock = Clock()
    sessions = Sessions(100, clock)
    sessions.open("a", 0, Cache(1, 1), 40)
    sessions.open("a", 1, Cache(1, 1), 50)
    assert (len(sessions), sessions.size_bytes) == (1, 50)
    clock.now = IDLE_S + 1
    sessions.open("b", 0, Cache(1, 1), 10)
    assert (len(sessions), sessions.size_bytes, sessions.evicted) == (1, 10, 0)


@pytest.mark.parametrize(
    ("active", "positions"),
    [([3, 2], [2]), ([3, 3], [3]), ([-1, 2], [2]), ([3, 40], [3]), ([3, 4], [5]), ([3], [3]), ([3, 4, 5], [3])],
)
async def test_active_positions_must_fit_canvas_and_columns(
    module: SpanModule, active: list[int], positions: list[int]
) -> None:
    cache = Cache(1, 40)
    run_jobs(module, WHOLE, [Job(job(40, 1).x, job(40, 1).head, None, cache)])
    batcher = Batcher(module)
    bad = Job(
        torch.zeros(1, 2, dtype=torch.long),
        HeadWork(np.array(positions, np.int32), 0.0, 512),
        torch.tensor(active),
        cache,
    )
    with pytest.raises(BadRequest):
        await batcher.run(WHOLE, bad, time.monotonic() + 60)
    batcher.close()
