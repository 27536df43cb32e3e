"""Move to where the swarm needs this node more: seldom, not all at once, and never away from what nobody else serves.

A move announces where it goes, loads the new span beside the old one, waits until everybody can have seen that, and
looks again: a node does not leave parts that others may be about to leave as well. Then it announces the new span,
serves both until the old one is quiet, and unloads it.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from glossd.hosting import Hosting
from glossd.membership import Membership
from glossd.observe import Log
from swarm.chain.peers import REFRESH_S
from swarm.errors import GlossError
from swarm.host.host import SpanHost
from swarm.ids import Span
from swarm.plan.placement import Hosted

log = Log("glossd.moving")


@dataclass(frozen=True, slots=True)
class Pace:
    """`look_s` between looks, `settle_s` for news to spread, both drawn from half to one and a half times; `rest_s`
    after a move, except where parts are not covered; `quiet_s` at most for the old span to fall silent."""

    look_s: float = 8.0
    settle_s: float = 2.0
    rest_s: float = 60.0
    known_s: float = 1.5 * REFRESH_S
    quiet_s: float = 20.0


PACE = Pace()


class Mover:
    """`others` reads the directory anew, see `hosted_by_others`; `lacks` tells whether a part is covered by nobody."""

    def __init__(
        self,
        hosting: Hosting,
        membership: Membership,
        others: Callable[[bool], Awaitable[list[Hosted]]],
        lacks: Callable[[], bool],
        pace: Pace,
    ) -> None:
        self.moves = 0
        self._hosting = hosting
        self._membership = membership
        self._others = others
        self._lacks = lacks
        self._pace = pace
        self._rests_until = 0.0

    async def settle(self, span: Span) -> Span:
        """Before anything is loaded: announce `span`, and choose again once those that start now have chosen too."""
        for _ in range(3):
            await self._membership.announce("joining", span)
            if not await self._others(True):
                break
            await asyncio.sleep(_around(self._pace.settle_s / 2))
            again = self._hosting.choose(await self._others(True))
            if again is None or again == span:
                break
            span = again
        return span

    async def keep(self) -> None:
        """Look and move until cancelled. Cancelled in the middle, the node serves what it announced last."""
        wanted: Span | None = None
        while True:
            await asyncio.sleep(_around(self._pace.look_s))
            try:
                target = self._hosting.better(await self._others(True))
                hurries = self._lacks()
                if target is not None and (hurries or (target == wanted and time.monotonic() > self._rests_until)):
                    await self._move(target)
                wanted = target  # seen twice, it is more than a moment
            except GlossError as error:
                log.warning("not moved", reason=error)

    async def _move(self, target: Span) -> None:
        old_span, old_hosts = self._hosting.span, list(self._hosting.spans)
        if old_span is None:
            return
        log.info("moving", parts=old_span, to=target)
        await self._membership.announce("online", old_span, target)
        try:
            new = await self._hosting.load(target)
        except Exception:
            await self._membership.announce("online", old_span)
            raise
        try:
            await asyncio.sleep(_around(self._pace.settle_s))
            if not self._hosting.is_still_better(target, await self._others(False)):
                await self._membership.announce("online", old_span)
                log.info("stayed", parts=old_span)
                return
            self._hosting.span = target
            await self._membership.announce("online", target)
            self.moves += 1
            log.info("moved", parts=target)
        finally:
            leftover = old_hosts if self._hosting.span == target else [new]
            await asyncio.shield(asyncio.ensure_future(self._unload(leftover)))
            self._rests_until = time.monotonic() + _around(self._pace.rest_s)

    async def _unload(self, hosts: list[SpanHost]) -> None:
        """After the passes that were sent here before others knew."""
        if hosts[0].span != self._hosting.span:
            await asyncio.sleep(self._pace.known_s)
        for host in hosts:
            await self._hosting.spans.quiet(self._pace.quiet_s, host.span)
            self._hosting.spans.drop(host)


def _around(seconds: float) -> float:
    """Machines that start together, or see the same gap, must not all act in the same instant."""
    return seconds * random.uniform(0.5, 1.5)  # noqa: S311
