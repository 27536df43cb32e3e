"""`glossd.client` for event loops."""

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from glossd.api.schemas import PeerInfo, Status
from glossd.client import (
    ADMIN_S,
    CONNECT_S,
    PEERS,
    checked,
    open_socket,
    parse_event,
    patience,
    refusal,
    stopped_answering,
    went_away,
)
from glossd.events import Done, Error, HaltedEvent, RequestEvent


class AsyncClient:
    """Every method raises NotRunning when no daemon answers, and GlossError when it answers nonsense."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def events(self, body: Mapping[str, Any]) -> AsyncGenerator[RequestEvent, None]:
        """As Client.events."""
        with self._speaking():
            async with self._http(patience(body)) as http:
                async with http.stream("POST", "/api/prompt", json=dict(body)) as response:
                    if response.status_code != httpx.codes.OK:
                        yield refusal(response.status_code, await response.aread())
                        return
                    async for line in response.aiter_lines():
                        yield (event := parse_event(line))
                        if isinstance(event, Done | Error | HaltedEvent):
                            return
                raise went_away(self._path)

    async def status(self) -> Status:
        return Status.model_validate_json(await self._admin("GET", "/api/status"))

    async def peers(self) -> list[PeerInfo]:
        return PEERS.validate_json(await self._admin("GET", "/api/peers"))

    async def pause(self) -> None:
        """As Client.pause."""
        await self._admin("POST", "/api/pause")

    async def resume(self) -> None:
        await self._admin("POST", "/api/resume")

    async def stop(self) -> None:
        """As Client.stop."""
        await self._admin("POST", "/api/stop")

    async def _admin(self, method: str, path: str) -> bytes:
        with self._speaking():
            async with self._http(ADMIN_S) as http:
                response = await http.request(method, path)
                return checked(response.status_code, response.content)

    def _http(self, read_s: float) -> httpx.AsyncClient:
        transport = httpx.AsyncHTTPTransport(uds=str(self._path))
        timeout = httpx.Timeout(read_s, connect=CONNECT_S)
        return httpx.AsyncClient(transport=transport, base_url="http://glossd", timeout=timeout)

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        open_socket(self._path).close()  # httpx would leave a socket open where it cannot connect
        try:
            yield
        except httpx.TimeoutException:
            raise stopped_answering(self._path) from None
        except httpx.TransportError:
            raise went_away(self._path) from None
