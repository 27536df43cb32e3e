"""The listening ends: modes, refusals to start, and a clean end."""

import asyncio
import contextlib
import os
import signal
import socket
import stat
from pathlib import Path

import httpx
import pytest

from glossd.api import serve
from glossd.api.app import build_app
from glossd.api.serve import LocalServers
from swarm.errors import StartError
from tests.fakes import GOOD, FakeService

PATIENCE_S = 10


def local(path: Path, http: str | None = None, token: str | None = None, drain_s: float = 0) -> LocalServers:
    return LocalServers(build_app(FakeService()), path, http, token, drain_s)


async def test_the_socket_is_ours_alone(servers: LocalServers) -> None:
    mode = servers.socket.stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


async def test_tcp_is_guarded_and_the_socket_is_not(servers: LocalServers, http: httpx.AsyncClient) -> None:
    page = {"Origin": "http://evil.example"}
    assert (await http.get("/health", headers=page)).status_code == 200
    async with httpx.AsyncClient(base_url=f"http://{servers.http}") as client:
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/health", headers=page)).status_code == 403


async def test_tcp_asks_for_the_token(tmp_path: Path) -> None:
    async with local(tmp_path / "s", "127.0.0.1:0", "secret-token") as servers, httpx.AsyncClient() as client:
        url = f"http://{servers.http}/health"
        assert (await client.get(url)).status_code == 401
        assert (await client.get(url, headers={"Authorization": "Bearer secret-token"})).status_code == 200


async def test_closing_leaves_no_socket(tmp_path: Path) -> None:
    path = tmp_path / "new" / "s"
    async with local(path):
        assert path.exists()
    assert not path.exists()
    async with local(path):
        assert path.exists()


async def test_signals_stay_with_the_daemon(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    async with local(tmp_path / "s"):
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


async def test_a_live_daemon_keeps_its_socket(servers: LocalServers, http: httpx.AsyncClient) -> None:
    with pytest.raises(StartError, match="glossd leave"):
        await local(servers.socket).start()
    assert (await http.get("/health")).status_code == 200


async def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with local(path):
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            assert (await client.get("/health")).status_code == 200


async def test_a_file_that_is_no_socket_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(StartError, match="not a socket"):
        await local(path).start()
    assert path.read_text() == "precious"


async def test_a_path_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="--socket"):
        await local(tmp_path / ("x" * 100)).start()


async def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="--socket"):
        await local(tmp_path / "file" / "s").start()


async def test_a_busy_port(servers: LocalServers, tmp_path: Path) -> None:
    other = tmp_path / "other"
    with pytest.raises(StartError, match="another program has it"):
        await local(other, servers.http).start()
    assert not other.exists()


async def test_a_stream_in_flight_ends_with_the_drain_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    service = FakeService()
    service.script, service.hang = GOOD[:1], True
    servers = LocalServers(build_app(service), tmp_path / "s", None, None, drain_s=0)
    await servers.start()
    reader, writer = await asyncio.open_unix_connection(str(servers.socket))
    body = b'{"chat": "x"}'
    writer.write(b"POST /api/prompt HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    async with asyncio.timeout(PATIENCE_S):
        await reader.readuntil(b'"plan"')
        await servers.close()
        assert b'"code":"stopping"' in await reader.read()
    assert "Traceback" not in caplog.text
    assert service.running[0].cancelled.is_set()
    writer.close()


async def test_a_head_that_never_comes_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "HEAD_TIMEOUT_S", 0.05)
    async with local(tmp_path / "s") as servers:
        for first in (b"", b"GET /hea"):
            reader, writer = await asyncio.open_unix_connection(str(servers.socket))
            writer.write(first)
            async with asyncio.timeout(PATIENCE_S):
                assert await reader.read() == b""
            writer.close()


async def test_too_many_connections_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "MAX_CONNECTIONS", 3)
    service = FakeService()
    service.script, service.hang = GOOD[:1], True
    body = b'{"chat": "x"}'
    async with LocalServers(build_app(service), tmp_path / "s", None, None, 0) as servers, asyncio.timeout(PATIENCE_S):
        open_ones = [await asyncio.open_unix_connection(str(servers.socket)) for _ in range(3)]
        for busy, asks in open_ones:
            asks.write(b"POST /api/prompt HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            await busy.readuntil(b'"plan"')
        reader, writer = await asyncio.open_unix_connection(str(servers.socket))
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 503 " in await reader.readline()
        for _, each in (*open_ones, (reader, writer)):
            each.close()


async def test_a_flood_of_silent_connections_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "MAX_CONNECTIONS", 8)
    async with local(tmp_path / "s") as servers, asyncio.timeout(PATIENCE_S):
        silent = []
        for number in range(60):
            silent.append(await asyncio.open_unix_connection(str(servers.socket)))
            silent[-1][1].write(b"GET / HTTP/1.1\r\nSlow: " if number % 2 else b"")
        reader, writer = await asyncio.open_unix_connection(str(servers.socket))
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 200 " in await reader.readline()
        for first, _ in silent[:52]:
            with contextlib.suppress(ConnectionResetError):
                assert await first.read() == b""
        for _, each in (*silent, (reader, writer)):
            each.close()


def test_a_dead_process_leaves_no_lock(tmp_path: Path) -> None:
    """A forked child of a daemon that died must not keep the next one from starting."""
    path = tmp_path / "s"
    ready, done = os.pipe(), os.pipe()
    child = None
    with serve._locked(path):
        child = os.fork()
        if child == 0:
            os.write(ready[1], b"x")
            os.read(done[0], 1)
            os._exit(0)
        os.read(ready[0], 1)
    with serve._locked(path):
        os.write(done[1], b"x")
    os.waitpid(child, 0)
