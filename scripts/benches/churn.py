"""Rolling churn: a fifth of eight hosts leaves or joins per minute, under steady load.

Nine processes on loopback: a coordinator that hosts nothing and eight hosts. Hosts are killed or leave as the seed
says, never the last one of a span, and come back with the same identity. Two clients send one request after the other
throughout. GLOSSD_CHURN_MINUTES sets how long (5), GLOSSD_CHURN_SEED the seed (1). Keys: success (share of requests
answered), identical (share of answers equal to the undisturbed ones, each step committed once), requests, moves (what
happened, in order), replays, answer_s (time of an answer), problems (the first ten), minutes, seed.
"""

import os
import time
from collections.abc import Sequence

from scripts.benches.failover import BODIES
from scripts.benches.harness import say, summary
from tests.swarmlab.daemons import Daemon, swarm
from tests.swarmlab.history import History
from tests.swarmlab.schedule import Move, churn

CLIENTS, SHARE_PER_MINUTE = 2, 0.2
SPANS = ("0:3", "0:3", "0:3", "3:6", "3:6", "3:6", "6:8", "6:8")


def play(moves: Sequence[Move], hosts: Sequence[Daemon], minutes: float) -> None:
    """Do what the schedule says, when it says so. Ends after `minutes`, with everybody back."""
    began = time.monotonic()
    for move in moves:
        time.sleep(max(0.0, began + move.at_s - time.monotonic()))
        host = hosts[move.host]
        say(f"{move.at_s:.0f} s: host {move.host} of {host.flags['layers']} {move.what}")
        if move.what == "joins":
            host.launch().wait_ready()
        elif move.what == "killed":
            host.kill()
        else:
            host.end()
    time.sleep(max(0.0, began + 60 * minutes - time.monotonic()))


def run() -> dict[str, object]:
    minutes, seed = float(os.environ.get("GLOSSD_CHURN_MINUTES", "5")), int(os.environ.get("GLOSSD_CHURN_SEED", "1"))
    moves = churn(seed, SPANS, SHARE_PER_MINUTE, minutes)
    with swarm("none", *SPANS) as nodes:
        history = History.by(nodes[0], BODIES)
        with history.load(nodes[:1], CLIENTS, seed):
            play(moves, nodes[1:], minutes)
    return {
        "where": "processes on loopback",
        "success": round(history.success, 4),
        "identical": round(history.identical, 4),
        "requests": len(history.entries),
        "moves": [f"{move.at_s:.0f} s: {move.host} {move.what}" for move in moves],
        "replays": sum(entry.replays for entry in history.entries),
        "answer_s": summary([entry.seconds for entry in history.answered], 2),
        "problems": history.problems[:10],
        "minutes": minutes,
        "seed": seed,
    }
