"""Steady load while nodes come and go: a fifth of the hosts leaves, and comes back, every minute.

Nine processes on loopback: a coordinator that hosts nothing, and eight hosts, two or more for each part. Leaving is
`kill -9` or SIGTERM, as the seed says; whoever left starts again some seconds later with the same identity. Two clients
ask one request after the other throughout. GLOSSD_CHURN_MINUTES sets the length (5). Keys: success (share of requests
that were answered), identical (share of the answers that equal the undisturbed ones), requests, left, killed, replays,
answer_s (time of an answer), errors (codes), seed.
"""

import os
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from glossd.events import Done, RequestEvent
from scripts.benches.failover import BODIES
from scripts.benches.harness import say, summary
from tests.swarmlab.daemons import Daemon, swarm

SEED, CLIENTS, SHARE_PER_MINUTE = 1, 2, 0.2
AWAY_S = (5.0, 20.0)
SPANS = ("0:3", "0:3", "0:4", "3:6", "3:6", "4:8", "6:8", "6:8")


class Load:
    """Clients that ask until told to stop. `answers`: body, last event, seconds."""

    def __init__(self, node: Daemon) -> None:
        self.answers: list[tuple[int, RequestEvent, float]] = []
        self._node = node
        self._stop = threading.Event()

    def client(self, number: int) -> None:
        index = number
        while not self._stop.is_set():
            began = time.perf_counter()
            *_, last = self._node.client.events(BODIES[index % len(BODIES)])
            self.answers.append((index % len(BODIES), last, time.perf_counter() - began))
            index += 1

    def stop(self) -> None:
        self._stop.set()


def disturb(hosts: list[Daemon], seconds: float) -> tuple[int, int]:
    """Let hosts leave and come back at the rate of the bench; how many left, and how many of them were killed."""
    rng = random.Random(SEED)
    until, gap_s = time.monotonic() + seconds, 60 / (SHARE_PER_MINUTE * len(hosts))
    left = killed = 0
    while time.monotonic() + gap_s < until:
        time.sleep(gap_s / 2)
        host = rng.choice(hosts)
        kills = rng.random() < 0.5
        say(f"{host.flags['layers']} {'is killed' if kills else 'leaves'}")
        if kills:
            host.kill()
        else:
            host.end()
        left, killed = left + 1, killed + kills
        time.sleep(min(gap_s / 2, rng.uniform(*AWAY_S)))
        host.launch().wait_ready()
    return left, killed


def run() -> dict[str, object]:
    minutes = float(os.environ.get("GLOSSD_CHURN_MINUTES", "5"))
    with swarm("none", *SPANS) as nodes, ThreadPoolExecutor(CLIENTS) as pool:
        say("undisturbed")
        want = [nodes[0].ask(body).token_ids for body in BODIES]
        load = Load(nodes[0])
        clients = [pool.submit(load.client, number) for number in range(CLIENTS)]
        try:
            left, killed = disturb(nodes[1:], 60 * minutes)
        finally:
            load.stop()
        for client in clients:
            client.result()
    done = [(index, last, seconds) for index, last, seconds in load.answers if isinstance(last, Done)]
    return {
        "where": "processes on loopback",
        "minutes": minutes,
        "requests": len(load.answers),
        "success": round(len(done) / len(load.answers), 4),
        "identical": round(sum(last.token_ids == want[index] for index, last, _ in done) / len(done), 4),
        "left": left,
        "killed": killed,
        "replays": sum(last.timings.replays for _, last, _ in done),
        "answer_s": summary([seconds for _, _, seconds in done], 2),
        "errors": Counter(
            getattr(last, "code", last.type) for _, last, _ in load.answers if not isinstance(last, Done)
        ),
        "seed": SEED,
    }
