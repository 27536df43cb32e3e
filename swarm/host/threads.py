"""How many threads share one forward, by its size and by who else is on the machine. Results do not depend on it.

A short forward on two threads is only a little faster than on one, and takes twice the processor time from whoever
else runs here. From some size on, and for wide models always, threads pay.

OpenMP lets its threads spin between operations, which is what makes short ones worth sharing, unless a process has more
of them than processors; then each operation waits for a sleeping thread. A thread that ever ran a forward keeps its
helpers as long as it lives. So only the compute thread runs forwards on several threads, and what else needs torch's
threads does it in a thread that ends.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

import psutil
import torch

from swarm.model.config import ModelConfig

T = TypeVar("T")

NARROW_BELOW = 1024
"""Hidden size below which a lone pass runs on one thread."""
SHARED_FROM_LINES = 128
"""Positions in a forward from which a narrow model uses all threads."""


@dataclass(frozen=True, slots=True)
class Threads:
    """`most` threads for forwards of at least `shared_from` lines, one for others."""

    most: int
    shared_from: int

    def of_forward(self, lines: int) -> int:
        return self.most if lines >= self.shared_from else 1


def choose_threads(config: ModelConfig, wanted: int, cores: int, nodes: int) -> Threads:
    """`wanted` threads, 0 for an even share of the `cores` among the `nodes` on this machine."""
    most = wanted or max(1, cores // max(1, nodes))
    return Threads(most, SHARED_FROM_LINES if config.hidden_size < NARROW_BELOW else 0)


def cores() -> int:
    return psutil.cpu_count(logical=False) or 1


def in_passing_thread(work: Callable[[], T], threads: int) -> "Future[T]":
    """Run `work` on up to `threads` torch threads, in a thread that then ends with its helpers."""
    future: Future[T] = Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            torch.set_num_threads(threads)
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)
        finally:
            torch.set_num_threads(1)

    threading.Thread(target=run, name="start", daemon=True).start()
    return future
