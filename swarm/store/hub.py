"""A hub repository as a source: resolve addresses, redirects, byte ranges, bounded retries that go on where they broke.

HF_ENDPOINT and HF_TOKEN are read by whoever makes the source, not here. The token goes to the hub's own host only.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from urllib.parse import quote

import httpx

from swarm.errors import FetchFailed
from swarm.store.source import FileFacts

ENDPOINT = "https://huggingface.co"
ATTEMPTS = 6
FIRST_PAUSE_S = 0.5
TIMEOUT = httpx.Timeout(30.0, connect=10.0)

_REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_RETRIED = {
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
}


class _Broken(Exception):
    """This attempt failed; another may succeed."""


def is_repo(text: str) -> bool:
    return _REPO.fullmatch(text) is not None and ".." not in text


class HubSource:
    """`revision` is a branch, tag or commit; the first answer pins it to the commit, so that all files belong together.

    Used by several threads at once. `bytes_read` counts what came over the wire.
    """

    def __init__(
        self,
        repo: str,
        revision: str = "main",
        endpoint: str = ENDPOINT,
        token: str | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        if not is_repo(repo):
            raise FetchFailed(f"{repo!r} is not a repository; write OWNER/NAME")
        self.name = repo
        self.revision = revision
        self.bytes_read = 0
        self._endpoint = endpoint.rstrip("/")
        self._pause = pause
        self._lock = threading.Lock()
        headers = {"Accept-Encoding": "identity", "User-Agent": "glossd"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        try:
            # httpx drops the Authorization header where a redirect leaves the host.
            self._client = httpx.Client(headers=headers, timeout=TIMEOUT, follow_redirects=True, max_redirects=5)
            self._host = httpx.URL(self._endpoint)
        except (httpx.InvalidURL, ValueError) as error:
            raise FetchFailed(f"HF_ENDPOINT {endpoint!r} cannot be used: {error}") from None
        if self._host.scheme not in ("http", "https"):
            raise FetchFailed(f"HF_ENDPOINT {endpoint!r} must begin with https:// or http://")

    def has(self, file: str) -> bool:
        return self.facts(file) is not None

    def facts(self, file: str) -> FileFacts | None:
        return self._retry(lambda: self._facts(file))

    def read(self, file: str, start: int, stop: int) -> Iterator[bytes]:
        failures = 0
        while start < stop:
            try:
                for data in self._stream(file, start, stop):
                    start += len(data)
                    yield data
            except (_Broken, httpx.HTTPError) as error:
                failures += 1
                self._wait(failures, file, error)

    def close(self) -> None:
        self._client.close()

    def _facts(self, file: str) -> FileFacts | None:
        response = self._client.head(self._url(file))
        if response.status_code == HTTPStatus.NOT_FOUND and "X-Error-Code" not in response.headers:
            return None
        if response.headers.get("X-Error-Code") == "EntryNotFound":
            return None
        self._check(response, file)
        answers = [*response.history, response]
        commit = _first(answers, "X-Repo-Commit")
        if commit is not None and re.fullmatch(r"[0-9a-f]{40}", commit):
            self.revision = commit
        size = _first(answers, "X-Linked-Size") or response.headers.get("Content-Length", "")
        if not (size.isascii() and size.isdigit() and len(size) < 19):
            raise FetchFailed(f"the hub does not tell the size of {file} of {self.name}")
        etag = (_first(answers, "X-Linked-Etag") or "").removeprefix("W/").strip('"')
        return FileFacts(int(size), etag if _SHA256.fullmatch(etag) else None)

    def _stream(self, file: str, start: int, stop: int) -> Iterator[bytes]:
        """Bytes as they come, never more than asked for. Raises _Broken when they end early."""
        with self._client.stream("GET", self._url(file), headers={"Range": f"bytes={start}-{stop - 1}"}) as response:
            self._check(response, file)
            if not _is_asked_for(response, start, stop):
                raise FetchFailed(
                    f"the hub answers {response.status_code} with {response.headers.get('Content-Range', 'no range')} "
                    f"where bytes {start}-{stop - 1} of {file} were asked for; try another HF_ENDPOINT"
                )
            for data in response.iter_raw():
                with self._lock:
                    self.bytes_read += len(data)
                if start + len(data) > stop:
                    raise FetchFailed(f"the hub sent more bytes of {file} than asked for")
                start += len(data)
                yield data
        if start < stop:
            raise _Broken(f"the answer ended {stop - start} bytes early")

    def _check(self, response: httpx.Response, file: str) -> None:
        """Raises FetchFailed, or _Broken where waiting may help."""
        status = response.status_code
        if self._host.scheme == "https" and response.url.scheme != "https":
            raise FetchFailed(f"the hub redirects {file} to plain http; refused")
        if status in _RETRIED:
            raise _Broken(f"the hub answers {status}")
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise FetchFailed(
                f"the hub refuses {self.name} ({status}): it is gated, private or misspelt; "
                f"accept its licence at {self._endpoint}/{self.name} and set HF_TOKEN"
            )
        if status == HTTPStatus.NOT_FOUND:
            raise FetchFailed(f"the hub has no {file} in {self.name} at {self.revision} (404)")
        if not response.is_success:
            raise FetchFailed(f"the hub answers {status} to {file} of {self.name}")

    def _retry(self, attempt: Callable[[], FileFacts | None]) -> FileFacts | None:
        failures = 0
        while True:
            try:
                return attempt()
            except (_Broken, httpx.HTTPError) as error:
                failures += 1
                self._wait(failures, self.name, error)

    def _wait(self, failures: int, what: str, error: Exception) -> None:
        if failures == ATTEMPTS:
            reason = str(error) or type(error).__name__
            raise FetchFailed(
                f"{what} could not be fetched from {self._endpoint} in {ATTEMPTS} attempts ({reason}); "
                "run the same command again, it goes on where it stopped"
            ) from None
        self._pause(FIRST_PAUSE_S * 2 ** (failures - 1))

    def _url(self, file: str) -> str:
        return f"{self._endpoint}/{self.name}/resolve/{quote(self.revision, safe='')}/{quote(file)}"


def _is_asked_for(response: httpx.Response, start: int, stop: int) -> bool:
    """A small file may come whole to who asks for all of it."""
    if response.status_code == HTTPStatus.OK:
        return start == 0 and response.headers.get("Content-Length") == str(stop)
    span = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
    return span is not None and (int(span[1]), int(span[2])) == (start, stop - 1)


def _first(answers: list[httpx.Response], header: str) -> str | None:
    """The hub describes a file in its own answer; the redirect's target may repeat other things."""
    return next((answer.headers[header] for answer in answers if header in answer.headers), None)
