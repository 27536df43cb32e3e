"""Client of the daemon's unix socket, sync and async. The command line speaks to the daemon through this alone.

Import it where it is used: httpx takes longer to load than `glossd --help` may.
"""

import os
import socket
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from pydantic import TypeAdapter, ValidationError

from glossd.api.schemas import PeerInfo, Status
from glossd.events import EVENT, Done, Error, HaltedEvent, RequestEvent
from swarm.errors import GlossError, NotRunning

_CONNECT_S = 5.0
_ADMIN_S = 15.0
_DEADLINE_S = 300.0
_SLACK_S = 10.0
_PEERS = TypeAdapter(list[PeerInfo])
_URL = "http://glossd"


class Client:
    """Every method raises NotRunning when no daemon answers, and GlossError when it answers nonsense."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def events(self, body: Mapping[str, Any]) -> Generator[RequestEvent, None, None]:
        """Send a body of `POST /api/prompt`; its events up to the terminal one. Closing the generator cancels.

        A refusal comes as an error event too.
        """
        with _speaking(self._path), self._http(_patience(body)) as http:
            with http.stream("POST", "/api/prompt", json=dict(body)) as response:
                if response.status_code != httpx.codes.OK:
                    yield _refusal(response.status_code, response.read())
                    return
                for line in response.iter_lines():
                    yield (event := _event(line))
                    if isinstance(event, Done | Error | HaltedEvent):
                        return
            raise httpx.ReadError("the stream ended early")

    def status(self) -> Status:
        return Status.model_validate_json(self._admin("GET", "/api/status"))

    def peers(self) -> list[PeerInfo]:
        return _PEERS.validate_json(self._admin("GET", "/api/peers"))

    def stop(self) -> None:
        """Ask the daemon to leave. It does so after this returns."""
        self._admin("POST", "/api/stop")

    def is_there(self) -> bool:
        """Whether somebody listens on the socket."""
        try:
            _try_connect(self._path)
        except OSError:
            return False
        return True

    def _admin(self, method: str, path: str) -> bytes:
        with _speaking(self._path), self._http(_ADMIN_S) as http:
            return _checked(http.request(method, path))

    def _http(self, read_s: float) -> httpx.Client:
        transport = httpx.HTTPTransport(uds=str(self._path))
        return httpx.Client(transport=transport, base_url=_URL, timeout=httpx.Timeout(read_s, connect=_CONNECT_S))


class AsyncClient:
    """`Client` for an event loop."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def events(self, body: Mapping[str, Any]) -> AsyncGenerator[RequestEvent, None]:
        """As Client.events."""
        with _speaking(self._path):
            async with self._http(_patience(body)) as http:
                async with http.stream("POST", "/api/prompt", json=dict(body)) as response:
                    if response.status_code != httpx.codes.OK:
                        yield _refusal(response.status_code, await response.aread())
                        return
                    async for line in response.aiter_lines():
                        yield (event := _event(line))
                        if isinstance(event, Done | Error | HaltedEvent):
                            return
                raise httpx.ReadError("the stream ended early")

    async def status(self) -> Status:
        return Status.model_validate_json(await self._admin("GET", "/api/status"))

    async def peers(self) -> list[PeerInfo]:
        return _PEERS.validate_json(await self._admin("GET", "/api/peers"))

    async def stop(self) -> None:
        """As Client.stop."""
        await self._admin("POST", "/api/stop")

    async def _admin(self, method: str, path: str) -> bytes:
        with _speaking(self._path):
            async with self._http(_ADMIN_S) as http:
                return _checked(await http.request(method, path))

    def _http(self, read_s: float) -> httpx.AsyncClient:
        transport = httpx.AsyncHTTPTransport(uds=str(self._path))
        return httpx.AsyncClient(transport=transport, base_url=_URL, timeout=httpx.Timeout(read_s, connect=_CONNECT_S))


def _try_connect(path: Path) -> None:
    """Raises OSError."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_CONNECT_S)
        probe.connect(os.fspath(path))


@contextmanager
def _speaking(path: Path) -> Iterator[None]:
    """Failures of the connection, told as what they mean to a user."""
    try:
        _try_connect(path)  # httpx would leave a socket open where it cannot connect
        yield
    except PermissionError:
        raise NotRunning(f"{path} belongs to another user's daemon; start your own with `glossd run`") from None
    except (OSError, httpx.ConnectError, httpx.ConnectTimeout):
        raise NotRunning(f"no daemon answers on {path}; start one with `glossd run`") from None
    except httpx.TimeoutException:
        raise NotRunning(f"the daemon on {path} has stopped answering; end its process and `glossd run`") from None
    except httpx.TransportError:
        raise NotRunning(f"the daemon on {path} went away in the middle; start it again with `glossd run`") from None


def _patience(body: Mapping[str, Any]) -> float:
    """How long a line may take: the daemon keeps the deadline itself, unless it is frozen."""
    deadline_s = body.get("deadline_s")
    return (deadline_s if isinstance(deadline_s, int | float) else _DEADLINE_S) + _SLACK_S


def _event(line: str | bytes) -> RequestEvent:
    try:
        return EVENT.validate_json(line)
    except ValidationError:
        raise GlossError("the daemon answers in another version's words; restart it with `glossd stop`") from None


def _refusal(status: int, body: bytes) -> RequestEvent:
    return _event(_checked_text(status, body))


def _checked_text(status: int, body: bytes) -> bytes:
    """Errors of our routes are JSON; the server's own (too many connections) are not."""
    if body.startswith(b"{"):
        return body
    raise GlossError(f"the daemon refused with HTTP {status} {body[:100].decode(errors='replace')!r}; try again")


def _checked(response: httpx.Response) -> bytes:
    if response.is_success:
        return response.content
    refusal = _refusal(response.status_code, response.content)
    raise GlossError(refusal.message if isinstance(refusal, Error) else f"HTTP {response.status_code}")
