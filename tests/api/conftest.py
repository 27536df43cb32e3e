"""Real servers over a fake service, on a socket in a fresh folder and a free port."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from glossd.api.app import build_app
from glossd.api.serve import LocalServers
from tests.fakes import FakeService


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
async def servers(service: FakeService, tmp_path: Path) -> AsyncIterator[LocalServers]:
    async with LocalServers(build_app(service), tmp_path / "s", "127.0.0.1:0", None, drain_s=0) as running:
        yield running


@pytest.fixture
async def http(servers: LocalServers) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the unix socket."""
    transport = httpx.AsyncHTTPTransport(uds=str(servers.socket))
    async with httpx.AsyncClient(transport=transport, base_url="http://glossd") as client:
        yield client


@pytest.fixture
async def direct(service: FakeService) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the app without a socket between, for long tables."""
    transport = httpx.ASGITransport(build_app(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://glossd") as client:
        yield client
