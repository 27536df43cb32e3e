"""How the swarm sees this node: its record, renewed before the lease ends, and who else goes by its name.

Knows nothing of weights. `glossd.node` says what it hosts and in which state it is.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from glossd import __version__
from glossd.observe import Log
from swarm.chain.peers import PeerBook
from swarm.errors import GlossError, IdentityError
from swarm.ids import Span
from swarm.net.directory import LEASE_S, Directory
from swarm.net.transport import Transport
from swarm.plan.placement import Hosted
from swarm.wire.records import NodeRecord, State

log = Log("glossd.membership")

SKEW_MS = 3000
"""Clocks of a swarm differ by no more."""


class Network(Transport, Directory, Protocol):
    """Streams and records over one identity."""


class Membership:
    """`announce` says what others should know from now on; `keep` says it again until the node leaves."""

    def __init__(
        self,
        network: Network,
        model: str,
        tokenizer: str,
        dtype: str,
        quant: str,
        throughput: Callable[[], float],
    ) -> None:
        self.state: State = "joining"
        self.span: Span | None = None
        self._network = network
        self._throughput = throughput
        self._next: Span | None = None
        self._started_ms = int(time.time() * 1000)
        self._fixed = {
            "peer": network.peer_id,
            "model": model,
            "tokenizer": tokenizer,
            "dtype": dtype,
            "quant": quant,
            "version": __version__,
            "started_ms": self._started_ms,
        }
        self._warned = False

    async def announce(self, state: State, span: Span | None, moves_to: Span | None = None) -> None:
        """A node without a span has no record. Raises GlossError when the network is down."""
        self.state, self.span, self._next = state, span, moves_to
        await self._publish()

    async def keep(self) -> None:
        """Renew the record until cancelled."""
        while True:
            await asyncio.sleep(LEASE_S / 3)
            try:
                await self._publish()
            except GlossError as error:
                log.warning("record not renewed", reason=error)

    async def _publish(self) -> None:
        if self.span is None:
            return
        record = {
            **self._fixed,
            "start": self.span.start,
            "stop": self.span.stop,
            "throughput": round(self._throughput(), 1),
            "state": self.state,
            "issued_ms": int(time.time() * 1000),
        }
        if self._next is not None:
            record |= {"next_start": self._next.start, "next_stop": self._next.stop}
        await self._network.announce(NodeRecord.model_validate(record))

    def check_twin(self, own: NodeRecord | None) -> None:
        """`own` is what the directory has under our name. Raises IdentityError when an older process uses it too.

        Of two processes the younger one ends. A record of our own past is older than our start.
        """
        started = self._started_ms
        if own is None or own.started_ms in (0, started):
            return
        if own.started_ms > started:
            if not self._warned:
                log.warning("another node was started with this node's identity; it is to end", peer=own.peer)
            self._warned = True
        elif own.issued_ms > started + SKEW_MS:
            raise IdentityError(
                f"another running node uses the identity {own.peer}; stop it, or give this one an identity of its own "
                "with another --state-dir"
            )


def hosted_by_others(book: PeerBook, *, yields: bool = True) -> list[Hosted]:
    """What placement counts with. A node that is about to move counts where it will be, and for nothing that it leaves.
    Unless this node `yields`, movers whose ids come after its own count nowhere: of two that go to the same place, one
    goes on."""
    found = []
    for peer, record in sorted(book.records().items()):
        rival = record.next_span is not None and not yields and peer > book.me
        if peer != book.me and record.state in ("joining", "online") and not rival:
            serves = record.state == "online" and record.next_span is None and not book.state(peer).is_avoided
            found.append(Hosted(record.next_span or record.span, book.throughput(peer), serves))
    return found
