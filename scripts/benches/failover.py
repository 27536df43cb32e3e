"""What the faults of peers cost: each in the middle of an answer, which is compared with the undisturbed one.

Seven processes on loopback: a coordinator that hosts nothing, and two hosts for each of three spans. Every run draws a
request, a step and one peer of its chain from its seed. First that peer is killed (SIGKILL) when the step is reported,
and started again afterwards. GLOSSD_FAILOVER_RUNS sets how often (50). Keys: runs, identical (share of answers equal to
the undisturbed ones), added_s_median, added_s_p95 and added_s_max (time of the answer over the median undisturbed time
of the same request), replays, seeds (first and last), failed (seeds of runs that gave another answer or none),
coverage_lost_s (from the death of the last host of a span to the error that names its parts).

Then the peer does something wrong instead, or stands still (sigstop), FAULT_RUNS times each: faults has for each fault
runs, identical and added_s. Last, partition: two nodes, one of which needs the other, are parted for PARTED_S;
identical (of the node that covers all parts meanwhile, and of both afterwards), lost_s (until the other says
coverage_lost), rejoin_s (from the healing until both list each other).
"""

import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGCONT, SIGSTOP

from glossd.events import Error, Step
from scripts.benches.harness import say, summary
from tests.swarmlab.daemons import Daemon, owner, swarm_of
from tests.swarmlab.faulty import Fault, Faulty
from tests.swarmlab.history import Body, Entry, History
from tests.swarmlab.shaper import flags_of, shaped

