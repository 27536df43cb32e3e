"""A seeded schedule of nodes that leave and come back, never the last of a span. Pure."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Move:
    """At `at_s` seconds host number `host` is killed, leaves as it should, or joins again."""

    at_s: float
    host: int
    what: Literal["killed", "leaves", "joins"]


def churn(seed: int, spans: Sequence[str], share_per_minute: float, minutes: float) -> list[Move]:
    """Moves of that share of the hosts a minute, at even distances with jitter. `spans` are those of the hosts.

    A host leaves only while another one of its span is there, and at most a quarter of all are away at once.
    """
    rng = random.Random(seed)
    gap_s = 60 / (share_per_minute * len(spans))
    away: list[int] = []
    moves: list[Move] = []
    at_s = gap_s * rng.uniform(0.2, 0.8)
    while at_s < 60 * minutes:
        there = [host for host in range(len(spans)) if host not in away]
        can_leave = [host for host in there if sum(spans[other] == spans[host] for other in there) > 1]
        if away and (len(away) >= len(spans) // 4 or not can_leave or rng.random() < 0.5):
            moves.append(Move(at_s, away.pop(rng.randrange(len(away))), "joins"))
        elif can_leave:
            host = rng.choice(can_leave)
            away.append(host)
            moves.append(Move(at_s, host, rng.choice(("killed", "leaves"))))
        at_s += gap_s * rng.uniform(0.8, 1.2)
    return moves
