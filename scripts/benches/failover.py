"""What the death of a peer costs: kill -9 at a random step, answers compared with the undisturbed ones.

Seven processes on loopback: a coordinator that hosts nothing, and two hosts for each of three spans. Every run draws a
request, a step and one peer of its chain from its seed, kills that peer when the step is reported, and starts it again
afterwards. Keys: runs, identical (share of answers equal to the undisturbed ones), added_s_median and added_s_p95 (time
of the answer over the median undisturbed time of the same request), replays, seeds (first and last), failed (seeds of
runs that gave another answer or none), coverage_lost_s (from the death of the last host of a span to the error that
names its parts).
"""

import random
import statistics
import time
from contextlib import closing

from glossd.events import Done, Error, RequestEvent, Step
from scripts.benches.harness import say, summary
from tests.swarmlab.daemons import Daemon, swarm

RUNS, FIRST_SEED, UNDISTURBED = 50, 1, 3
SPANS = ("0:3", "0:3", "3:6", "3:6", "6:8", "6:8")
BODIES: list[dict[str, object]] = [
    {"prompt": text, "max_tokens": 48, "commit": "quota", "suppress_eos": True, "seed": seed, **more}
    for seed, (text, more) in enumerate(
        [
            ("Once upon a time", {}),
            ("In a meadow far away", {"temperature": 0.8}),
            ("There was a brave", {"cache": "dual", "block_length": 16}),
            ("One day it found", {"cfg_scale": 1.0}),
        ]
    )
]


def follow(
    node: Daemon, body: dict[str, object], at: int, hop: int, nodes: list[Daemon]
) -> tuple[RequestEvent, Daemon]:
    """Run a request, kill the peer of `hop` when step `at` is reported; the last event and the victim."""
    victim = node
    with closing(node.client.events(body)) as events:
        for event in events:
            if isinstance(event, Step) and event.step == at:
                victim = owner(event.chain[hop].peer, nodes)
                victim.kill()
    return event, victim


def owner(peer: str, nodes: list[Daemon]) -> Daemon:
    return next(node for node in nodes if f"  {peer}\n" in node.log)


def timed(node: Daemon, body: dict[str, object]) -> tuple[float, Done]:
    began = time.perf_counter()
    done = node.ask(body)
    return time.perf_counter() - began, done


def last_host(node: Daemon, nodes: list[Daemon]) -> float:
    """Seconds from the death of both hosts of a span, in the middle of a request, to the error that says so."""
    died = 0.0
    with closing(node.client.events(BODIES[0])) as events:
        for event in events:
            if isinstance(event, Step) and event.step == 5:
                for host in nodes[3:5]:
                    host.kill()
                died = time.perf_counter()
    if not isinstance(event, Error) or event.code != "coverage_lost" or event.parts != (3, 4, 5):
        raise RuntimeError(f"without hosts of 3:6 the request ended with {event}")
    return time.perf_counter() - died


def run() -> dict[str, object]:
    added, replays, failed = [], [], []
    with swarm("none", *SPANS) as nodes:
        node = nodes[0]
        say("undisturbed")
        plain = [[timed(node, body) for _ in range(UNDISTURBED + 1)][1:] for body in BODIES]
        for seed in range(FIRST_SEED, FIRST_SEED + RUNS):
            rng = random.Random(seed)
            index = rng.randrange(len(BODIES))
            want = plain[index][0][1]
            at, hop = rng.randrange(want.timings.steps - 2), rng.randrange(3)
            began = time.perf_counter()
            last, victim = follow(node, BODIES[index], at, hop, nodes)
            seconds = time.perf_counter() - began
            if isinstance(last, Done) and last.token_ids == want.token_ids:
                added.append(seconds - statistics.median(took for took, _ in plain[index]))
                replays.append(last.timings.replays)
            else:
                failed.append(seed)
            say(f"seed {seed}: request {index}, step {at}, hop {hop}: {seconds:.2f} s, {last.type}")
            victim.launch().wait_ready()
            node.wait_covered(peers=len(SPANS))
        lost_s = last_host(node, nodes)
    ordered = summary(added, 3)
    return {
        "where": "processes on loopback",
        "runs": RUNS,
        "identical": round(len(added) / RUNS, 3),
        "added_s_median": ordered["median"],
        "added_s_p95": round(statistics.quantiles(added, n=20, method="inclusive")[-1], 3),
        "added_s_max": round(max(added), 3),
        "replays": summary([float(n) for n in replays], 1),
        "seeds": [FIRST_SEED, FIRST_SEED + RUNS - 1],
        "failed": failed,
        "coverage_lost_s": round(lost_s, 2),
    }
