"""The guard stands before every route of TCP and before none of the unix socket."""

import httpx
import pytest
from starlette.routing import Route

from glossd.api.app import build_app
from glossd.api.guard import Guard
from glossd.events import EVENT, Error
from tests.fakes import FakeService

PORT = 8123
ROUTES = [
    (method, route.path)
    for route in build_app(FakeService()).routes
    if isinstance(route, Route)
    for method in sorted(route.methods or ())
]


async def ask(
    service: FakeService, token: str | None, method: str, path: str, headers: list[tuple[str, str]]
) -> httpx.Response:
    transport = httpx.ASGITransport(Guard(build_app(service), PORT, token))
    async with httpx.AsyncClient(transport=transport, base_url=f"http://127.0.0.1:{PORT}") as client:
        return await client.request(method, path, headers=headers)


def test_the_table_knows_the_routes() -> None:
    assert {"/v1/chat/completions", "/api/prompt", "/api/stop", "/metrics", "/health"} <= {path for _, path in ROUTES}


@pytest.mark.parametrize(("method", "path"), [*ROUTES, ("GET", "/nope")])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("Host", "evil.example")], 403),
        ([("Host", "evil.example:8123")], 403),
        ([("Host", "127.0.0.1:8124")], 403),
        ([("Host", "127.0.0.1")], 403),
        ([("Host", "127.0.0.1:8123"), ("Host", "evil.example")], 403),
        ([("Origin", "http://evil.example")], 403),
        ([("Origin", "null")], 403),
        ([("Origin", f"http://127.0.0.1:{PORT}")], 403),
        ([], 401),
        ([("Authorization", "Bearer wrong-token")], 401),
        ([("Authorization", "secret-token")], 401),
        ([("Authorization", "Bearer secret-token"), ("Authorization", "Bearer secret-token")], 401),
    ],
)
async def test_refused_everywhere(method: str, path: str, headers: list[tuple[str, str]], status: int) -> None:
    service = FakeService()
    answer = await ask(service, "secret-token", method, path, headers)
    assert answer.status_code == status
    assert not service.stopped.is_set()
    assert service.tasks == []
    if status == 401:
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("host", ["127.0.0.1:8123", "localhost:8123", "LOCALHOST:8123", "[::1]:8123"])
async def test_programs_get_in(host: str) -> None:
    service = FakeService()
    headers = [("Host", host), ("Authorization", "Bearer secret-token")]
    assert (await ask(service, "secret-token", "GET", "/health", headers)).status_code == 200
    assert (await ask(service, None, "GET", "/health", [("Host", host)])).status_code == 200


async def test_the_refusal_has_the_shape_of_its_route() -> None:
    headers = [("Host", "evil.example")]
    openai = await ask(FakeService(), None, "GET", "/v1/models", headers)
    assert openai.json()["error"]["code"] == "forbidden_host"
    native = EVENT.validate_json((await ask(FakeService(), None, "GET", "/api/status", headers)).text)
    assert isinstance(native, Error)
    assert native.code == "forbidden_host"
