"""Eight requests at once against one after the other on one node (one process, its own client on loopback).

The requests are prompts of 48 tokens, one token a step, so that all take 48 steps of canvases of one size, about 55
positions; every client reads all events of its answer, on the same processors as the node. The node has as many compute
threads as there are processors. Keys: speedup_8 (throughput ratio), p99_ratio (slowest of the eight over a lone one, of
all rounds), one_request_ratio (time of a lone request with batching on over off), identical (tokens the same in all
cases).
"""

import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import psutil

from scripts.benches.harness import say, summary
from scripts.benches.spine import answers
from tests.swarmlab.daemons import Daemon, swarm

ROUNDS, TOGETHER = 8, 8
BODIES: list[dict[str, object]] = [
    {"prompt": f"Sort: {i}", "max_tokens": 48, "commit": "quota", "suppress_eos": True} for i in range(TOGETHER)
]


def run() -> dict[str, object]:
    cores = psutil.cpu_count(logical=False) or 1
    say("starting a node that batches and one that does not")
    with (
        swarm("0:8", max_running=TOGETHER, threads=cores) as (on,),
        swarm("0:8", max_running=TOGETHER, threads=cores, deterministic=True) as (off,),
        ThreadPoolExecutor(TOGETHER) as pool,
    ):
        one_by_one: list[float] = []
        together: list[float] = []
        slowest: list[float] = []
        alone: dict[str, list[float]] = {"on": [], "off": []}
        tokens = set()

        def timed(daemon: Daemon, body: dict[str, object]) -> float:
            began = time.perf_counter()
            (done,) = answers(daemon, [body])
            tokens.add((body["prompt"], done.token_ids))
            return time.perf_counter() - began

        timed(on, BODIES[0])
        timed(off, BODIES[0])
        for _ in range(ROUNDS):
            lone = [timed(on, body) for body in BODIES]
            one_by_one.append(sum(lone))
            alone["on"] += lone
            alone["off"] += [timed(off, body) for body in BODIES]
            began = time.perf_counter()
            times = list(pool.map(lambda body: timed(on, body), BODIES))
            together.append(time.perf_counter() - began)
            slowest.append(max(times))
        median = statistics.median
        return {
            "where": "one node, its clients on loopback",
            "speedup_8": round(median([a / b for a, b in zip(one_by_one, together, strict=True)]), 2),
            "p99_ratio": round(max(slowest) / median(alone["on"]), 2),
            "one_request_ratio": round(median(alone["on"]) / median(alone["off"]), 3),
            "identical": len(tokens) == len(BODIES),
            "seconds_together": summary(together, 3),
            "seconds_one_by_one": summary(one_by_one, 3),
        }
