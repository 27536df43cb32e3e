"""One real daemon: bad input while others are served, clients that leave, the openai client, metrics, logs."""

import json
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import httpx
import openai
import pytest

from glossd.events import Step
from tests.faults.bodies import LONG, SHORT, Body
from tests.swarmlab.daemons import Daemon, until

SECRET = "zebracrossing"

GARBAGE = {
    "noise": b"\x00\xff\x13" * 2000,
    "half a head": b"POST /api/prompt HTTP/1.1\r\nHost",
    "half a body": b'POST /api/prompt HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"chat',
    "no json": b"POST /api/prompt HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n{]}",
    "too large": b"POST /api/prompt HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999999\r\n\r\n",
    "endless head": b"GET / HTTP/1.1\r\nX: " + b"y" * 300_000,
}

REFUSED: dict[str, tuple[Body, str | None]] = {
    "prompt too long": ({"prompt": SECRET * 200}, "prompt"),
    "chat too long": ({"chat": SECRET * 200}, "messages"),
    "template too long": ({"template": SECRET * 200 + "{{mask:2}}"}, "template"),
    "answer too long": ({"chat": SECRET, "max_tokens": 4000}, "max_tokens"),
    "no gap": ({"template": SECRET}, "template"),
    "empty gap": ({"template": "a {{mask:0}}"}, "template"),
    "endless gap": ({"template": "a {{mask:99999}}"}, "template"),
    "broken gap": ({"template": "a {{mask:x}} {{mask:2}}"}, "template"),
    "role": ({"messages": [{"role": "wizard", "content": SECRET}]}, "messages.0.role"),
    "number": ({"chat": SECRET, "temperature": -1}, "temperature"),
    "unknown field": ({"chat": SECRET, "temprature": 1}, "temprature"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_is_refused_by_name(lone: Daemon, name: str) -> None:
    body, field = REFUSED[name]
    with lone.http() as http:
        answer = http.post("/api/prompt", json=body)
    assert answer.status_code == 400
    error = answer.json()
    assert (error["type"], error["field"], error["exit_code"]) == ("error", field, 2)
    assert SECRET not in error["message"]


def test_garbage_hurts_nobody_else(lone: Daemon) -> None:
    want = lone.ask(SHORT[1]).token_ids
    with ThreadPoolExecutor(len(GARBAGE)) as pool:
        ends = [pool.submit(_answer_to, lone, data, 1.0 if "half" in name else 20.0) for name, data in GARBAGE.items()]
        assert [lone.ask(SHORT[1]).token_ids for _ in range(5)] == [want] * 5
        codes = dict(zip(GARBAGE, (end.result() for end in ends), strict=True))
    assert codes["noise"] == codes["no json"] == codes["endless head"] == b"400"
    assert codes["too large"] == b"413"
    assert lone.ask(SHORT[1]).token_ids == want


def test_a_client_that_leaves_frees_its_work(lone: Daemon) -> None:
    with closing(lone.client.events(LONG)) as events:
        next(event for event in events if isinstance(event, Step) and event.step == 3)
        assert lone.status().queue.running == 1
    until(lambda: lone.status().queue.running == 0)
    steps = lone.metric("glossd_steps_total")
    assert lone.ask(SHORT[0]).timings.steps == lone.metric("glossd_steps_total") - steps
    assert lone.status().requests["cancelled"] >= 1


def test_the_openai_client_speaks_over_both_sockets(lone: Daemon) -> None:
    want = lone.ask({"chat": "What is 234 + 87?"}).text
    messages: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "What is 234 + 87?"}]
    http = lone.status().sockets.http
    assert http is not None
    for client in (
        openai.OpenAI(base_url="http://glossd/v1", api_key="none", http_client=lone.http()),
        openai.OpenAI(base_url=f"http://{http}/v1", api_key="none", max_retries=0),
    ):
        with client:
            (model,) = client.models.list()
            whole = client.chat.completions.create(model=model.id, messages=messages)
            assert whole.choices[0].message.content == want
            stream = client.chat.completions.create(model=model.id, messages=messages, stream=True)
            assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == want
            with pytest.raises(openai.NotFoundError):
                client.completions.create(model="other", prompt="x")


def test_the_tcp_socket_refuses_browsers(lone: Daemon) -> None:
    with httpx.Client(base_url=f"http://{lone.status().sockets.http}") as http:
        assert http.get("/health").json() == {"status": "ok", "uncovered": []}
        assert http.get("/health", headers={"Host": "evil.example"}).status_code == 403
        assert http.get("/health", headers={"Origin": "http://evil.example"}).status_code == 403


def test_metrics_count_what_was_done(lone: Daemon) -> None:
    names = ('requests_total{outcome="done"}', "steps_total", "passes_total", "pass_seconds_count", "hop_seconds_count")
    before = {name: lone.metric(f"glossd_{name}") for name in names}
    done = lone.ask(SHORT[4])
    grown = {name: lone.metric(f"glossd_{name}") - value for name, value in before.items()}
    assert set(list(grown.values())[1:]) == {done.timings.passes}
    assert grown[names[0]] == 1
    assert lone.metric("glossd_tokens_total") >= len(done.token_ids)
    assert [lone.metric(f"glossd_{name}") for name in ("peers", "uncovered_parts", "replays_total")] == [1, 0, 0]


def test_logs_are_json_without_prompts_or_answers(lone: Daemon) -> None:
    lone.ask({"chat": SECRET})
    with lone.http() as http:
        http.post("/v1/chat/completions", json={"model": "gloss-tiny", "messages": SECRET})
    before, _, after = lone.log.partition("ready\n")
    lines = [json.loads(line) for line in (before[: before.index("glossd 0")] + after).splitlines()]
    assert {"hosting", "request ended"} <= {line["event"] for line in lines}
    # uvicorn warns of requests that are no HTTP, such as the garbage above.
    assert {line["logger"].partition(".")[0] for line in lines} <= {"glossd", "uvicorn"}
    assert not re.search(f"{SECRET}|fox|sudoku", lone.log)


def _answer_to(daemon: Daemon, data: bytes, patience_s: float) -> bytes:
    """The status that raw bytes get, empty where the daemon waits for the rest of a request."""
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(patience_s)
        raw.connect(str(daemon.socket))
        with suppress(BrokenPipeError):  # refused in the middle: the answer is there already
            raw.sendall(data)
        try:
            return raw.recv(4096).partition(b" ")[2][:3]
        except TimeoutError:
            return b""
