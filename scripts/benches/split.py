"""The embedded model over two processes against one process (processes on loopback).

Two processes of one thread each have two threads in total, so `ratio` compares them with one process of two threads,
as the target asks. For this model a second thread is no help: one process is faster with one thread, which is also what
a node takes by itself. `ratio_best` compares with that; since a request's pass is in one of the two processes at a
time, it shows what a hop costs. Each is measured with one request at a time, and with four at once (`_busy`).

Keys: ratio, ratio_best, ratio_busy, ratio_best_busy (medians of the rounds' ratios), spread of each, steps_per_s of
each.
"""

import statistics
import time
from concurrent.futures import ThreadPoolExecutor

from scripts.benches.harness import say, summary
from scripts.benches.spine import answers
from tests.swarmlab.daemons import Daemon, swarm

ROUNDS, PER_ROUND, AT_ONCE = 8, 3, 4
BODY: dict[str, object] = {"prompt": "Once upon a time", "max_tokens": 48, "commit": "quota", "suppress_eos": True}


def alone(node: Daemon) -> float:
    done = answers(node, [BODY] * PER_ROUND)
    return sum(d.timings.steps for d in done) / sum(d.timings.decode_s for d in done)


def busy(node: Daemon) -> float:
    began = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as clients:
        done = list(clients.map(lambda seed: answers(node, [BODY | {"seed": seed}] * 2), range(AT_ONCE)))
    return sum(d.timings.steps for each in done for d in each) / (time.perf_counter() - began)


def run() -> dict[str, object]:
    say("starting one process of one thread, one of two, and two of one")
    with swarm("0:8", threads=1) as best, swarm("0:8", threads=2) as one, swarm("0:4", "4:8", threads=1) as two:
        nodes = {"best": best[0], "one": one[0], "two": two[0]}
        speeds: dict[str, list[float]] = {f"{name}{way}": [] for name in nodes for way in ("", "_busy")}
        for _ in range(ROUNDS):
            for way, measured in (("", alone), ("_busy", busy)):
                for name, node in nodes.items():
                    speeds[name + way].append(measured(node))
    ratios = {
        f"ratio{against}{way}": [b / a for a, b in zip(speeds[name + way], speeds["two" + way], strict=True)]
        for way in ("", "_busy")
        for against, name in (("", "one"), ("_best", "best"))
    }
    return {
        "where": "processes on loopback",
        **{name: round(statistics.median(values), 3) for name, values in ratios.items()},
        "spread": {name: summary(values, 3) for name, values in ratios.items()},
        "steps_per_s": {name: summary(values, 1) for name, values in speeds.items()},
    }
