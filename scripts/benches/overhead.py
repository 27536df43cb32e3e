"""What the swarm adds to a pass: a random model of 8 layers, hidden 64, canvas of 128 positions of which 32 are scored.

Two processes on loopback: the coordinator hosts the first half, the other process the second. Overhead is the time of a
pass minus that of the model's bare forward in one process. Raw is the time of the same legs with the same bytes over a
bare stream through the same p2pd. Everything is measured in turn.

Keys: over_raw_ratio (overhead over raw, medians), ms (the overhead), over_raw_ratio_lone (the same, less the pass of a
node that hosts the whole model instead of the bare forward: what the network adds), pass_ms, local_ms, lone_ms, raw_ms,
leg_bytes (there and back), ping_ms (a ping over a fresh stream), apart_ms (the overhead when the coordinator hosts
nothing and both halves are processes of their own, which is three legs instead of two).
"""

import asyncio
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
import uvloop
from safetensors.torch import save_file

from scripts.benches.harness import say, summary
from scripts.benches.load import CONFIG as LLADA
from swarm.chain.answers import Answers
from swarm.chain.peers import PeerBook
from swarm.chain.source import ChainSource, Shape
from swarm.decode.events import Work
from swarm.host.host import SpanHost
from swarm.host.relay import Relay
from swarm.host.server import serve_passes
from swarm.ids import RequestId, Span
from swarm.model.families import family_of
from swarm.model.forward import HeadWork, run_span
from swarm.model.span import SpanModule
from swarm.model.weights import Checkpoint, load_span, open_checkpoint
from swarm.net.counted import CountedTransport
from swarm.net.hivemind import HivemindNode
from swarm.net.links import Links
from swarm.net.transport import Stream
from swarm.wire.records import NodeRecord

CONFIG = LLADA | {
    "d_model": 64, "n_heads": 4, "n_layers": 8, "mlp_hidden_size": 160, "vocab_size": 512, "embedding_size": 512,
    "mask_token_id": 2,
}  # fmt: skip
VOCABULARY, MASK = 512, 2
WHOLE, FIRST, SECOND = Span(0, 10), Span(0, 5), Span(5, 10)
POSITIONS, SCORED, ROUNDS, WARM = 128, 32, 200, 20
RAW_PROTOCOL = "/bench/1/raw"


def write_checkpoint(folder: Path) -> None:
    family = family_of(CONFIG)
    config = family.read_config(dict(CONFIG))
    torch.manual_seed(0)
    module = SpanModule(config, WHOLE)
    tensors = {
        family.tensor_names(config, part)[ours]: p.detach().contiguous()
        for part in WHOLE
        for ours, p in module.parts[str(part)].named_parameters()
    }
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(tensors, folder / "model.safetensors")


class Node:
    """One peer: its network, links, and span if it hosts one. Make it with `live`."""

    def __init__(self, folder: Path, net: HivemindNode, span: Span | None) -> None:
        self.sent_bytes = self.received_bytes = 0
        self.point = open_checkpoint(folder, "bench")
        self.transport = CountedTransport(net, self._sent, self._received)
        self.net = net
        self.answers = Answers()
        self.links = Links(self.transport, self.answers.lost)
        self.host: SpanHost | None = None
        self.relay: Relay | None = None
        if span is not None:
            module = load_span(self.point, span, torch.float32)
            self.host = SpanHost(module, self.point.model_id, self.point.config.vocab_size)
            self.relay = Relay(net.peer_id, self.host, self.links, self.answers.deliver)

    @classmethod
    @asynccontextmanager
    async def live(cls, folder: Path, name: str, span: Span | None, join: list[str]) -> "AsyncIterator[Node]":
        torch.set_num_threads(1)
        node = cls(folder, await HivemindNode.start(folder / name, join=join), span)
        try:
            await node.answers.serve(node.transport)
            await node.transport.serve(RAW_PROTOCOL, answer_raw)
            if span is not None and node.relay is not None:
                await serve_passes(node.transport, node.relay)
                await node.net.announce(node.record(span))
            yield node
        finally:
            await node.links.close()
            await node.net.close()
            if node.host is not None:
                node.host.close()

    def record(self, span: Span) -> NodeRecord:
        return NodeRecord(
            peer=self.net.peer_id,
            model=self.point.model_id,
            tokenizer=self.point.tokenizer_id,
            start=span.start,
            stop=span.stop,
            dtype="float32",
            throughput=1000.0,
            issued_ms=int(time.time() * 1000),
        )

    async def source(self) -> ChainSource:
        point, config = self.point, self.point.config
        book = PeerBook(self.net, self.net.peer_id, point.model_id, point.tokenizer_id, "float32", config.n_parts)
        await book.refresh()
        while book.uncovered():
            await asyncio.sleep(0.1)
            await book.refresh()
        shape = Shape(config.hidden_size, "float32", config.mask_id, config.vocab_size)
        return ChainSource(RequestId("bench"), book, self.links, self.answers, self.relay, shape, 30.0)

    def _sent(self, size: int) -> None:
        self.sent_bytes += size

    def _received(self, size: int) -> None:
        self.received_bytes += size


