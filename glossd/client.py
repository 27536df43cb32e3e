"""Client of the daemon's unix socket. The command line speaks to the daemon through this alone.

On the standard library's HTTP client, because `glossd status` would spend a third of its time on loading another one.
`glossd.aio` has the twin for event loops.
"""

import http.client
import json
import os
import socket
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from glossd.api.schemas import BanInfo, PeerInfo, Status
from glossd.events import EVENT, Done, Error, HaltedEvent, RequestEvent
from swarm.errors import GlossError, NotRunning

CONNECT_S = 5.0
ADMIN_S = 15.0
_DEADLINE_S = 300.0
_SLACK_S = 10.0
PEERS = TypeAdapter(list[PeerInfo])
BANS = TypeAdapter(list[BanInfo])


class Client:
    """Every method raises NotRunning when no daemon answers, and GlossError when it answers nonsense."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def events(self, body: Mapping[str, Any]) -> Generator[RequestEvent, None, None]:
        """Send a body of `POST /api/prompt`; its events up to the terminal one. Closing the generator cancels.

        A refusal comes as an error event too.
        """
        with self._asked("POST", "/api/prompt", patience(body), body) as response:
            if response.status != http.client.OK:
                yield refusal(response.status, response.read())
                return
            for line in response:
                yield (event := parse_event(line))
                if isinstance(event, Done | Error | HaltedEvent):
                    return
            raise went_away(self._path)

    def status(self) -> Status:
        return Status.model_validate_json(self._admin("GET", "/api/status"))

    def peers(self) -> list[PeerInfo]:
        return PEERS.validate_json(self._admin("GET", "/api/peers"))

    def bans(self) -> list[BanInfo]:
        return BANS.validate_json(self._admin("GET", "/api/bans"))

    def ban(self, peer: str, reason: str = "") -> None:
        self._admin("POST", "/api/bans", {"peer": peer, "reason": reason})

    def unban(self, peer: str) -> None:
        self._admin("POST", "/api/unban", {"peer": peer})

    def pause(self) -> None:
        """Returns when the daemon computes nothing any more."""
        self._admin("POST", "/api/pause")

    def resume(self) -> None:
        self._admin("POST", "/api/resume")

    def stop(self) -> None:
        """Ask the daemon to leave. It does so after this returns."""
        self._admin("POST", "/api/stop")

    def is_there(self) -> bool:
        """Whether somebody listens on the socket."""
        try:
            _connect(self._path).close()
        except OSError:
            return False
        return True

    def _admin(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        with self._asked(method, path, ADMIN_S, body) as response:
            return checked(response.status, response.read())

    @contextmanager
    def _asked(
        self, method: str, path: str, patience_s: float, body: Mapping[str, Any] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """The response to one request. Failures of the connection are told as what they mean to a user."""
        with closing(_Connection(open_socket(self._path), patience_s)) as connection:
            try:
                content = None if body is None else json.dumps(dict(body))
                connection.request(method, path, content, {"Content-Type": "application/json"} if content else {})
                yield connection.getresponse()
            except TimeoutError:
                raise stopped_answering(self._path) from None
            except (OSError, http.client.HTTPException):
                raise went_away(self._path) from None


class _Connection(http.client.HTTPConnection):
    """A connection over a socket that is open already; `patience_s` is the longest wait for bytes."""

    def __init__(self, opened: socket.socket, patience_s: float) -> None:
        super().__init__("glossd")
        opened.settimeout(patience_s)
        self.sock = opened


def open_socket(path: Path) -> socket.socket:
    """Raises NotRunning."""
    try:
        return _connect(path)
    except PermissionError:
        raise NotRunning(f"{path} belongs to another user's daemon; start your own with `glossd run`") from None
    except OSError:
        raise NotRunning(f"no daemon answers on {path}; start one with `glossd run`") from None


def _connect(path: Path) -> socket.socket:
    opened = socket.socket(socket.AF_UNIX)
    try:
        opened.settimeout(CONNECT_S)
        opened.connect(os.fspath(path))
    except BaseException:
        opened.close()
        raise
    return opened


def stopped_answering(path: Path) -> NotRunning:
    return NotRunning(f"the daemon on {path} has stopped answering; end its process and `glossd run`")


def went_away(path: Path) -> NotRunning:
    return NotRunning(f"the daemon on {path} went away in the middle; start it again with `glossd run`")


def patience(body: Mapping[str, Any]) -> float:
    """Seconds that a line may take: the daemon keeps the deadline itself, unless it is frozen."""
    deadline_s = body.get("deadline_s")
    return (deadline_s if isinstance(deadline_s, int | float) else _DEADLINE_S) + _SLACK_S


def parse_event(line: str | bytes) -> RequestEvent:
    try:
        return EVENT.validate_json(line)
    except ValidationError:
        raise GlossError("the daemon answers in another version's words; restart it with `glossd leave`") from None


def refusal(status: int, body: bytes) -> RequestEvent:
    """Errors of our routes are JSON; the server's own (too many connections) are not."""
    if body.startswith(b"{"):
        return parse_event(body)
    raise GlossError(f"the daemon refused with HTTP {status} {body[:100].decode(errors='replace')!r}; try again")


def checked(status: int, body: bytes) -> bytes:
    """`body` of a success. Raises GlossError for everything else."""
    if 200 <= status < 300:
        return body
    refused = refusal(status, body)
    raise GlossError(refused.message if isinstance(refused, Error) else f"HTTP {status}")
