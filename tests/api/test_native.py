"""The native routes: the event stream, bad input, clients that leave."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from glossd.api import app as app_module
from glossd.api.serve import LocalServers
from glossd.events import EVENT, Error, HaltedEvent
from swarm.errors import CoverageLost, Overloaded
from tests.fakes import GOOD, PLAN, STEP, FakeService

PATIENCE_S = 10


async def raw(servers: LocalServers, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_unix_connection(str(servers.socket))
    writer.write(data)
    await writer.drain()
    return reader, writer


def request(body: bytes, path: str = "/api/prompt") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def test_events_come_as_they_are(http: httpx.AsyncClient, service: FakeService) -> None:
    body = {"prompt": "Once", "max_tokens": 9, "seed": 1, "deadline_s": 5, "commit": "threshold", "cfg_scale": 1}
    answer = await http.post("/api/prompt", json=body)
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    assert tuple(EVENT.validate_json(line) for line in answer.text.splitlines()) == GOOD
    task = service.tasks[0]
    assert (task.prompt, task.max_tokens, task.deadline_s) == ("Once", 9, 5.0)
    assert (task.overrides.seed, task.overrides.commit, task.overrides.cfg_scale) == (1, "threshold", 1.0)


async def test_chat_is_one_user_message(http: httpx.AsyncClient, service: FakeService) -> None:
    await http.post("/api/prompt", json={"chat": "Hi"})
    await http.post("/api/prompt", json={"messages": [{"role": "user", "content": "Hi"}]})
    await http.post("/api/prompt", json={"template": "a {{mask:2}} b"})
    assert service.tasks[0] == service.tasks[1]
    assert service.tasks[2].template == "a {{mask:2}} b"


async def test_errors_before_and_after_the_first_line(http: httpx.AsyncClient, service: FakeService) -> None:
    lost = CoverageLost("no live peer serves part 2", (2,))
    service.script = (lost,)
    before = await http.post("/api/prompt", json={"chat": "Hi"})
    assert before.status_code == 503
    service.script = (PLAN, lost)
    after = await http.post("/api/prompt", json={"chat": "Hi"})
    assert after.status_code == 200
    for line in (before.text, after.text.splitlines()[-1]):
        error = EVENT.validate_json(line)
        assert isinstance(error, Error)
        assert (error.code, error.exit_code, error.parts) == ("coverage_lost", 4, (2,))


async def test_refused_at_submission(http: httpx.AsyncClient, service: FakeService) -> None:
    service.refuse = Overloaded("full")
    answer = await http.post("/api/prompt", json={"chat": "Hi"})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "2"


async def test_halted(http: httpx.AsyncClient, service: FakeService) -> None:
    service.script = (HaltedEvent(message="halted by the operator"),)
    answer = await http.post("/api/prompt", json={"chat": "Hi"})
    assert answer.status_code == 503
    assert answer.json()["code"] == "halted"


@pytest.mark.parametrize("script", [(PLAN, STEP, ZeroDivisionError("secret")), (PLAN, STEP)])
async def test_a_crash_is_an_event_and_not_a_secret(
    http: httpx.AsyncClient, service: FakeService, script: tuple[object, ...]
) -> None:
    service.script = script  # type: ignore[assignment]
    answer = await http.post("/api/prompt", json={"chat": "Hi"})
    last = EVENT.validate_json(answer.text.splitlines()[-1])
    assert isinstance(last, Error)
    assert last.code == "failed"
    assert "secret" not in answer.text


BAD: list[tuple[bytes, str, str | None]] = [
    (b'{"chat": "x", "colour": 1}', "unknown field colour", "colour"),
    (b'{"chat": "x", "max_token": 1}', "did you mean max_tokens", "max_token"),
    (b'{"chat": 5}', "string", "chat"),
    (b'{"chat": ""}', "at least 1", "chat"),
    (b'{"chat": "x", "max_tokens": "9"}', "integer", "max_tokens"),
    (b'{"chat": "x", "max_tokens": 9.5}', "integer", "max_tokens"),
    (b'{"chat": "x", "seed": true}', "integer", "seed"),
    (b'{"chat": "x", "temperature": NaN}', "finite", "temperature"),
    (b'{"chat": "x", "temperature": 1e999}', "finite", "temperature"),
    (b'{"chat": "x", "deadline_s": 0}', "greater than 0", "deadline_s"),
    (b'{"chat": "x", "deadline_s": 1e9}', "3600", "deadline_s"),
    (b'{"chat": "x", "steps": 0}', "greater than", "steps"),
    (b'{"chat": "x", "prompt": "y"}', "exactly one", None),
    (b'{"template": "x", "messages": [{"role": "user", "content": "y"}]}', "exactly one", None),
    (b"{}", "exactly one", None),
    (b'{"template": "x {{mask:2}}", "max_tokens": 4}', "gaps", None),
    (b'{"chat": "\\ud800"}', "JSON", None),
    (b'{"chat": "x"', "JSON", None),
    (b"", "JSON", None),
    (b"\xff\xfe", "JSON", None),
    (b"[]", "object", None),
    (b'"x"', "object", None),
    (b"[" * 100_000, "JSON", None),
    (b'{"chat": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_001, "JSON", None),
    (b'{"' + b"k" * 5000 + b'": 1, "chat": "x"}', "unknown field", "k" * 80),
]


@pytest.mark.parametrize(("body", "words", "field"), BAD, ids=[str(n) for n in range(len(BAD))])
async def test_bad_input(
    direct: httpx.AsyncClient, service: FakeService, body: bytes, words: str, field: str | None
) -> None:
    answer = await direct.post("/api/prompt", content=body)
    error = EVENT.validate_json(answer.text)
    assert isinstance(error, Error)
    assert (answer.status_code, error.exit_code, error.field) == (400, 2, field)
    assert words in error.message
    assert service.tasks == []


async def test_too_large_by_declaration(servers: LocalServers) -> None:
    """Refused before a byte of the body is there."""
    reader, writer = await raw(servers, b"POST /api/prompt HTTP/1.1\r\nHost: x\r\nContent-Length: 1048577\r\n\r\n")
    async with asyncio.timeout(PATIENCE_S):
        assert b" 413 " in await reader.readline()
    writer.close()


async def test_too_large_in_chunks(http: httpx.AsyncClient) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 65536

    answer = await http.post("/v1/completions", content=chunks())
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "too_large"


async def test_as_large_as_allowed(http: httpx.AsyncClient) -> None:
    body = json.dumps({"chat": ""}).replace('""', '"' + "x" * (app_module.BODY_LIMIT - 12) + '"')
    assert len(body) == app_module.BODY_LIMIT
    assert (await http.post("/api/prompt", content=body)).status_code == 200


async def test_half_a_request_harms_nobody(servers: LocalServers, http: httpx.AsyncClient) -> None:
    whole = request(b'{"chat": "x"}')
    for length in (3, 30, len(whole) - 5):
        _, writer = await raw(servers, whole[:length])
        writer.close()
    for garbage in (b"\x00\xff" * 50, b"GET / HTTP/9.9\r\n\r\n", b"\r\n" * 10):
        _, writer = await raw(servers, garbage)
        writer.close()
    assert (await http.post("/api/prompt", json={"chat": "x"})).status_code == 200


async def test_a_body_that_never_comes_is_given_up(servers: LocalServers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "BODY_TIMEOUT_S", 0.05)
    reader, writer = await raw(servers, request(b'{"chat": "x"}')[:-5])
    async with asyncio.timeout(PATIENCE_S):
        assert b" 400 " in await reader.readline()
    writer.close()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/prompt", {"chat": "x"}),
        ("/v1/completions", {"model": "gloss-tiny", "prompt": "x", "stream": True}),
        ("/v1/completions", {"model": "gloss-tiny", "prompt": "x", "stream": False}),
        ("/v1/chat/completions", {"model": "gloss-tiny", "messages": [{"role": "user", "content": "x"}]}),
    ],
)
@pytest.mark.parametrize("silent", [False, True])
async def test_leaving_cancels(
    servers: LocalServers, service: FakeService, path: str, body: dict[str, object], silent: bool
) -> None:
    """In the middle of a stream, and while nothing has been sent."""
    service.script = () if silent else GOOD[:3]
    service.hang = True
    reader, writer = await raw(servers, request(json.dumps(body).encode(), path))
    async with asyncio.timeout(PATIENCE_S):
        await service.submitted.wait()
        if not silent and body.get("stream", path == "/api/prompt"):
            await reader.readuntil(b"Hello")
        assert not service.running[0].cancelled.is_set()
        writer.close()
        await service.running[0].cancelled.wait()


async def test_an_ended_request_frees_its_work(http: httpx.AsyncClient, service: FakeService) -> None:
    await http.post("/api/prompt", json={"chat": "x"})
    assert service.running[0].cancelled.is_set()


async def test_health(http: httpx.AsyncClient, service: FakeService) -> None:
    assert (await http.get("/health")).status_code == 200
    service.uncovered = (1, 2)
    answer = await http.get("/health")
    assert answer.status_code == 503
    assert answer.json() == {"status": "uncovered", "uncovered": [1, 2]}


async def test_admin(http: httpx.AsyncClient, service: FakeService) -> None:
    assert (await http.get("/api/status")).json()["queue"]["limit"] == 64
    assert (await http.get("/api/peers")).json()[0]["local"] is True
    assert "glossd_steps_total" in (await http.get("/metrics")).text
    assert (await http.post("/api/stop")).status_code == 202
    assert service.stopped.is_set()


async def test_unknown_paths_and_methods(http: httpx.AsyncClient) -> None:
    assert (await http.get("/nope")).json()["code"] == "not_found"
    wrong = await http.get("/v1/completions")
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "POST"
    assert wrong.json()["error"]["code"] == "method_not_allowed"
    assert (await http.get("/health/")).status_code == 404
