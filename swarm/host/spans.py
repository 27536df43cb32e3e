"""The spans that this node serves: one, and two for a while when it moves. The single door to the compute threads.

A node that is paused or leaves shuts the door: what runs ends, what waits is refused, and nothing new comes in.
Called by the relay for each hop, and by the daemon that moves, pauses and leaves.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from swarm.errors import PeerRefused
from swarm.host.host import Answer, SpanHost
from swarm.ids import PeerId, Span
from swarm.wire.messages import DType, PassRequest
from swarm.wire.tensors import Tensor


class HostedSpans:
    """At least one host is added before passes come in."""

    def __init__(self) -> None:
        self._hosts: list[SpanHost] = []
        self._shut = ""
        self._running: Counter[Span] = Counter()
        self._changed = asyncio.Event()

    def __iter__(self) -> Iterator[SpanHost]:
        """The newest first."""
        return reversed(self._hosts)

    @property
    def hidden_kind(self) -> tuple[DType, int]:
        return self._hosts[-1].hidden_kind

    @property
    def running(self) -> int:
        """Passes that run or wait here."""
        return self._running.total()

    def add(self, host: SpanHost) -> None:
        self._hosts.append(host)

    def drop(self, host: SpanHost) -> None:
        """Passes that still wait for it are refused."""
        self._hosts.remove(host)
        host.refuse_waiting(PeerRefused(f"this node no longer hosts {host.span}"))
        host.close()

    def shut(self, reason: str) -> None:
        self._shut = reason
        for host in self._hosts:
            host.refuse_waiting(PeerRefused(reason))

    def reopen(self) -> None:
        self._shut = ""

    async def answer(self, request: PassRequest, tensors: dict[str, Tensor]) -> Answer:
        """As SpanHost.answer, by the newest host that has the parts."""
        if self._shut:
            raise PeerRefused(self._shut)
        wanted = range(request.start, request.stop)
        host = next((one for one in self if all(part in one.span for part in wanted)), self._hosts[-1])
        with self._counted(host.span):
            return await host.answer(request, tensors)

    def release(self, coordinator: PeerId, session: str) -> None:
        """As SpanHost.release, on every host."""
        for host in self._hosts:
            host.release(coordinator, session)

    async def quiet(self, seconds: float, span: Span | None = None) -> bool:
        """Wait until no pass runs here, or on `span`. False when one still does after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while self._running[span] if span is not None else self.running:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        for host in self._hosts:
            host.close()

    @contextmanager
    def _counted(self, span: Span) -> Iterator[None]:
        self._running[span] += 1
        try:
            yield
        finally:
            self._running[span] -= 1
            self._changed.set()
