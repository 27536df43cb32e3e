"""A transport that counts the bytes of its streams, for metrics. Wraps any other; called by the daemon."""

from collections.abc import Callable

from swarm.ids import PeerId
from swarm.net.transport import Handler, Stream, Transport

Count = Callable[[int], None]


class CountedTransport:
    """`sent` and `received` are told the sizes of what went through, headers of the network not included."""

    def __init__(self, inner: Transport, sent: Count, received: Count) -> None:
        self.peer_id = inner.peer_id
        self._inner = inner
        self._sent = sent
        self._received = received

    async def serve(self, protocol: str, handler: Handler) -> None:
        async def counted(stream: Stream) -> None:
            await handler(_CountedStream(stream, self._sent, self._received))

        await self._inner.serve(protocol, counted)

    async def open(self, peer: PeerId, protocol: str) -> Stream:
        return _CountedStream(await self._inner.open(peer, protocol), self._sent, self._received)

    async def addresses(self) -> list[str]:
        return await self._inner.addresses()

    async def close(self) -> None:
        await self._inner.close()


class _CountedStream:
    def __init__(self, inner: Stream, sent: Count, received: Count) -> None:
        self.peer = inner.peer
        self._inner = inner
        self._sent = sent
        self._received = received

    async def read_exactly(self, size: int) -> bytes:
        data = await self._inner.read_exactly(size)
        self._received(len(data))
        return data

    async def write(self, *chunks: bytes | memoryview) -> None:
        await self._inner.write(*chunks)
        self._sent(sum(memoryview(chunk).nbytes for chunk in chunks))

    async def close(self) -> None:
        await self._inner.close()
