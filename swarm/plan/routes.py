"""Choose a chain: spans on peers that together cover all parts once, in order, at the least expected time.

A peer may run any part of what it hosts, so overlapping offers are cut where that is cheapest.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from swarm.errors import CoverageLost
from swarm.ids import PeerId, Span

JITTER = 0.05
"""Share of a hop's cost by which equal peers differ between requests, so that load spreads."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What a peer hosts. `parts_per_s` is its speed; `latency_s` one round trip to it, 0 for this node."""

    span: Span
    parts_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Hop:
    peer: PeerId
    span: Span


def uncovered(spans: list[Span], n_parts: int) -> tuple[int, ...]:
    """Parts that none of the spans holds, ascending."""
    held = {part for span in spans for part in span}
    return tuple(part for part in range(n_parts) if part not in held)


def choose_chain(offers: Mapping[PeerId, Offer], n_parts: int, salt: str = "") -> tuple[Hop, ...]:
    """The cheapest chain, by shortest path over the boundaries between parts.

    `salt` varies the choice among nearly equal peers; the same salt gives the same chain. Raises CoverageLost.
    """
    missing = uncovered([offer.span for offer in offers.values()], n_parts)
    if missing:
        raise CoverageLost(describe_missing(missing, n_parts), missing)
    cuts = sorted({0, n_parts} | {c for o in offers.values() for c in (o.span.start, o.span.stop) if c < n_parts})
    best: dict[int, tuple[float, int, PeerId]] = {0: (0.0, -1, PeerId(""))}
    for start in cuts[:-1]:
        reached = best[start][0]
        for peer, offer in sorted(offers.items()):
            if start not in offer.span:
                continue
            weight = 1 + JITTER * (zlib.crc32(f"{salt}/{peer}".encode()) / 2**32)
            for stop in cuts:
                if start < stop <= offer.span.stop:
                    work = (stop - start) / max(offer.parts_per_s, 1e-9)
                    cost = reached + weight * (offer.latency_s + work)
                    if stop not in best or cost < best[stop][0]:
                        best[stop] = (cost, start, peer)
    hops: list[Hop] = []
    stop = n_parts
    while stop > 0:
        _, start, peer = best[stop]
        hops.append(Hop(peer, Span(start, stop)))
        stop = start
    return tuple(reversed(hops))


def describe_missing(parts: tuple[int, ...], n_parts: int) -> str:
    """One line for people: which parts are missing, and what would serve them."""
    names = ", ".join(
        f"{part} (embedding)" if part == 0 else f"{part} (head)" if part == n_parts - 1 else str(part) for part in parts
    )
    return f"no live peer serves part{'s' * (len(parts) > 1)} {names} of 0:{n_parts}; start a node that hosts them"
