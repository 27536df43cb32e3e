"""A fake daemon in a thread, and the command line called as a user calls it."""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from glossd.api.app import build_app
from glossd.api.serve import LocalServers
from glossd.cli.main import main
from tests.fakes import FakeService


@dataclass
class Daemon:
    socket: Path
    service: FakeService


@dataclass
class Result:
    code: int
    out: str
    err: str


Glossd = Callable[..., Result]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    service = FakeService()
    started = threading.Event()
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        leave = service.stopped
        loops.append((asyncio.get_running_loop(), leave))
        async with LocalServers(build_app(service), tmp_path / "s", None, None, drain_s=0):
            started.set()
            await leave.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(10)
    yield Daemon(tmp_path / "s", service)
    loop, leave = loops[0]
    if thread.is_alive():
        loop.call_soon_threadsafe(leave.set)
    thread.join()


@pytest.fixture
def glossd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Glossd:
    """Call the command line in this process: `glossd("status", "--json").code`."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("GLOSSD_SOCKET", str(tmp_path / "s"))

    def call(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["glossd", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Result(int(ended.value.code or 0), out, err)

    return call
