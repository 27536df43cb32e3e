"""Joining, leaving and coming back (nodes of one process, each with its own p2pd; the embedded model on loopback).

Twenty nodes that are told nothing, with room for half of the model each, start at once through one bootstrap, five
times: `all_serve` counts the rounds in which every one serves, `covered_s` is the time from the start until the
directory covers the model, `ready_s` until the last one serves, `fewest_hosts` the hosts of the least covered part.
Then `gone_s`: from the word to leave until a peer's directory lacks the node; `paused_s`: until a paused node computes
nothing; `p2pd_back_s`: from the end of a node's p2pd until a peer reaches it again under the same id.
"""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from glossd.config import Settings
from glossd.models import open_model
from glossd.node import Node
from glossd.observe import Metrics
from scripts.benches.harness import say, summary
from swarm.errors import PassFailed
from swarm.ids import PeerId
from swarm.net.hivemind import HivemindNode
from swarm.net.transport import Stream
from swarm.plan.routes import uncovered

NODES, ROUNDS, REPEATS = 20, 5, 10
MEMORY_MB = 7
ECHO = "/bench/echo"


async def started(folder: Path, name: str, join: list[str], layers: str) -> Node:
    settings = Settings.model_validate(
        {"state_dir": folder / name, "layers": layers, "memory_mb": MEMORY_MB, "threads": 1}
    )
    network = await HivemindNode.start(folder / name / "identity.key", join=join)
    node = Node(settings, open_model("gloss-tiny"), network, Metrics())
    await node.join()
    return node


async def until(holds: Callable[[], Awaitable[bool]], seconds: float = 60.0) -> float:
    """The seconds that it took."""
    began = time.monotonic()
    async with asyncio.timeout(seconds):
        while True:
            if await holds():
                return time.monotonic() - began
            await asyncio.sleep(0.01)


async def join_at_once(folder: Path) -> tuple[float, float, int, bool]:
    first = await started(folder, "first", [], "none")
    addresses = await first.network.addresses()

    async def spans() -> list[object]:
        found = await first.network.records(first.book.model)
        return [record.span for record in found.values() if record.state == "online"]

    async def is_covered() -> bool:
        online = [
            record.span
            for record in (await first.network.records(first.book.model)).values()
            if record.state == "online"
        ]
        return not uncovered(online, first.book.n_parts)

    began = time.monotonic()
    covering = asyncio.create_task(until(is_covered))
    nodes = await asyncio.gather(*(started(folder, f"n{n}", addresses, "auto") for n in range(NODES)))
    ready_s = time.monotonic() - began
    covered_s = await covering
    hosts = [sum(node.span is not None and part in node.span for node in nodes) for part in range(first.book.n_parts)]

    async def all_seen() -> bool:
        return len(await spans()) == NODES

    try:
        await until(all_seen, 20)
        serve = True
    except TimeoutError:
        serve = False
    for node in (*nodes, first):
        await node.leave()
    return covered_s, ready_s, min(hosts), serve


async def leave_and_come_back(folder: Path) -> dict[str, list[float]]:
    first = await started(folder, "first", [], "0:8")
    addresses = await first.network.addresses()
    took: dict[str, list[float]] = {"gone_s": [], "paused_s": [], "p2pd_back_s": []}
    for number in range(REPEATS):
        node = await started(folder, f"n{number}", addresses, "0:8")
        network = node.network
        assert isinstance(network, HivemindNode)

        async def echo(stream: Stream) -> None:
            await stream.write(await stream.read_exactly(1))

        await network.serve(ECHO, echo)
        began = time.monotonic()
        await node.pause()
        took["paused_s"].append(time.monotonic() - began)
        await node.resume()
        p2pd = network._p2pd
        p2pd.host._child.kill()
        began = time.monotonic()

        async def is_back(peer: PeerId = node.peer_id) -> bool:
            try:
                stream = await first.network.open(peer, ECHO)
                await stream.write(b"x")
                await stream.read_exactly(1)
                await stream.close()
            except PassFailed:
                return False
            return True

        await until(is_back)
        took["p2pd_back_s"].append(time.monotonic() - began)

        async def is_gone(peer: str = node.peer_id) -> bool:
            await first.book.refresh()
            return peer not in first.book.records()

        began = time.monotonic()
        await node.leave()
        await until(is_gone)
        took["gone_s"].append(time.monotonic() - began)
    await first.leave()
    return took


async def _run() -> dict[str, object]:
    rounds = []
    for number in range(ROUNDS):
        with tempfile.TemporaryDirectory(prefix="glossd-") as folder:
            rounds.append(await join_at_once(Path(folder)))
        say(f"round {number}: covered {rounds[-1][0]:.2f} s, ready {rounds[-1][1]:.2f} s, fewest {rounds[-1][2]}")
    with tempfile.TemporaryDirectory(prefix="glossd-") as folder:
        took = await leave_and_come_back(Path(folder))
    return {
        "where": "nodes of one process, a p2pd each, loopback",
        "nodes": NODES,
        "rounds": ROUNDS,
        "all_serve": sum(serve for *_, serve in rounds),
        "covered_s": summary([covered for covered, *_ in rounds], 2),
        "ready_s": summary([ready for _, ready, *_ in rounds], 2),
        "fewest_hosts": min(fewest for _, _, fewest, _ in rounds),
        **{name: summary(seconds, 3) for name, seconds in took.items()},
    }


def run() -> dict[str, object]:
    return asyncio.run(_run())
