"""A transport that keeps peers out: those that are banned, both ways, and for a while those that sent junk.

Wraps any other. Everything between this node and its peers passes here, so nothing behind has to ask again.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Container
from dataclasses import dataclass

from swarm.errors import DialFailed
from swarm.ids import PeerId
from swarm.net.transport import Handler, Stream, Transport

JUNK_ALLOWED = 3
"""Streams that may end in junk before their peer is refused; a version of its own may explain one or two."""
REFUSED_S, REFUSED_MAX_S = 600.0, 6 * 3600.0
FORGIVEN_S = 24 * 3600.0
REMEMBERED = 4096
"""Senders of junk that are remembered; names are free, so the oldest go first."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Junk:
    streams: int = 0
    last: float = 0.0
    refused_until: float = 0.0


class Door:
    """`clock` gives seconds."""

    def __init__(
        self, inner: Transport, banned: Container[PeerId], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.peer_id = inner.peer_id
        self._inner = inner
        self._banned = banned
        self._clock = clock
        self._junk: dict[PeerId, _Junk] = {}
        self._open: defaultdict[PeerId, set[Stream]] = defaultdict(set)

    def refuses(self, peer: PeerId) -> bool:
        """Whether `peer` may not call."""
        junk = self._junk.get(peer)
        return peer in self._banned or (junk is not None and junk.refused_until > self._clock())

    async def sent_junk(self, peer: PeerId) -> None:
        """A stream of `peer` held what does not decode. From JUNK_ALLOWED on it is refused, twice as long each time."""
        now = self._clock()
        junk = self._junk.pop(peer, None) or _Junk()
        if now - junk.last > FORGIVEN_S:
            junk = _Junk()
        self._junk[peer] = junk
        if len(self._junk) > REMEMBERED:
            del self._junk[next(iter(self._junk))]
        junk.streams += 1
        junk.last = now
        if junk.streams >= JUNK_ALLOWED:
            refused_s = min(REFUSED_S * 2 ** min(junk.streams - JUNK_ALLOWED, 16), REFUSED_MAX_S)
            junk.refused_until = now + refused_s
            log.warning("refused for junk", extra={"fields": {"peer": peer, "seconds": refused_s}})
            await self.cut(peer)

    async def cut(self, peer: PeerId) -> None:
        """End all streams with `peer`."""
        for stream in list(self._open.pop(peer, ())):
            await stream.close()

    async def serve(self, protocol: str, handler: Handler) -> None:
        async def guarded(stream: Stream) -> None:
            if self.refuses(stream.peer):
                await stream.close()
                return
            self._open[stream.peer].add(stream)
            try:
                await handler(stream)
            finally:
                self._forget(stream)

        await self._inner.serve(protocol, guarded)

    async def open(self, peer: PeerId, protocol: str) -> Stream:
        if peer in self._banned:
            raise DialFailed(f"peer {peer} is banned here; `glossd unban` lets it in again")
        return await self._inner.open(peer, protocol)

    async def addresses(self) -> list[str]:
        return await self._inner.addresses()

    async def close(self) -> None:
        await self._inner.close()

    def _forget(self, stream: Stream) -> None:
        streams = self._open.get(stream.peer)
        if streams is not None:
            streams.discard(stream)
            if not streams:
                del self._open[stream.peer]
