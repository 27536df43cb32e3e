"""The listening ends: the unix socket, which only its owner can open, and loopback TCP behind the guard."""

import asyncio
import errno
import fcntl
import math
import os
import socket as sockets
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from glossd.api.guard import Guard
from swarm.errors import StartError

MAX_CONNECTIONS = 128
HEAD_TIMEOUT_S = 5.0
SOCKET_PATH_LIMIT = 100  # bytes; systems allow 104 to 108
_BACKLOG = 128


class LocalServers:
    """Serves `app` until closed. `http` is HOST:PORT or None; after `start` it holds the real port.

    Runs in the caller's event loop and installs no signal handlers. Use as `async with`, or `start` and `close`.
    """

    def __init__(self, app: ASGIApp, socket: Path, http: str | None, token: str | None, drain_s: float) -> None:
        self.socket = socket
        self.http = http
        self._app = app
        self._token = token
        self._drain_s = drain_s
        self._servers: list[tuple[_Server, asyncio.Task[None]]] = []
        self._stack = ExitStack()

    async def start(self) -> None:
        """Raises StartError, leaving nothing behind."""
        try:
            unix = self._stack.enter_context(_bound_unix(self.socket))
            tcp = None
            if self.http is not None:
                tcp = self._stack.enter_context(_bind_tcp(self.http))
                port = tcp.getsockname()[1]
                self.http = f"{self.http.rpartition(':')[0]}:{port}"
        except BaseException:
            self._stack.close()
            raise
        await self._serve(self._app, unix)
        if tcp is not None:
            await self._serve(Guard(self._app, port, self._token), tcp)

    async def close(self) -> None:
        """Stop listening; streams in flight get at most the drain time. Never raises for a client's sake."""
        for server, _ in self._servers:
            server.should_exit = True
        await asyncio.gather(*(task for _, task in self._servers), return_exceptions=True)
        self._servers.clear()
        self._stack.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _serve(self, app: ASGIApp, bound: sockets.socket) -> None:
        config = uvicorn.Config(
            app,
            http=_Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS + 1,  # uvicorn refuses at it, not beyond
            timeout_keep_alive=5,
            timeout_graceful_shutdown=math.ceil(self._drain_s),
        )
        server = _Server(config)
        task = asyncio.create_task(server.serve(sockets=[bound]), name=f"serve {bound.getsockname()}")
        self._servers.append((server, task))
        await server.listening.wait()


class _Server(uvicorn.Server):
    """Signals belong to the daemon."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[sockets.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


class _Protocol(H11Protocol):
    """Closes a connection whose request head does not arrive in time, which uvicorn would wait for without end, and
    the one that said nothing for longest when all places are taken, so that a flood of those keeps nobody out."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self._make_room()
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unwatch()

    def _make_room(self) -> None:
        silent = {each: each._late.when() for each in self.connections if isinstance(each, _Protocol) and each._late}
        if silent:
            loser = min(silent, key=lambda each: silent[each])
            loser._unwatch()
            loser.transport.abort()
            self.connections.discard(loser)  # which it leaves by itself only later, when others have been refused

    def _watch_head(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._unwatch()
        elif self._late is None:
            self._late = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _unwatch(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def check_socket(path: Path) -> None:
    """Raise StartError when a daemon holds `path`, or it cannot be a socket: known before the slow part of a start."""
    with _bound_unix(path):
        pass


@contextmanager
def _bound_unix(path: Path) -> Iterator[sockets.socket]:
    """A listening socket at `path`, of mode 0600 from its first moment; the file goes with it. Raises StartError."""
    if len(os.fsencode(path)) > SOCKET_PATH_LIMIT:
        raise StartError(f"the socket path {path} is longer than {SOCKET_PATH_LIMIT} bytes; set a shorter --socket")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(path), sockets.socket(sockets.AF_UNIX) as bound:
            _remove_stale(path)
            umask = os.umask(0o177)
            try:
                bound.bind(os.fspath(path))
            finally:
                os.umask(umask)
            bound.listen(_BACKLOG)
            bound.setblocking(False)
            try:
                yield bound
            finally:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise StartError(f"cannot listen on {path}: {error.strerror or error}; set another --socket") from None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold PATH.lock as long as we listen, so that two starting daemons never remove each other's socket.

    A record lock, because a forked child does not inherit it and so cannot keep it after our death.
    """
    with open(path.with_name(path.name + ".lock"), "w", opener=lambda name, how: os.open(name, how, 0o600)) as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise _taken(path) from None
        yield


def _remove_stale(path: Path) -> None:
    """Remove a socket that a dead daemon left; raise StartError for anything else that stands at `path`."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise StartError(f"{path} is not a socket; move it away or set another --socket")
    with sockets.socket(sockets.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError:
            pass  # full backlog or a frozen owner: somebody is there
    raise _taken(path)


def _taken(path: Path) -> StartError:
    return StartError(f"another daemon holds {path}; end it with `glossd leave` or set another --socket")


def _bind_tcp(address: str) -> sockets.socket:
    """Raises StartError."""
    host, _, port = address.rpartition(":")
    family = sockets.AF_INET6 if host == "[::1]" else sockets.AF_INET
    bound = sockets.socket(family)
    try:
        bound.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
        bound.bind((host.strip("[]").replace("localhost", "127.0.0.1"), int(port)))
        bound.listen(_BACKLOG)
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        why = "another program has it" if error.errno == errno.EADDRINUSE else error.strerror
        raise StartError(f"cannot listen on {address}: {why}; set another --http, or none") from None
    return bound
