"""Nodes of a small swarm inside one process, over the in-memory network, with the golden LLaDA model."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from swarm.chain.drive import drive
from swarm.chain.links import Links
from swarm.chain.peers import PeerBook
from swarm.chain.source import ChainSource, Shape
from swarm.decode.decoder import Decoder
from swarm.decode.settings import DecodeSettings
from swarm.host.host import Answer, SpanHost
from swarm.host.server import serve_passes
from swarm.ids import PeerId, RequestId, Span
from swarm.model.weights import Checkpoint, load_span, open_checkpoint
from swarm.net.memory import MemoryNetwork
from swarm.wire.messages import PassRequest
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

    async def answer(self, request: PassRequest, tensors: dict[str, Tensor], caller: PeerId) -> Answer:
        if self.before is not None:
            self.before(request)
        answer = await super().answer(request, tensors, caller)
        return answer if self.twist is None else await self.twist(request, answer)


@dataclass
class Swarm:
    network: MemoryNetwork
    hosts: dict[str, TwistedHost]
    book: PeerBook
    links: Links
    timeout_s: float = 5.0

    @classmethod
    async def of(cls, **spans: str) -> "Swarm":
        """`Swarm.of(A="0:3", B="3:6")`: nodes by name; the coordinator hosts nothing."""
        network = MemoryNetwork()
        point = checkpoint()
        hosts = {}
        for name, text in spans.items():
            span = Span.parse(text)
            node = network.node(peer(name))
            host = TwistedHost(load_span(point, span, torch.float32), point.model_id, point.config.vocab_size)
            await serve_passes(node, host)
            await node.announce(record(name, span))
            hosts[name] = host
        me = network.node(peer("me"))
        book = PeerBook(me, me.peer_id, point.model_id, point.tokenizer_id, "float32", point.config.n_parts)
        await book.refresh()
        return cls(network, hosts, book, Links(me))

    def source(self, request: str = "r") -> ChainSource:
        config = checkpoint().config
        shape = Shape(config.hidden_size, "float32", config.mask_id, config.vocab_size)
        return ChainSource(RequestId(request), self.book, self.links, None, shape, self.timeout_s)

    async def decode(self, settings: DecodeSettings, source: ChainSource | None = None) -> list[int]:
        config = checkpoint().config
        decoder = Decoder(canvas(), settings, config.mask_id, config.eos_id)
        async with asyncio.timeout(60):
            async for _ in drive(decoder, source or self.source(), lambda: False):
                pass
        return [int(token) for token in decoder.canvas]

    async def close(self) -> None:
        await self.links.close()
        for node in list(self.network.nodes.values()):
            await node.close()
        for host in self.hosts.values():
            host.close()


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
