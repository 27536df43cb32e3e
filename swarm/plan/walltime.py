"""How long a step takes over a chain, and how far patches and requests in flight hide its round trips.

One span needs `compute_s` for all active positions; a patch of 1/M of them needs that share of what scales with
positions, and all of what does not (reading the weights). One way over a link is half its round trip. A chain of S
spans has S + 1 legs when the coordinator is none of them, S when it is the first.

    synchronous        S c + legs r/2
    patches            max(M c_p, S c_p + legs r/2)              a patch re-enters when its own rows are back
    requests in flight max(D M c_p, S c_p + legs r/2) / D        a span's device is never asked for more than it has

Seconds throughout.
"""

from dataclasses import dataclass


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