async def answer_raw(stream: Stream) -> None:
    """Read as much as the first four bytes say, answer with as much as the next four say."""
    while True:
        sizes = await stream.read_exactly(8)
        await stream.read_exactly(int.from_bytes(sizes[:4], "big") - 8)
        await stream.write(bytes(int.from_bytes(sizes[4:], "big")))


def child(folder: Path, span: tuple[int, int], join: list[str], pipe: Connection) -> None:
    async def stay() -> None:
        async with Node.live(folder, f"node{span[0]}", Span(*span), join):
            pipe.send("ready")
            await asyncio.to_thread(pipe.recv)

    uvloop.run(stay())


@asynccontextmanager
async def children(folder: Path, join: list[str], *spans: Span) -> AsyncIterator[None]:
    """A process for each span, ready to serve."""
    spawn = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for span in spans:
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=child, args=(folder, (span.start, span.stop), join, theirs), daemon=True)
        process.start()
        pipes.append(ours)
        processes.append(process)
    try:
        for pipe in pipes:
            await asyncio.to_thread(pipe.recv)
        yield
    finally:
        for pipe, process in zip(pipes, processes, strict=True):
            pipe.send("end")
            await asyncio.to_thread(process.join)


def work() -> Work:
    """The same for every step: nothing is cached, so each pass computes everything."""
    ids = np.random.default_rng(0).integers(3, VOCABULARY, (1, POSITIONS), dtype=np.int32)
    positions = np.arange(POSITIONS - SCORED, POSITIONS, dtype=np.int32)
    ids[:, positions] = MASK
    return Work(0, ids, positions, 0.0)


async def in_turn(*calls: Callable[[], Awaitable[object]]) -> list[list[float]]:
    """Milliseconds of each call, round by round."""
    times: list[list[float]] = [[] for _ in calls]
    for number in range(WARM + ROUNDS):
        for call, found in zip(calls, times, strict=True):
            began = time.perf_counter()
            await call()
            if number >= WARM:
                found.append((time.perf_counter() - began) * 1e3)
    return times


def forward_of(point: Checkpoint) -> Callable[[], Awaitable[object]]:
    """The whole model without host, frames or thread."""
    module, one = load_span(point, WHOLE, torch.float32), work()
    ids, head = torch.from_numpy(one.ids.astype(np.int64)), HeadWork(one.positions, 0.0, point.config.vocab_size)

    async def forward() -> None:
        run_span(module, WHOLE, ids, head)

    return forward


async def measure_two(folder: Path) -> dict[str, object]:
    async with (
        Node.live(folder, "lone", WHOLE, []) as lone,
        Node.live(folder, "me", FIRST, []) as node,
        children(folder, await node.net.addresses(), SECOND),
    ):
        source, whole, forward = await node.source(), await lone.source(), forward_of(lone.point)
        other = source.chain[-1].peer
        for _ in range(WARM):  # until the head is known to be near, and its answers are not packed any more
            await source.score(work())
        node.sent_bytes = node.received_bytes = 0
        await source.score(work())
        there, back = node.sent_bytes, node.received_bytes
        frame = there.to_bytes(4, "big") + back.to_bytes(4, "big") + bytes(there - 8)
        stream = await node.transport.open(other, RAW_PROTOCOL)

        async def raw() -> None:
            await stream.write(frame)
            await stream.read_exactly(back)

        passed, local, by_lone, bare = await in_turn(
            lambda: source.score(work()), forward, lambda: whole.score(work()), raw
        )
        (pings,) = await in_turn(lambda: node.links.ping(other, 5.0))
        await stream.close()
    overhead, network = (statistics.median(passed) - statistics.median(each) for each in (local, by_lone))
    return {
        "over_raw_ratio": round(overhead / statistics.median(bare), 2),
        "ms": round(overhead, 2),
        "over_raw_ratio_lone": round(network / statistics.median(bare), 2),
        "pass_ms": summary(passed, 2),
        "local_ms": summary(local, 2),
        "lone_ms": summary(by_lone, 2),
        "raw_ms": summary(bare, 2),
        "ping_ms": summary(pings, 2),
        "leg_bytes": [there, back],
    }


async def measure_apart(folder: Path) -> float:
    async with Node.live(folder, "me", None, []) as node, children(folder, await node.net.addresses(), FIRST, SECOND):
        source = await node.source()
        passed, local = await in_turn(lambda: source.score(work()), forward_of(node.point))
    return statistics.median(passed) - statistics.median(local)


def run() -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="glossd-overhead-") as name:
        folder = Path(name)
        write_checkpoint(folder)
        say("two processes")
        two = uvloop.run(measure_two(folder))
        say("three processes")
        apart = uvloop.run(measure_apart(folder))
    return {"where": "processes on loopback", **two, "apart_ms": round(apart, 2)}
