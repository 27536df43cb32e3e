"""A TCP path between two daemons that can be slow or go silent: a proxy, run in a thread of its own.

A daemon that announces the proxy's address is dialled through it by everybody else. What a silent path holds back
arrives once it heals, as TCP does it.
"""

import asyncio
import contextlib
import random
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

PIECE_BYTES = 64 * 1024
RESEND_S = 0.2
"""What the loss of a segment costs over TCP at least."""


@dataclass
class Shaper:
    """Forwards `port` to `target`, both on 127.0.0.1. Change the rest at any time.

    delay_s: one way. loss: share of pieces that come RESEND_S late. `there` and `back`: whether bytes get through, to
    the target and from it; one alone is a half-open path.
    """

    port: int
    target: int
    delay_s: float = 0.0
    loss: float = 0.0
    there: bool = True
    back: bool = True
    seed: int = 0
    connections: int = field(default=0, init=False)

    def heal(self) -> None:
        self.there = self.back = True

    async def serve(self) -> None:
        async with await asyncio.start_server(self._accept, "127.0.0.1", self.port) as server:
            await server.serve_forever()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        rng = random.Random(f"{self.seed} {self.connections}")
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._forward(reader, far_writer, "there", rng))
                both.create_task(self._forward(far_reader, writer, "back", rng))
        finally:
            writer.close()
            far_writer.close()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str, rng: random.Random
    ) -> None:
        """Pieces leave in order, each `delay_s` after it came."""
        loop = asyncio.get_running_loop()
        due: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(256)

        async def deliver() -> None:
            while True:
                at, piece = await due.get()
                await asyncio.sleep(at - loop.time())
                while not getattr(self, way):  # noqa: ASYNC110 (set from another thread)
                    await asyncio.sleep(0.01)
                if not piece:
                    return
                with contextlib.suppress(OSError):
                    writer.write(piece)
                    await writer.drain()

        async with asyncio.TaskGroup() as group:
            group.create_task(deliver())
            with contextlib.suppress(OSError):
                while piece := await reader.read(PIECE_BYTES):
                    late = RESEND_S if rng.random() < self.loss else 0.0
                    await due.put((loop.time() + self.delay_s + late, piece))
            await due.put((loop.time() + self.delay_s, b""))
        writer.close()


@contextmanager
def shaped(count: int) -> Iterator[list[Shaper]]:
    """Paths to `count` daemons to be: start each with the `flags_of` its path."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2 * count)]
        ports = [probe.getsockname()[1] for probe in probes]
    shapers = [Shaper(port, target) for port, target in zip(ports[:count], ports[count:], strict=True)]
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        stop = asyncio.Event()
        serving = [asyncio.create_task(shaper.serve()) for shaper in shapers]
        started.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()
        for task in serving:
            task.cancel()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="shapers")
    thread.start()
    loop, stop = started.result()
    try:
        yield shapers
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


def flags_of(shaper: Shaper) -> dict[str, object]:
    """Settings of the daemon behind it."""
    return {"port": shaper.target, "announce": [f"/ip4/127.0.0.1/tcp/{shaper.port}"]}