RUNS, FIRST_SEED, UNDISTURBED = int(os.environ.get("GLOSSD_FAILOVER_RUNS", "50")), 1, 3
FAULT_RUNS, PARTED_S = 4, 30.0
SPANS = ("0:3", "0:3", "3:6", "3:6", "6:8", "6:8")
BODIES: list[Body] = [
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
WRONGS = (
    Fault.SLOW, Fault.HANG, Fault.NAN, Fault.WRONG_SHAPE, Fault.WRONG_DTYPE, Fault.STALE, Fault.REPLAY, Fault.DISCONNECT
)  # fmt: skip


class Disturbed:
    """Answers of `node` while something happens to a peer of the chain, compared with how it was before."""

    def __init__(self, nodes: list[Faulty]) -> None:
        self.node, self.hosts = nodes[0], nodes
        self.history = History.by(self.node, BODIES)
        plain = [[self.history.ask(self.node, index) for _ in range(UNDISTURBED)] for index in range(len(BODIES))]
        self.steps = [self.node.ask(body).timings.steps for body in BODIES]
        self.undisturbed_s = [statistics.median(entry.seconds for entry in entries) for entries in plain]

    def run(self, seed: int, harm: Callable[[Faulty], None], heal: Callable[[Faulty], None]) -> Entry:
        rng = random.Random(seed)
        index = rng.randrange(len(BODIES))
        at, hop = rng.randrange(self.steps[index] - 2), rng.randrange(3)
        victims: list[Faulty] = []

        def harm_one(step: Step) -> None:
            victims.append(owner(step.chain[hop].peer, self.hosts))
            harm(victims[0])

        entry = self.history.ask(self.node, index, at, harm_one)
        say(
            f"seed {seed}: request {index}, step {at}, hop {hop}: {entry.seconds:.2f} s, {entry.problem or 'identical'}"
        )
        for victim in victims:
            heal(victim)
        self.node.wait_covered(peers=len(SPANS))
        return entry

    def added_s(self, entries: list[Entry]) -> list[float]:
        return [entry.seconds - self.undisturbed_s[entry.index] for entry in entries if not entry.problem]


def identical(entries: list[Entry]) -> float:
    return round(sum(not entry.problem for entry in entries) / len(entries), 3)


def kills(disturbed: Disturbed) -> dict[str, object]:
    seeds = range(FIRST_SEED, FIRST_SEED + RUNS)
    entries = [disturbed.run(seed, Daemon.kill, lambda victim: victim.launch().wait_ready()) for seed in seeds]
    added = disturbed.added_s(entries)
    return {
        "runs": RUNS,
        "identical": identical(entries),
        "added_s_median": round(statistics.median(added), 3),
        "added_s_p95": round(statistics.quantiles(added, n=20, method="inclusive")[-1], 3),
        "added_s_max": round(max(added), 3),
        "replays": summary([float(entry.replays) for entry in entries], 1),
        "seeds": [seeds[0], seeds[-1]],
        "failed": [seed for seed, entry in zip(seeds, entries, strict=True) if entry.problem],
    }


def faults(disturbed: Disturbed) -> dict[str, object]:
    measured: dict[str, object] = {}
    for fault in (*WRONGS, "sigstop"):
        say(f"fault {fault}")
        if isinstance(fault, Fault):
            harm, heal = (lambda victim, fault=fault: victim.tell(fault)), (lambda victim: victim.tell(Fault.NONE))
        else:
            harm, heal = (lambda victim: victim.send(SIGSTOP)), (lambda victim: victim.send(SIGCONT))
        entries = [disturbed.run(seed, harm, heal) for seed in range(FAULT_RUNS)]
        added = disturbed.added_s(entries)
        measured[str(fault)] = {
            "runs": FAULT_RUNS, "identical": identical(entries), "added_s": summary(added, 2) if added else None
        }  # fmt: skip
    return measured


def last_host_s(disturbed: Disturbed) -> float:
    """Seconds from the death of both hosts of a span, in the middle of a request, to the error that says so."""
    died = 0.0

    def kill_both(step: Step) -> None:
        nonlocal died
        for host in disturbed.hosts[3:5]:
            host.kill()
        died = time.perf_counter()

    last = disturbed.history.ask(disturbed.node, 0, 5, kill_both).last
    if not isinstance(last, Error) or last.code != "coverage_lost" or last.parts != (3, 4, 5):
        raise RuntimeError(f"without hosts of 3:6 the request ended with {last}")
    return time.perf_counter() - died


def partition(folder: Path) -> dict[str, object]:
    with shaped(2) as paths:
        a = Daemon(folder / "a", {"layers": "0:8", **flags_of(paths[0])}).launch()
        b = Daemon(folder / "b", {"layers": "4:8", **flags_of(paths[1])})
        try:
            b.flags["join"] = [a.wait_ready().join_address]
            b.launch().wait_ready().wait_covered(peers=2)
            a.wait_covered(peers=2)
            history = History.by(a, BODIES)
            began = time.monotonic()

            def part(step: Step) -> None:
                for path in paths:
                    path.there = path.back = False

            lost = history.ask(b, 0, 4, part)
            entries = [history.ask(a, index) for index in range(len(BODIES))]
            time.sleep(max(0.0, began + PARTED_S - time.monotonic()))
            for path in paths:
                path.heal()
            healed = time.monotonic()
            for node in (a, b):
                node.wait_covered(peers=2)
            rejoin_s = time.monotonic() - healed
            entries += [history.ask(node, index) for node in (a, b) for index in range(len(BODIES))]
        finally:
            a.end()
            b.end()
    return {
        "identical": identical(entries),
        "lost_s": round(lost.seconds, 2),
        "lost": getattr(lost.last, "code", lost.last.type),
        "rejoin_s": round(rejoin_s, 2),
    }


def run() -> dict[str, object]:
    with swarm_of(Faulty, "none", *SPANS) as nodes:
        say("undisturbed")
        disturbed = Disturbed(nodes)
        killed = kills(disturbed)
        wrong = faults(disturbed)
        lost_s = last_host_s(disturbed)
    say("partition")
    with tempfile.TemporaryDirectory(prefix="glossd-") as folder:
        parted = partition(Path(folder))
    return {
        "where": "processes on loopback",
        **killed,
        "coverage_lost_s": round(lost_s, 2),
        "faults": wrong,
        "partition": parted,
    }
