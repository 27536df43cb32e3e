"""A hop of a pass: run the parts, push what comes out to the next peer of the route, or answer the coordinator.

Consecutive hops on one peer, and answers to a coordinator that is this node, never touch the network. A hop that fails
says so to the coordinator and names who is at fault: itself, the peer that sent it something impossible, or the one
that it cannot reach. Called by the server for passes from peers and by coordinators whose chain begins here.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from swarm.errors import BadAnswer, GlossError, PassFailed, PeerRefused, WireError
from swarm.host.host import SpanHost, refusal_code
from swarm.host.spans import HostedSpans
from swarm.ids import PeerId
from swarm.net.links import Links
from swarm.wire.activations import BESIDE, pack, unpack
from swarm.wire.frames import Message, Tensors
from swarm.wire.messages import ANSWER_PROTOCOL, PASS_PROTOCOL, PassAnswer, PassRequest, Refusal
from swarm.wire.tensors import Tensor, is_within

LARGEST = 2.0**20
"""Hidden states may have outliers of some ten thousands; beyond this nobody has computed them."""
REPORT_S = 5.0

log = logging.getLogger(__name__)

Answered = Callable[[PeerId, Message, Tensors], None]


class Relay:
    """`answered` takes what is meant for this node as coordinator: sender, message, tensors.

    `served` is told the compute seconds of each pass that was run for another coordinator.
    """

    def __init__(
        self,
        me: PeerId,
        host: HostedSpans | SpanHost,
        links: Links,
        answered: Answered,
        served: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._me = me
        self._host = host
        self._links = links
        self._answered = answered
        self._served = served

    async def run(self, request: PassRequest, tensors: Tensors, sender: PeerId) -> None:
        """`sender` is the authenticated peer that the request came from. Failures go to the coordinator."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(request.budget_ms / 1000):
                await self._run(request, tensors, sender, began)
        except TimeoutError:
            log.debug("a pass ran past its deadline")  # the coordinator's own has passed as well
        except _AtFault as fault:
            await self._report(request, fault.peer, fault.reason)
        except GlossError as error:
            await self._report(request, self._me, error)
        except Exception as error:
            log.exception("a pass failed")
            await self._report(request, self._me, PeerRefused(f"the pass failed here: {type(error).__name__}"))

    def release(self, coordinator: PeerId, session: str) -> None:
        """`coordinator`, which is authenticated, needs nothing more of this session."""
        self._host.release(coordinator, session)

    async def _run(self, request: PassRequest, tensors: Tensors, sender: PeerId, began: float) -> None:
        if request.start > 0:
            tensors = self._received(request, tensors, sender)
        while True:
            answer, parts = await self._host.answer(request, tensors)
            if request.reply_to != self._me:
                self._served(answer.computed_us[-1] / 1e6)
            if not request.route:
                await self._answer(request, answer, parts)
                return
            peer = PeerId(request.route[0].peer)
            request = _next(request, answer, time.monotonic() - began)
            if peer != self._me:
                parts = tuple(packed for part in parts for packed in pack(part, request.activations))
                await self._push(peer, request, (*parts, *_beside(tensors).values()))
                return
            tensors = {tensor.name: tensor for tensor in parts} | _beside(tensors)
            began = time.monotonic()

    def _received(self, request: PassRequest, tensors: Tensors, sender: PeerId) -> Tensors:
        """Hidden states must be what the sender's parts can give; whatever else is wrong, the host refuses itself."""
        dtype, size = self._host.hidden_kind
        try:
            hidden = unpack(tensors, request.activations, dtype, (request.rows, request.columns, size))
        except WireError as error:
            raise _AtFault(sender, BadAnswer(str(error))) from None
        if not is_within(hidden, LARGEST):
            raise _AtFault(sender, BadAnswer(f"hidden states exceed {LARGEST:g}, which no model's come near"))
        return {"hidden": hidden, **_beside(tensors)}

    async def _push(self, peer: PeerId, request: PassRequest, tensors: tuple[Tensor, ...]) -> None:
        try:
            await self._links.send(peer, PASS_PROTOCOL, request, tensors)
        except PassFailed as error:
            raise _AtFault(peer, error) from None

    async def _answer(self, request: PassRequest, answer: PassAnswer, parts: tuple[Tensor, ...]) -> None:
        if request.reply_to == self._me:
            self._answered(self._me, answer, {part.name: part for part in parts})
            return
        # Nobody else could be told: the coordinator notices by its deadline.
        with suppress(PassFailed):
            await self._links.send(PeerId(request.reply_to), ANSWER_PROTOCOL, answer, parts, packs=request.packs)

    async def _report(self, request: PassRequest, peer: PeerId, error: GlossError) -> None:
        refusal = Refusal(
            request=request.request,
            step=request.step,
            attempt=request.attempt,
            peer=peer,
            code=refusal_code(error),
            message=str(error)[:500],
        )
        if request.reply_to == self._me:
            self._answered(self._me, refusal, {})
            return
        with suppress(PassFailed, TimeoutError):
            async with asyncio.timeout(REPORT_S):
                await self._links.send(PeerId(request.reply_to), ANSWER_PROTOCOL, refusal)


class _AtFault(Exception):
    def __init__(self, peer: PeerId, reason: PassFailed) -> None:
        super().__init__(str(reason))
        self.peer = peer
        self.reason = reason


def _beside(tensors: Tensors) -> Tensors:
    return {name: tensors[name] for name in BESIDE if name in tensors}


def _next(request: PassRequest, answer: PassAnswer, seconds: float) -> PassRequest:
    hop = request.route[0]
    return request.model_copy(
        update={
            "start": hop.start,
            "stop": hop.stop,
            "route": request.route[1:],
            "budget_ms": max(1, request.budget_ms - int(seconds * 1000)),
            "computed_us": answer.computed_us,
        }
    )
