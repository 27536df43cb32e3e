"""Threads go to forwards that are worth it, and are shared with the other nodes of a machine."""

import asyncio
import threading

import pytest
import torch

from swarm.host.threads import NARROW_BELOW, SHARED_FROM_LINES, choose_threads, in_passing_thread
from swarm.model.config import ModelConfig


def config(hidden_size: int) -> ModelConfig:
    return ModelConfig(
        family="llada", hidden_size=hidden_size, n_layers=1, n_heads=4, n_kv_heads=4, intermediate_size=64,
        vocab_size=64, max_length=64, norm_eps=1e-5, rope_theta=1e4, mask_id=2, eos_id=0, tied_head=False,
    )  # fmt: skip


def test_a_narrow_model_shares_only_large_forwards() -> None:
    threads = choose_threads(config(NARROW_BELOW // 2), wanted=0, cores=8, nodes=1)
    assert (threads.of_forward(SHARED_FROM_LINES - 1), threads.of_forward(SHARED_FROM_LINES)) == (1, 8)


def test_a_wide_model_shares_every_forward() -> None:
    assert choose_threads(config(NARROW_BELOW), wanted=0, cores=8, nodes=1).of_forward(1) == 8


@pytest.mark.parametrize(("wanted", "nodes", "most"), [(0, 3, 2), (0, 20, 1), (5, 3, 5), (1, 1, 1)])
def test_cores_are_shared_among_nodes_unless_the_user_says_how_many(wanted: int, nodes: int, most: int) -> None:
    assert choose_threads(config(64), wanted, cores=8, nodes=nodes).most == most


def test_a_passing_thread_gives_its_result_or_error_and_ends() -> None:
    before = torch.get_num_threads()
    found = in_passing_thread(lambda: (torch.get_num_threads(), threading.current_thread()), 2).result(10)
    assert found[0] == 2
    found[1].join(10)
    assert not found[1].is_alive()
    with pytest.raises(ZeroDivisionError):
        in_passing_thread(lambda: 1 // 0, 1).result(10)
    torch.set_num_threads(before)


async def test_whoever_stops_waiting_does_not_disturb_the_work() -> None:
    ended = threading.Event()
    begun = threading.Event()

    def work() -> None:
        begun.set()
        ended.wait(10)

    waiting = asyncio.ensure_future(asyncio.wrap_future(in_passing_thread(work, 1)))
    await asyncio.to_thread(begun.wait, 10)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    ended.set()
