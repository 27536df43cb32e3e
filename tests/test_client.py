"""The client of the socket: both twins, refusals, and a daemon that is not there or dies."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from glossd.aio import AsyncClient
from glossd.api.app import build_app
from glossd.api.serve import LocalServers
from glossd.client import Client
from glossd.events import Error
from swarm.errors import GlossError, NotRunning, Overloaded
from tests.fakes import GOOD, PEER, FakeService

PATIENCE_S = 10


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[FakeService, Path]]:
    service = FakeService()
    async with LocalServers(build_app(service), tmp_path / "s", None, None, drain_s=0):
        yield service, tmp_path / "s"


async def test_both_twins(served: tuple[FakeService, Path]) -> None:
    service, socket = served
    plain, client = Client(socket), AsyncClient(socket)
    assert tuple([event async for event in client.events({"chat": "x"})]) == GOOD
    assert tuple(await asyncio.to_thread(lambda: list(plain.events({"chat": "x"})))) == GOOD
    assert await asyncio.to_thread(plain.status) == await client.status()
    assert await asyncio.to_thread(plain.peers) == await client.peers()
    assert (await client.peers())[0].peer == PEER
    await client.stop()
    assert service.stopped.is_set()


async def test_a_refusal_is_an_event(served: tuple[FakeService, Path]) -> None:
    service, socket = served
    service.refuse = Overloaded("full")
    (event,) = [event async for event in AsyncClient(socket).events({"chat": "x"})]
    assert isinstance(event, Error)
    assert event.code == "overloaded"


async def test_closing_the_stream_cancels(served: tuple[FakeService, Path]) -> None:
    service, socket = served
    service.script, service.hang = GOOD[:2], True
    events = AsyncClient(socket).events({"chat": "x"})
    async with asyncio.timeout(PATIENCE_S):
        await anext(events)
        await events.aclose()
        await service.running[0].cancelled.wait()


@pytest.mark.parametrize("there", [False, True])
async def test_nobody_there(tmp_path: Path, there: bool) -> None:
    socket = tmp_path / "s"
    if there:
        socket.write_text("")
    for call in (Client(socket).status, Client(socket).stop, lambda: list(Client(socket).events({"chat": "x"}))):
        with pytest.raises(NotRunning, match="glossd run"):
            await asyncio.to_thread(call)
    with pytest.raises(NotRunning, match="glossd run"):
        await AsyncClient(socket).peers()


PLAN_LINE = GOOD[0].model_dump_json().encode() + b"\n"


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (b"", NotRunning, "went away"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n" + PLAN_LINE, NotRunning, "went away"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + PLAN_LINE, NotRunning, "went away"),
        (b"HTTP/1.1 200 OK\r\n\r\n{}\n", GlossError, "another version"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nfull", GlossError, "HTTP 503"),
    ],
)
async def test_a_daemon_that_dies_or_babbles(
    tmp_path: Path, answer: bytes, error: type[GlossError], words: str
) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_unix_server(speak, tmp_path / "s"):
        with pytest.raises(error, match=words):
            async for _ in AsyncClient(tmp_path / "s").events({"chat": "x"}):
                pass
        with pytest.raises(error, match=words):
            await asyncio.to_thread(lambda: list(Client(tmp_path / "s").events({"chat": "x"})))
