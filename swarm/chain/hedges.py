"""Passes that are late are sent to other replicas too, and the first valid answer wins. How late is late, how many may
be sent twice, and who looks after those that lost: one object for all requests that this node coordinates.

After Dean and Barroso, "The Tail at Scale" (CACM 2013): hedge when a call is later than nearly all before it.
"""

import asyncio
from collections import deque
from typing import Any

REMEMBERED, ENOUGH = 128, 20
"""Passes of a size that are remembered, and how many say what is late."""
QUANTILE = 0.95
LEAST_S = 0.05
"""No pass counts as late before this: shorter than what it costs to send one twice."""
BURST = 4.0
STRAGGLERS = 32


class Hedges:
    """`share` of all passes may be sent twice, 0 for none; a quiet time saves up for BURST of them."""

    def __init__(self, share: float) -> None:
        self.sent = 0
        self.won = 0
        self._share = share
        self._credit = BURST if share > 0 else 0.0
        self._took: dict[int, deque[float]] = {}
        self._stragglers: set[asyncio.Task[Any]] = set()

    def started(self) -> None:
        """A pass begins; hedges do not count as one."""
        self._credit = min(BURST, self._credit + self._share) if self._share > 0 else 0.0

    def took(self, size: int, seconds: float) -> None:
        """A pass over `size` positions ended well."""
        self._took.setdefault(size.bit_length(), deque(maxlen=REMEMBERED)).append(seconds)

    def late_s(self, sizes: list[int]) -> float | None:
        """When passes of these sizes, one after the other, are late; None while nobody can tell."""
        if self._credit < 1:
            return None
        late = 0.0
        for size in sizes:
            took = self._took.get(size.bit_length(), ())
            if len(took) < ENOUGH:
                return None
            late += sorted(took)[int(QUANTILE * (len(took) - 1))]
        return max(late, LEAST_S)

    def spend(self) -> bool:
        """Whether one more pass may be sent twice; it is counted then."""
        if self._credit < 1:
            return False
        self._credit -= 1
        self.sent += 1
        return True

    def follow(self, straggler: "asyncio.Task[Any]") -> None:
        """See a pass that lost to its end, also past its request, because how slow it was says whom to ask next."""
        self._stragglers.add(straggler)
        straggler.add_done_callback(self._ended)
        if len(self._stragglers) > STRAGGLERS:
            straggler.cancel()

    async def close(self) -> None:
        for task in self._stragglers:
            task.cancel()
        await asyncio.gather(*self._stragglers, return_exceptions=True)

    def _ended(self, straggler: "asyncio.Task[Any]") -> None:
        self._stragglers.discard(straggler)
        if not straggler.cancelled():
            straggler.exception()  # asyncio complains of failures that nobody looked at
