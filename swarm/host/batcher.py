"""The compute thread: it takes every pass that waits for the same parts and runs them in one forward.

While one forward runs, others gather, and go together next. Requests that went together come back one by one, as the
event loop gets to them; so the thread waits a moment for as many passes as its last forward had, at most a share of the
time which that took, and a lone request waits for nobody.
First come, first served: the pass that waits longest is always in the next forward, and since a request has one pass
under way at a time, requests take turns.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from swarm.errors import GlossError, PassTimeout
from swarm.host.threads import Threads
from swarm.ids import Span
from swarm.mixture.rows import ScoreRows
from swarm.model.forward import Job, check_job, run_jobs
from swarm.model.span import SpanModule

MAX_LINES = 4096
"""Positions in one forward; more would only make the others wait longer."""

PATIENCE = 0.25
"""Share of its last forward's time that the thread waits for as many passes as that had."""
MEASURED_LINES = 32
MEASURE_WEIGHT = 0.05
"""Of a new forward in the moving mean of the throughput."""

Result = tuple[Tensor | ScoreRows, int]


@dataclass(eq=False, slots=True)
class _Waiting:
    span: Span
    job: Job
    expires: float
    owner: Hashable
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Result]"

    def settle(self, outcome: "Result | BaseException") -> None:
        """Called on the compute thread."""
        self.loop.call_soon_threadsafe(_settle, self.future, outcome)


class Batcher:
    """`joins` False runs every pass alone, whatever waits. `threads` None leaves torch's setting as it is."""

    def __init__(self, module: SpanModule, *, joins: bool = True, threads: Threads | None = None) -> None:
        self.batches = 0
        self.throughput = 0.0
        self._module = module
        self._joins = joins
        self._threads = threads
        self._queue: deque[_Waiting] = deque()
        self._awake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="compute", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    async def run(self, span: Span, job: Job, expires: float, owner: Hashable = None) -> Result:
        """The result and the forward's microseconds. Raises BadRequest, or PassTimeout after `expires` (monotonic).

        Is cancelled when `owner` drops it.
        """
        loop = asyncio.get_running_loop()
        entry = _Waiting(span, job, expires, owner, loop, loop.create_future())
        with self._awake:
            self._queue.append(entry)
            self._awake.notify()
        return await entry.future

    def refuse_waiting(self, reason: GlossError) -> None:
        with self._awake:
            waiting, self._queue = self._queue, deque()
        for entry in waiting:
            entry.settle(reason)

    def drop(self, owner: Hashable) -> None:
        """Cancel what `owner` has waiting here. Called in the event loop that it came from."""
        with self._awake:
            dropped = [entry for entry in self._queue if entry.owner == owner]
            for entry in dropped:
                self._queue.remove(entry)
        for entry in dropped:
            entry.future.cancel()

    def close(self) -> None:
        with self._awake:
            self._closed = True
            self._awake.notify()
        self._thread.join()

    def _work(self) -> None:
        company, patience_s = 1, 0.0
        while batch := self._take(company, patience_s):
            ready = [entry for entry in batch if self._is_ready(entry)]
            began = time.monotonic()
            if ready:
                self._run(ready)
            company, patience_s = len(ready), PATIENCE * (time.monotonic() - began)

    def _take(self, company: int, patience_s: float) -> list[_Waiting]:
        """The next passes to run together, for up to `patience_s` no fewer than `company`; empty when closed."""
        with self._awake:
            while True:
                self._awake.wait_for(lambda: self._queue or self._closed)
                if self._joins and company > 1:
                    self._awake.wait_for(lambda: len(self._queue) >= company or self._closed, patience_s)
                if self._closed:
                    return []
                if self._queue:
                    break  # else what waited was refused meanwhile
            first = self._queue.popleft()
            batch, lines = [first], _lines(first.job)
            if self._joins:
                for entry in list(self._queue):
                    more = _lines(entry.job)
                    if entry.span == first.span and lines + more <= MAX_LINES and not _shares_cache(entry, batch):
                        self._queue.remove(entry)
                        batch.append(entry)
                        lines += more
            return batch

    def _is_ready(self, entry: _Waiting) -> bool:
        if entry.future.cancelled():
            return False
        try:
            if time.monotonic() > entry.expires:
                raise PassTimeout("the pass waited here past its deadline")
            check_job(self._module, entry.span, entry.job)
        except GlossError as error:
            entry.settle(error)
            return False
        return True

    def _run(self, batch: Sequence[_Waiting]) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads.of_forward(sum(_lines(entry.job) for entry in batch)))
        began = time.perf_counter()
        try:
            results = run_jobs(self._module, batch[0].span, [entry.job for entry in batch])
        except BaseException as error:
            for entry in batch:
                entry.settle(error)
            return
        self.batches += 1
        seconds = time.perf_counter() - began
        compute_us = int(seconds * 1e6)
        self._measure(sum(_lines(entry.job) for entry in batch), len(batch[0].span), seconds)
        for entry, result in zip(batch, results, strict=True):
            entry.settle((result, compute_us))

    def _measure(self, lines: int, parts: int, seconds: float) -> None:
        """A forward of few lines says more about calling than about computing."""
        if lines >= MEASURED_LINES:
            latest = lines * parts / max(seconds, 1e-9)
            self.throughput += (latest - self.throughput) * (MEASURE_WEIGHT if self.throughput else 1.0)


def _settle(future: "asyncio.Future[Result]", outcome: "Result | BaseException") -> None:
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _lines(job: Job) -> int:
    return int(job.x.shape[0]) * (int(job.x.shape[1]) if job.x.ndim > 1 else 1)


def _shares_cache(entry: _Waiting, batch: Sequence[_Waiting]) -> bool:
    cache = entry.job.cache
    return cache is not None and any(other.job.cache is cache for other in batch)
