"""OpenAI's own client works unchanged, over TCP and over the unix socket."""

import json
from collections.abc import AsyncIterator

import httpx
import httpx2
import openai
import pytest

from glossd.api.serve import LocalServers
from glossd.events import Error, Text
from swarm.errors import CoverageLost, Overloaded
from tests.fakes import DONE, PLAN, STEP, FakeService

HELLO: list[dict[str, str]] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


@pytest.fixture(params=["tcp", "unix"])
async def client(request: pytest.FixtureRequest, servers: LocalServers) -> AsyncIterator[openai.AsyncOpenAI]:
    if request.param == "tcp":
        made = openai.AsyncOpenAI(base_url=f"http://{servers.http}/v1", api_key="none", max_retries=0)
    else:
        transport = httpx2.AsyncHTTPTransport(uds=str(servers.socket))
        made = openai.AsyncOpenAI(
            base_url="http://glossd/v1",
            api_key="none",
            max_retries=0,
            http_client=httpx2.AsyncClient(transport=transport),
        )
    async with made:
        yield made


async def test_chat(client: openai.AsyncOpenAI, service: FakeService) -> None:
    answer = await client.chat.completions.create(
        model="gloss-tiny", messages=HELLO, max_tokens=7, seed=3, temperature=0.5, extra_body={"glossd": {"steps": 4}}
    )
    assert answer.choices[0].message.content == "Hello world"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 5
    task = service.tasks[0]
    assert [(m.role, m.content) for m in task.messages] == [("system", "Be brief."), ("user", "Hi")]
    assert (task.max_tokens, task.overrides.seed, task.overrides.temperature, task.overrides.steps) == (7, 3, 0.5, 4)


async def test_an_answer_can_be_sent_back(client: openai.AsyncOpenAI, service: FakeService) -> None:
    answer = await client.chat.completions.create(model="gloss-tiny", messages=HELLO)
    again = [*HELLO, answer.choices[0].message, {"role": "user", "content": [{"type": "text", "text": "More"}]}]
    await client.chat.completions.create(model="gloss-tiny", messages=again)
    assert [m.content for m in service.tasks[1].messages] == ["Be brief.", "Hi", "Hello world", "More"]


async def test_chat_stream(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="gloss-tiny", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == "Hello world"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 2


async def test_completion(client: openai.AsyncOpenAI, service: FakeService) -> None:
    answer = await client.completions.create(model="org/other", prompt=["Once"])
    assert answer.choices[0].text == "Hello world"
    assert service.tasks[0].prompt == "Once"
    stream = await client.completions.create(model="org/other", prompt="Once", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello world"


async def test_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id for model in (await client.models.list()).data] == ["gloss-tiny", "org/other"]
    assert (await client.models.retrieve("gloss-tiny")).owned_by == "glossd"
    with pytest.raises(openai.NotFoundError, match="gloss-huge"):
        await client.models.retrieve("gloss-huge")
    with pytest.raises(openai.NotFoundError, match="gloss-huge"):
        await client.chat.completions.create(model="gloss-huge", messages=HELLO)


async def test_errors_keep_their_status(client: openai.AsyncOpenAI, service: FakeService) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="gloss-tiny", messages=HELLO, n=2)
    assert caught.value.param == "n"
    service.refuse = Overloaded("64 requests wait; try again")
    with pytest.raises(openai.InternalServerError, match="64 requests wait") as full:
        await client.completions.create(model="gloss-tiny", prompt="x")
    assert full.value.status_code == 503
    assert full.value.response.headers["retry-after"] == "2"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_before_any_output_is_a_status(
    client: openai.AsyncOpenAI, service: FakeService, stream: bool
) -> None:
    service.script = (PLAN, STEP, CoverageLost("no live peer serves part 2", (2,)))
    with pytest.raises(openai.InternalServerError, match="part 2") as caught:
        await client.chat.completions.create(model="gloss-tiny", messages=HELLO, stream=stream)
    assert caught.value.status_code == 503
    assert caught.value.code == "coverage_lost"


async def test_an_error_after_output_ends_the_stream(client: openai.AsyncOpenAI, service: FakeService) -> None:
    service.script = (PLAN, Text(text="Hel"), Error(code="deadline", message="late", exit_code=1, http_status=504))
    stream = await client.chat.completions.create(model="gloss-tiny", messages=HELLO, stream=True)
    with pytest.raises(openai.APIError, match="late"):
        async for _ in stream:
            pass


async def test_stream_framing(http: httpx.AsyncClient) -> None:
    body = {"model": "gloss-tiny", "prompt": "x", "stream": True}
    answer = await http.post("/v1/completions", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = answer.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    assert all(line.startswith("data: {") for line in lines[:-2])
    last = json.loads(lines[-3].removeprefix("data: "))
    assert last["choices"][0]["finish_reason"] == DONE.reason
    assert "usage" not in last


async def test_usual_fields_at_their_defaults_are_fine(http: httpx.AsyncClient) -> None:
    body = {
        "model": "gloss-tiny",
        "messages": HELLO,
        "n": 1,
        "top_p": 1.0,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": None,
        "user": "me",
        "metadata": {"a": "b"},
        "stop": None,
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "store": False,
        "logprobs": False,
        "stream": False,
        "stream_options": None,
        "max_completion_tokens": 5,
        "max_tokens": 5,
    }
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"stop": ["x"]}, "stop"),
        ({"n": True}, "n"),
        ({"top_p": 0}, "top_p"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"store": True}, "store"),
        ({"temprature": 1}, "temprature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": 11}, "temperature"),
        ({"seed": -1}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 5000}, "max_tokens"),
        ({"max_tokens": 4, "max_completion_tokens": 5}, "max_completion_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
        ({"glossd": {"threshold": 2.0}}, "threshold"),
        ({"glossd": {"commit": "all"}}, "glossd.commit"),
        ({"glossd": {"blocks": 2}}, "glossd.blocks"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ],
)
async def test_what_we_cannot_do_is_named(direct: httpx.AsyncClient, extra: dict[str, object], field: str) -> None:
    body = {"model": "gloss-tiny", "messages": HELLO, **extra}
    answer = await direct.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field
    assert answer.json()["error"]["type"] == "invalid_request_error"
