"""What a node costs: start, status, idleness, memory (processes on loopback, warm page cache).

Keys: two_nodes_ready_s (both started together, to serving), status_ms (`glossd status` as a process), idle_core_share
(of one core over ten seconds, with p2pd), rss_mb (the daemon with its p2pd, less the model).
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from scripts.benches.harness import say, summary
from tests.swarmlab.daemons import Daemon, swarm

IDLE_S = 10.0


def family(daemon: Daemon) -> list[psutil.Process]:
    if daemon.process is None:
        raise RuntimeError("the daemon does not run")
    main = psutil.Process(daemon.process.pid)
    return [main, *main.children(recursive=True)]


def cpu_s(daemon: Daemon) -> float:
    return sum(p.cpu_times().user + p.cpu_times().system for p in family(daemon))


def run() -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="glossd-") as folder:
        say("two nodes together")
        pair = [Daemon(Path(folder) / name, {"layers": "0:8"}).launch() for name in "ab"]
        ready = [node.wait_ready().ready_s for node in pair]
        for node in pair:
            node.end()
    with swarm("0:8") as (node,):
        say("status, idleness, memory")
        times = []
        for _ in range(12):
            began = time.perf_counter()
            command = [sys.executable, "-m", "glossd.cli.main", "status", "--socket", str(node.socket)]
            subprocess.run(command, check=True, capture_output=True)
            times.append(1e3 * (time.perf_counter() - began))
        time.sleep(5)
        before = cpu_s(node)
        time.sleep(IDLE_S)
        idle = (cpu_s(node) - before) / IDLE_S
        memory = sum(p.memory_info().rss for p in family(node))
    return {
        "where": "processes on loopback",
        "two_nodes_ready_s": round(max(ready), 2),
        "status_ms": summary(times, 1),
        "idle_core_share": round(idle, 4),
        "rss_mb": round(memory / 2**20 - 11, 1),
    }
