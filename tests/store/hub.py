"""A hub in this process: resolve addresses, redirects to a second path, ranges, and the ways in which it can fail."""

import hashlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from swarm.store.hub import HubSource

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """Serves `folder` as REPO. `requests` are the (method, path, Range, Authorization) it saw."""

    folder: Path
    repo: str = "someone/tiny"
    url: str = ""
    gated: bool = False
    drops: int = 0
    drop_after: int = 64
    busy: int = 0
    sends_more: bool = False
    wrong_range: bool = False
    ignores_ranges: bool = False
    tells_hashes: bool = True
    flips: set[str] = field(default_factory=set)
    requests: list[tuple[str, str, str, str]] = field(default_factory=list)
    bytes_sent: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    sources: list[HubSource] = field(default_factory=list)

    def source(self, token: str | None = None) -> HubSource:
        """A client that is closed with the hub and does not pause between attempts."""
        self.sources.append(HubSource("someone/tiny", "main", self.url, token, pause=lambda seconds: None))
        return self.sources[-1]

    def takes(self, fault: str) -> bool:
        """Whether a fault that happens a number of times happens now."""
        with self.lock:
            left = getattr(self, fault)
            setattr(self, fault, max(0, left - 1))
            return bool(left > 0)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self) -> None:
        hub, headers = self.hub, self.headers
        with hub.lock:
            hub.requests.append((self.command, self.path, headers.get("Range", ""), headers.get("Authorization", "")))
        path = unquote(self.path)
        if path.startswith("/blobs/"):
            return self._blob(hub.folder / path.removeprefix("/blobs/"))
        repo, _, rest = path[1:].partition("/resolve/")
        revision, _, name = rest.partition("/")
        file = hub.folder / name
        if repo != hub.repo or revision not in ("main", COMMIT) or not file.is_file():
            return self._end(404)
        if hub.gated:
            return self._end(403)
        if hub.takes("busy"):
            return self._end(503)
        self.send_response(302 if name.endswith(".safetensors") else 307)
        self.send_header("Location", f"/blobs/{name}")
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("X-Linked-Size", str(file.stat().st_size))
        if hub.tells_hashes and name.endswith(".safetensors"):
            self.send_header("X-Linked-Etag", f'"{hashlib.sha256(file.read_bytes()).hexdigest()}"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _blob(self, file: Path) -> None:
        hub, size, asked = self.hub, file.stat().st_size, self.headers.get("Range", "")
        status, start, stop = 200, 0, size
        if asked and not hub.ignores_ranges:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            status, start, stop = 206, int(first), int(last) + 1
        with file.open("rb") as opened:
            opened.seek(start)
            body = bytearray(opened.read(stop - start) if self.command == "GET" else b"")
        if file.name in hub.flips and start >= 8 and len(body) > 10_000:
            body[-1] ^= 1
        if hub.sends_more:
            body += b"more"
        self.send_response(status)
        if status == 206:
            shown = start + (1 if hub.wrong_range else 0)
            self.send_header("Content-Range", f"bytes {shown}-{stop - 1}/{size}")
        self.send_header("Content-Length", str(len(body) if self.command == "GET" else size))
        self.end_headers()
        if self.command == "HEAD":
            return
        if start >= 8 and len(body) > hub.drop_after and hub.takes("drops"):
            self.wfile.write(body[: hub.drop_after])
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(2)
            return
        with hub.lock:
            hub.bytes_sent += len(body)
        self.wfile.write(body)

    def _end(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up, as it does on a wrong answer, is no news."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


@contextmanager
def serving(folder: Path) -> Iterator[Hub]:
    hub = Hub(folder)
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        for source in hub.sources:
            source.close()
        server.shutdown()
        thread.join()
        server.server_close()
