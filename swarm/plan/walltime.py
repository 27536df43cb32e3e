"""How long a step takes over a chain, and how many patches, windows and requests in flight hide its round trips.

One span needs `compute_s` for all active positions; a patch of 1/M of them needs that share of what scales with
positions, and all of what does not (reading the weights). One way over a link is half its round trip. A chain of S
spans has S + 1 legs when the coordinator is none of them, S when it is the first.

    synchronous        S c + legs r/2
    patches            max(M c_p, S c_p + legs r/2)              a patch re-enters when its own rows are back
    requests in flight max(D M c_p, S c_p + legs r/2) / D        a span's device is never asked for more than it has
    windows            (S c g + legs r/2) / accepted             g: how much W rows cost more than one

Seconds throughout.
"""

import math
from dataclasses import dataclass

ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Chain:
    """`fixed_share` is the part of a span's time that does not shrink with fewer positions, from 0 to 1."""

    spans: int
    compute_s: float
    rtt_s: float
    coordinator_serves: bool = False
    fixed_share: float = 0.0

    @property
    def travel_s(self) -> float:
        legs = self.spans if self.coordinator_serves else self.spans + 1
        return legs * self.rtt_s / 2

    def patch_s(self, patches: int) -> float:
        """A span's time for one of so many patches."""
        return self.compute_s * (self.fixed_share + (1 - self.fixed_share) / patches)


def synchronous_s(chain: Chain) -> float:
    return chain.spans * chain.compute_s + chain.travel_s


def pipelined_s(chain: Chain, patches: int, in_flight: int = 1) -> float:
    """A round of all patches, for each of `in_flight` requests that share the chain."""
    patch_s = chain.patch_s(patches)
    return max(in_flight * patches * patch_s, chain.spans * patch_s + chain.travel_s) / in_flight


def window_s(chain: Chain, accepted: float, row_cost: float = 1.0) -> float:
    """A step, when a window's pass costs `row_cost` times a lone one and `accepted` of its steps hold on average."""
    return (chain.spans * chain.compute_s * row_cost + chain.travel_s) / accepted


def masked_share(chain: Chain, patches: int) -> float:
    """The share of the travelling that patches hide: 1 when a round costs no more than without round trips."""
    if chain.travel_s == 0:
        return 1.0
    near = Chain(chain.spans, chain.compute_s, 0.0, chain.coordinator_serves, chain.fixed_share)
    return (synchronous_s(chain) - pipelined_s(chain, patches)) / (synchronous_s(chain) - synchronous_s(near))


def best_patches(chain: Chain, most: int) -> int:
    """The number of patches, 1 to `most`, of the shortest round; the fewest of those that are equally short."""
    return min(range(1, most + 1), key=lambda patches: (pipelined_s(chain, patches), patches))


def requests_to_fill(chain: Chain, patches: int = 1) -> int:
    """Requests in flight from which on the spans' devices, not the way between them, set the pace."""
    patch_s = chain.patch_s(patches)
    cycle = chain.spans * patch_s + chain.travel_s
    return max(1, math.ceil(cycle / (patches * patch_s) - ROUNDING))
