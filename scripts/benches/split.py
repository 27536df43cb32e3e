"""One model over two processes against one process, same threads in all (processes on loopback).

Keys: ratio (speed of two over speed of one, medians of interleaved rounds), steps_per_s of each.
"""

import statistics

from scripts.benches.harness import say, summary
from scripts.benches.spine import answers
from tests.swarmlab.daemons import swarm

ROUNDS, PER_ROUND = 12, 4
BODY: dict[str, object] = {"prompt": "Once upon a time", "max_tokens": 48, "commit": "quota", "suppress_eos": True}


def run() -> dict[str, object]:
    say("starting one and two processes")
    with swarm("0:8", threads=1) as one, swarm("0:4", "4:8", threads=1) as two:
        speeds: dict[str, list[float]] = {"one": [], "two": []}
        for _ in range(ROUNDS):
            for name, node in (("one", one[0]), ("two", two[0])):
                done = answers(node, [BODY] * PER_ROUND)
                speeds[name].append(sum(d.timings.steps for d in done) / sum(d.timings.decode_s for d in done))
    ratios = [b / a for a, b in zip(speeds["one"], speeds["two"], strict=True)]
    return {
        "where": "processes on loopback",
        "ratio": round(statistics.median(ratios), 3),
        "ratio_spread": summary(ratios, 3),
        "steps_per_s": {name: summary(values, 1) for name, values in speeds.items()},
    }
