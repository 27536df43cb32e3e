"""The lab's delayed links: do they hold their round trip time, and how much do they carry?

Two public nodes, their links with half of the delay each. For every RTT asked: rtt_ms (of datagrams of 100 bytes,
median and spread) and rtt_error (median against what was asked, a share), mbit_per_s (one TCP connection after its
window has grown; over long paths the kernel's largest window limits it); the same with `busy_`, while one process per
core computes without end. rate_mbit_per_s: a link of 20 Mbit/s.
lost: the share of datagrams that never came back over two links of 1 % loss each (4 % expected, there and back).
Needs what a lab needs; run it on a quiet machine.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from scripts.benches.harness import say, summary
from scripts.netlab import Lab, missing, public_nodes
from scripts.netlab.probes import round_trips, throughput, udp

RTTS_MS = (10.0, 50.0, 100.0)
PINGS, LOST_OF = 40, 4000
RAMP_S, CARRY_S = 2.0, 2.0


@contextmanager
def busy_cores() -> Iterator[None]:
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def measure(lab: Lab, rtt_ms: float, label: str) -> dict[str, object]:
    took = summary([seconds * 1e3 for seconds in round_trips(lab, "p1", "p2", PINGS)], 2)
    carried = throughput(lab, "p1", "p2", CARRY_S, skip_s=RAMP_S)
    say(f"{rtt_ms:g} ms {label}: {took['median']} ms, {carried:.0f} Mbit/s")
    return {
        f"{label}rtt_ms": took,
        f"{label}rtt_error": round(took["median"] / rtt_ms - 1, 4),
        f"{label}mbit_per_s": round(carried),
    }


def lost_share(lab: Lab) -> float:
    """Datagrams sent without waiting, echoed at once."""
    with udp(lab, "p1") as here, udp(lab, "p2", 4500) as there:
        back = 0
        for _ in range(LOST_OF):
            here.sendto(bytes(100), (lab.address("p2"), 4500))
            there.settimeout(0.05)
            try:
                there.sendto(*there.recvfrom(200))
                here.settimeout(0.05)
                here.recv(200)
                back += 1
            except TimeoutError:
                continue
    return 1 - back / LOST_OF


def run() -> dict[str, object]:
    if missing():
        raise SystemExit(missing())
    rtts = []
    for rtt_ms in RTTS_MS:
        with Lab.made(public_nodes(2, rtt_ms)) as lab:
            found = {"asked_ms": rtt_ms, **measure(lab, rtt_ms, "")}
            with busy_cores():
                rtts.append({**found, **measure(lab, rtt_ms, "busy_")})
    with Lab.made(public_nodes(2, rtt_ms=20, rate_mbit=20)) as lab:
        rate = throughput(lab, "p1", "p2", CARRY_S, skip_s=1)
    with Lab.made(public_nodes(2, loss=0.01)) as lab:
        lost = lost_share(lab)
    return {
        "where": "delayed link between namespaces of this machine",
        "rtts": rtts,
        "rate_mbit_per_s": round(rate, 1),
        "lost": round(lost, 4),
    }
