"""The coordinator's desk: passes that it waits for, matched to what peers answer. Late and unknown answers are dropped.

Streams are authenticated, so only the head of a pass can answer it, and only a peer of its chain can refuse it.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from swarm.errors import BadAnswer, BadRequest, CacheMiss, LinkBroken, PassFailed, PeerRefused, WireError
from swarm.ids import PeerId
from swarm.net.links import short
from swarm.net.transport import Stream, Transport
from swarm.wire.frames import Message, Tensors, read_frame
from swarm.wire.messages import ANSWER_PROTOCOL, PassAnswer, PassKey, Refusal

log = logging.getLogger(__name__)

Answered = tuple[PassAnswer, Tensors]


class HopFailed(Exception):
    """`peer` is at fault. `witness` is the neighbour who says so or may have caused it, None when this node saw it."""

    def __init__(self, peer: PeerId, reason: PassFailed, witness: PeerId | None = None) -> None:
        super().__init__(str(reason))
        self.peer = peer
        self.reason = reason
        self.witness = witness


@dataclass(slots=True)
class _Expected:
    peers: tuple[PeerId, ...]
    future: "asyncio.Future[Answered]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def settle(self, outcome: Answered | Exception) -> None:
        if self.future.done():
            return
        if isinstance(outcome, Exception):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


class Answers:
    """Shared by all requests that this node coordinates."""

    def __init__(self) -> None:
        self._expected: dict[PassKey, _Expected] = {}
        self._asked: set[PeerId] = set()

    async def serve(self, transport: Transport) -> None:
        await transport.serve(ANSWER_PROTOCOL, self._handle)

    @contextmanager
    def expect(self, key: PassKey, peers: tuple[PeerId, ...]) -> "Iterator[asyncio.Future[Answered]]":
        """What the pass over `peers` comes to: an answer and its tensors, or HopFailed, or CacheMiss."""
        expected = self._expected[key] = _Expected(peers)
        self._asked.update(peers)
        try:
            yield expected.future
        finally:
            del self._expected[key]
            expected.future.cancel()
            if not expected.future.cancelled():
                expected.future.exception()  # asyncio complains of failures that nobody looked at

    def deliver(self, sender: PeerId, message: Message, tensors: Tensors) -> None:
        """`sender` is authenticated. Raises WireError for what is neither an answer nor a refusal."""
        if not isinstance(message, PassAnswer | Refusal):
            raise WireError(f"a {message.kind} is no answer")
        expected = self._expected.get(message.key)
        if expected is None or sender not in expected.peers:
            log.debug("dropped a late or unknown answer")
        elif isinstance(message, Refusal):
            expected.settle(_reason(sender, message, expected.peers))
        elif sender != expected.peers[-1]:
            expected.settle(HopFailed(sender, BadAnswer(f"peer {short(sender)} answers in the place of the head")))
        else:
            expected.settle((message, tensors))

    def lost(self, peer: PeerId, reason: PassFailed) -> None:
        """The link to `peer` ended: every pass that it has a part in has failed."""
        for expected in list(self._expected.values()):
            if peer in expected.peers:
                expected.settle(HopFailed(peer, reason))

    async def _handle(self, stream: Stream) -> None:
        if stream.peer not in self._asked:
            return
        try:
            while True:
                self.deliver(stream.peer, *await read_frame(stream))
        except LinkBroken:
            pass
        except WireError as error:
            # Framing is lost once bytes do not decode: end the stream, the peer opens another.
            log.warning("stream ended", extra={"fields": {"peer": stream.peer, "reason": str(error)}})
            self.lost(stream.peer, BadAnswer(f"peer {short(stream.peer)} sent bytes that do not decode: {error}"))


def _reason(sender: PeerId, refusal: Refusal, peers: tuple[PeerId, ...]) -> HopFailed | CacheMiss:
    if refusal.code == CacheMiss.code:
        return CacheMiss(refusal.message)
    places = [place for place, peer in enumerate(peers) if peer == sender]
    neighbours = {peers[at] for place in places for at in (place - 1, place + 1) if 0 <= at < len(peers)}
    accused = PeerId(refusal.peer)
    if accused != sender and accused in neighbours:
        text = f"peer {short(sender)} says of peer {short(accused)} ({refusal.code}): {refusal.message}"
        return HopFailed(accused, _failure(refusal.code, text), sender)
    if refusal.code == BadRequest.code:
        # What it rejects came through the hop before it, which may have changed it.
        before = peers[places[0] - 1] if places[0] else None
        text = f"peer {short(sender)} rejects the pass: {refusal.message}"
        return HopFailed(sender, BadAnswer(text), before)
    return HopFailed(sender, PeerRefused(f"peer {short(sender)} refuses ({refusal.code}): {refusal.message}"))


def _failure(code: str, text: str) -> PassFailed:
    kinds: dict[str, type[PassFailed]] = {kind.code: kind for kind in PassFailed.__subclasses__()}
    return kinds.get(code, PeerRefused)(text)
