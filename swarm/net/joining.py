"""Find the swarm, at the start and for as long as the node runs: dial known addresses, again and again with a back-off.

A node that finds nobody serves alone and goes on trying; when the swarm appears, or a partition heals, they merge.
Knows peers by address only. `Meet` is the dial and the handshake; tests give their own. Called by
`swarm.net.hivemind`.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from swarm.errors import GlossError
from swarm.ids import PeerId
from swarm.net.anchors import Anchors

RETRY_S, RETRY_MAX_S = 1.0, 10.0
"""First and longest pause before an address is tried again: a partition that heals must be over within 15 s."""
FIRST_S = 6.0
"""The start waits no longer than this for somebody to answer."""
_GRACE_S = 0.5
_TICK_S = 0.5
_KEEP_FIRST_S, _KEEP_EVERY_S = 2.0, 15.0

log = logging.getLogger(__name__)

Meet = Callable[[str], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class _Try:
    due: float = 0.0
    pause_s: float = RETRY_S
    told: bool = False


class Joining:
    """`meet` dials an address and makes the peer there a neighbour, or raises GlossError. `is_near` tells whether a
    peer is a neighbour already. `neighbours` are the addresses of all that are."""

    def __init__(
        self,
        join: Sequence[str],
        anchors: Anchors,
        meet: Meet,
        is_near: Callable[[PeerId], bool],
        neighbours: Callable[[], Awaitable[list[str]]],
    ) -> None:
        self._join = tuple(join)
        self._anchors = anchors
        self._meet = meet
        self._is_near = is_near
        self._neighbours = neighbours
        self._tries: dict[str, _Try] = {}

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self._join, *self._anchors.addresses)))

    async def first(self) -> dict[str, GlossError] | None:
        """Try all addresses at once; None when somebody answered, else why each did not."""
        dials = {asyncio.create_task(self._meet(address)): address for address in self.addresses}
        failed: dict[str, GlossError] = {}
        met, waiting, until = False, set(dials), time.monotonic() + FIRST_S
        try:
            while waiting and time.monotonic() < until:
                done, waiting = await asyncio.wait(
                    waiting, timeout=until - time.monotonic(), return_when=asyncio.FIRST_COMPLETED
                )
                for dial in done:
                    reason = dial.exception()
                    if reason is None and not met:
                        met, until = True, time.monotonic() + _GRACE_S
                    elif isinstance(reason, GlossError):
                        failed[dials[dial]] = reason
                    elif reason is not None:
                        raise reason
        finally:
            for dial in waiting:
                dial.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        for dial in waiting:
            failed[dials[dial]] = GlossError(f"nobody answers at {dials[dial]} within {FIRST_S:g} s")
        return None if met or not dials else failed

    async def keep(self, met: Callable[[], Awaitable[None]]) -> None:
        """Until cancelled: dial known addresses whose peers are no neighbours. `met` runs after each that answers."""
        keep_at = time.monotonic() + _KEEP_FIRST_S
        while True:
            await asyncio.sleep(_TICK_S)
            now = time.monotonic()
            due = [address for address in self.addresses if self._is_due(address, now)]
            if any(await asyncio.gather(*(self._again(address) for address in due))):
                await met()
                keep_at = now
            if now >= keep_at:
                keep_at = now + _KEEP_EVERY_S
                self._anchors.keep(_one_per_peer(await self._neighbours()))

    def _is_due(self, address: str, now: float) -> bool:
        if self._is_near(PeerId(address.rpartition("/p2p/")[2])):
            self._tries.pop(address, None)
            return False
        return self._tries.setdefault(address, _Try()).due <= now

    async def _again(self, address: str) -> bool:
        attempt = self._tries[address]
        try:
            await self._meet(address)
        except GlossError as error:
            # Once for each address that the user named, not at every try.
            level = logging.DEBUG if attempt.told or address not in self._join else logging.WARNING
            log.log(level, "cannot join through a node, trying on", extra={"fields": {"reason": str(error)}})
            attempt.told = True
            attempt.pause_s = min(2 * attempt.pause_s, RETRY_MAX_S)
            return False
        else:
            attempt.pause_s = RETRY_MAX_S
            return True
        finally:
            # Nodes that lost the same peer must not all come back in the same instant.
            attempt.due = time.monotonic() + attempt.pause_s * random.uniform(0.7, 1.0)  # noqa: S311


def _one_per_peer(addresses: Iterable[str]) -> list[str]:
    return list({address.rpartition("/p2p/")[2]: address for address in addresses}.values())
