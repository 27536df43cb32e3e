"""Nodes of a small swarm inside one process, over the in-memory network, with the golden LLaDA model."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from swarm.chain.answers import Answers
from swarm.chain.drive import drive
from swarm.chain.peers import PeerBook
from swarm.chain.source import ChainSource, Shape
from swarm.decode.decoder import Decoder
from swarm.decode.settings import DecodeSettings
from swarm.host.host import Answer, SpanHost
from swarm.host.relay import Relay
from swarm.host.server import serve_passes
from swarm.ids import PeerId, RequestId, Span
from swarm.model.weights import Checkpoint, load_span, open_checkpoint
from swarm.net.links import Links
from swarm.net.memory import MemoryNetwork
from swarm.wire.frames import Message, Tensors
from swarm.wire.messages import Activations, PassRequest
from swarm.wire.records import NodeRecord
from swarm.wire.tensors import Tensor

GOLDEN = Path(__file__).parents[1] / "golden" / "llada-mha-float32"
ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZ"


@functools.cache
def checkpoint() -> Checkpoint:
    torch.set_num_threads(1)
    return open_checkpoint(GOLDEN, "golden")


def peer(name: str) -> PeerId:
    return PeerId(f"peer{name}{'1' * 10}")


Twist = Callable[[PassRequest, Answer], Awaitable[Answer]]


class TwistedHost(SpanHost):
    """Serves its span, then does to the answer what a test says. `before` runs before the pass."""

    twist: Twist | None = None
    before: Callable[[PassRequest], None] | None = None

    async def answer(self, request: PassRequest, tensors: dict[str, Tensor]) -> Answer:
        if self.before is not None:
            self.before(request)
        answer = await super().answer(request, tensors)
        return answer if self.twist is None else await self.twist(request, answer)


@dataclass
class Swarm:
    network: MemoryNetwork
    hosts: dict[str, TwistedHost]
    book: PeerBook
    links: Links
    answers: Answers
    relays: dict[str, Relay]
    links_of: dict[str, Links]
    me: str
    timeout_s: float = 5.0

    @classmethod
    async def of(cls, me: str = "me", **spans: str) -> "Swarm":
        """`Swarm.of(A="0:3", B="3:6")`: nodes by name. The coordinator hosts nothing unless it is one of them."""
        network = MemoryNetwork()
        point = checkpoint()
        hosts, relays, links_of = {}, {}, {}
        answers = Answers()
        for name in {me: "", **spans}:
            node = network.node(peer(name))
            links = links_of[name] = Links(node, answers.lost) if name == me else Links(node)
            if name in spans:
                span = Span.parse(spans[name])
                host = TwistedHost(load_span(point, span, torch.float32), point.model_id, point.config.vocab_size)
                relay = Relay(node.peer_id, host, links, answers.deliver if name == me else not_asked)
                await serve_passes(node, relay)
                await node.announce(record(name, span))
                hosts[name], relays[name] = host, relay
        node = network.nodes[peer(me)]
        await answers.serve(node)
        book = PeerBook(node, node.peer_id, point.model_id, point.tokenizer_id, "float32", point.config.n_parts)
        await book.refresh()
        return cls(network, hosts, book, links_of[me], answers, relays, links_of, me)

    def source(self, request: str = "r", activations: Activations = "exact") -> ChainSource:
        config = checkpoint().config
        shape = Shape(config.hidden_size, "float32", config.mask_id, config.vocab_size)
        relay = self.relays.get(self.me)
        return ChainSource(
            RequestId(request),
            self.book,
            self.links,
            self.answers,
            relay,
            shape,
            self.timeout_s,
            activations=activations,
        )

    async def decode(self, settings: DecodeSettings, source: ChainSource | None = None) -> list[int]:
        config = checkpoint().config
        decoder = Decoder(canvas(), settings, config.mask_id, config.eos_id)
        async with asyncio.timeout(60):
            async for _ in drive(decoder, source or self.source(), lambda: False):
                pass
        return [int(token) for token in decoder.canvas]

    async def close(self) -> None:
        for links in self.links_of.values():
            await links.close()
        for node in list(self.network.nodes.values()):
            await node.close()
        for host in self.hosts.values():
            host.close()


def not_asked(sender: PeerId, message: Message, tensors: Tensors) -> None:
    raise AssertionError("this node coordinates nothing")


def canvas() -> np.ndarray:
    return np.array([42, 474, 37, 361, 57, 273] + [checkpoint().config.mask_id] * 16, dtype=np.int32)


def record(name: str, span: Span, **changes: object) -> NodeRecord:
    point = checkpoint()
    return NodeRecord.model_validate(
        {
            "peer": peer(name),
            "model": point.model_id,
            "tokenizer": point.tokenizer_id,
            "start": span.start,
            "stop": span.stop,
            "dtype": "float32",
            "throughput": 1000.0,
            "issued_ms": 1,
        }
        | changes
    )
