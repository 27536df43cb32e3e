"""Bodies of the API: the one place where a client's JSON becomes a Task, and what the admin routes answer.

Strict: an unknown field, a wrong type or a value beyond a limit is a BadRequest that names the field. Nothing behind
this module checks again, except that the model's own limits are known to the daemon alone.
"""

import difflib
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from glossd.tasks import MAX_NEW_TOKENS, Message, Overrides, Task
from swarm.decode.settings import Cache, Commit, DecodeSettings, Order
from swarm.errors import BadRequest
from swarm.wire.records import PeerName

MAX_MESSAGES = 1000
MAX_DEADLINE_S = 3600.0

_Count = Annotated[int, Field(ge=1, le=1_000_000)]
_NewTokens = Annotated[int, Field(ge=1, le=MAX_NEW_TOKENS)]


def _joined_parts(content: object) -> object:
    """OpenAI's list of text parts as one string."""
    if not isinstance(content, list):
        return content
    texts: list[str] = []
    for part in content:
        if not (isinstance(part, dict) and part.keys() == {"type", "text"} and part["type"] == "text"):
            raise ValueError('only parts of the form {"type": "text", "text": "..."} are understood')
        if not isinstance(part["text"], str):
            raise ValueError("the text of a part must be a string")
        texts.append(part["text"])
    return "".join(texts)


def _like(fine: object) -> tuple[type, ...]:
    """Python takes True for 1 and 1.0 for 1; JSON's reader wants only the second."""
    return (int, float) if type(fine) is int else (type(fine),)


def _only(*allowed: object) -> Callable[[object], object]:
    """Accept a field of somebody else's API only where it asks for what we do anyway. None is always fine."""

    def check(value: object) -> object:
        if value is None or any(
            value == fine and isinstance(value, bool) is isinstance(fine, bool) for fine in allowed
        ):
            return value
        want = f"set it to {json.dumps(allowed[0])}" if allowed else "set it to null"
        raise ValueError(f"glossd cannot do that; leave it out or {want}")

    return check


_Null = Annotated[Any, AfterValidator(_only())]
_NullOrEmpty = Annotated[Any, AfterValidator(_only([]))]
_One = Annotated[Any, AfterValidator(_only(1))]
_Zero = Annotated[Any, AfterValidator(_only(0))]
_False = Annotated[Any, AfterValidator(_only(False))]


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class _Decoding(_Body):
    """How to decode, by the names of swarm.decode.settings, which also holds the limits."""

    block_length: _Count | None = None
    steps: _Count | None = None
    commit: Commit | None = None
    order: Order | None = None
    threshold: float | None = None
    cfg_scale: float | None = None
    stop_at_eos: bool | None = None
    suppress_eos: bool | None = None
    suppress_eos_confidence: bool | None = None
    factor: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    alg_temp: float | None = None
    cache: Cache | None = None
    refresh_steps: _Count | None = None
    patches: int | None = None
    staleness: int | None = None

    def overrides(self, seed: int | None, temperature: float | None) -> Overrides:
        """Raises BadRequest."""
        named = {name: getattr(self, name) for name in _Decoding.model_fields}
        overrides = Overrides(seed=seed, temperature=temperature, **named)
        DecodeSettings(**{name: value for name, value in asdict(overrides).items() if value is not None})
        return overrides


class ChatMessage(_Body):
    """The fields without meaning here come back from clients that repeat our own answers."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_joined_parts)]
    name: str | None = None
    refusal: _Null = None
    audio: _Null = None
    function_call: _Null = None
    tool_calls: _NullOrEmpty = None
    annotations: _NullOrEmpty = None

    def message(self) -> Message:
        return Message("system" if self.role == "developer" else self.role, self.content)


_Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]


class PromptBody(_Decoding):
    """`POST /api/prompt`. `chat` is short for one user message."""

    messages: _Messages | None = None
    chat: Annotated[str, Field(min_length=1)] | None = None
    prompt: str | None = None
    template: Annotated[str, Field(min_length=1)] | None = None
    max_tokens: _NewTokens | None = None
    deadline_s: Annotated[float, Field(gt=0, le=MAX_DEADLINE_S)] = 300.0
    seed: int | None = None
    temperature: float | None = None

    @model_validator(mode="after")
    def _one_input(self) -> Self:
        inputs = ("messages", "chat", "prompt", "template")
        given = [name for name in inputs if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of {', '.join(inputs)}; given: {', '.join(given) or 'none'}")
        if self.template is not None and self.max_tokens is not None:
            raise ValueError("max_tokens does not go with template, whose gaps say their own length")
        return self

    def task(self) -> Task:
        """Raises BadRequest."""
        messages = tuple(message.message() for message in self.messages or ())
        return Task(
            messages=(Message("user", self.chat),) if self.chat is not None else messages,
            prompt=self.prompt,
            template=self.template,
            max_tokens=self.max_tokens,
            overrides=self.overrides(self.seed, self.temperature),
            deadline_s=self.deadline_s,
        )


class StreamOptions(_Body):
    include_usage: bool | None = None
    include_obfuscation: _False = None


class _OpenAIBody(_Body):
    """What both OpenAI routes share. Fields that we cannot honour are accepted at their harmless value only."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: _NewTokens | None = None
    seed: int | None = None
    temperature: float | None = None
    glossd: _Decoding | None = None

    n: _One = None
    top_p: float | None = None
    presence_penalty: _Zero = None
    frequency_penalty: _Zero = None
    stop: _NullOrEmpty = None
    logit_bias: Annotated[Any, AfterValidator(_only({}))] = None
    user: str | None = None

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def _overrides(self) -> Overrides:
        decoding = self.glossd or _Decoding()
        if self.top_p is not None:
            decoding = decoding.model_copy(update={"top_p": self.top_p})
        return decoding.overrides(self.seed, self.temperature)


class ChatBody(_OpenAIBody):
    """`POST /v1/chat/completions`."""

    messages: _Messages
    max_completion_tokens: _NewTokens | None = None

    logprobs: _False = None
    top_logprobs: _Zero = None
    tools: _NullOrEmpty = None
    tool_choice: Annotated[Any, AfterValidator(_only("none", "auto"))] = None
    parallel_tool_calls: bool | None = None
    functions: _NullOrEmpty = None
    function_call: Annotated[Any, AfterValidator(_only("none", "auto"))] = None
    response_format: Annotated[Any, AfterValidator(_only({"type": "text"}))] = None
    modalities: Annotated[Any, AfterValidator(_only(["text"]))] = None
    audio: _Null = None
    prediction: _Null = None
    store: _False = None
    metadata: dict[str, str] | None = None
    service_tier: Annotated[Any, AfterValidator(_only("auto", "default"))] = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    def task(self) -> Task:
        """Raises BadRequest."""
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise BadRequest("max_tokens and max_completion_tokens differ; give one of them", "max_completion_tokens")
        return Task(
            messages=tuple(message.message() for message in self.messages),
            max_tokens=limits.pop() if limits else None,
            overrides=self._overrides(),
        )


def _single(prompt: object) -> object:
    """OpenAI allows a list of prompts; a list of one is a prompt."""
    return prompt[0] if isinstance(prompt, list) and len(prompt) == 1 else prompt


class CompletionBody(_OpenAIBody):
    """`POST /v1/completions`."""

    prompt: Annotated[str, BeforeValidator(_single)]

    best_of: _One = None
    echo: _False = None
    logprobs: _Null = None
    suffix: _Null = None

    def task(self) -> Task:
        """Raises BadRequest."""
        return Task(prompt=self.prompt, max_tokens=self.max_tokens, overrides=self._overrides())


_AnyBody = TypeVar("_AnyBody", bound=_Body)


def parse(schema: type[_AnyBody], data: bytes) -> _AnyBody:
    """Raises BadRequest, which names the first offending field."""
    try:
        return schema.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        raise BadRequest(f"the body is not JSON: {first['msg'].removeprefix('Invalid JSON: ')}")
    field = ".".join(str(part) for part in first["loc"])[:80]
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(field, schema.model_fields, n=1)
        raise BadRequest(f"unknown field {field}" + (f"; did you mean {near[0]}?" if near else ""), field)
    message = first["msg"].removeprefix("Value error, ")
    raise BadRequest(f"{field}: {message}" if field else message, field or None)


class BanBody(_Body):
    """`POST /api/bans` and `POST /api/unban`."""

    peer: PeerName
    reason: Annotated[str, Field(max_length=200)] = ""


class _Report(BaseModel):
    model_config = ConfigDict(frozen=True)


class Sockets(_Report):
    unix: str
    http: str | None = None


class Queue(_Report):
    running: int
    waiting: int
    limit: int


class Caches(_Report):
    """Keys and values that this node holds for requests in progress."""

    sessions: int
    size_bytes: int
    limit_bytes: int


class Status(_Report):
    """`span` is what this node hosts, "" for nothing; `state` is joining, online, draining or paused; `uncovered` are
    the parts that no live peer serves.

    `join` is the line that lets another machine join; `requests` counts ended requests by outcome.
    """

    peer: str
    version: str
    pid: int
    uptime_s: float
    model: str
    model_hash: str
    tokenizer_hash: str
    dtype: str
    n_parts: int
    span: str
    state: str
    uncovered: tuple[int, ...]
    covered: bool
    peers: int
    addresses: tuple[str, ...]
    join: str
    sockets: Sockets
    queue: Queue
    caches: Caches
    requests: dict[str, int] = Field(default_factory=dict)


class BanInfo(_Report):
    """`since` is in seconds of Unix time."""

    peer: str
    since: float
    reason: str


class PeerInfo(_Report):
    """One record of the directory. `throughput` is layer passes of one position per second, as its owner measured."""

    peer: str
    span: str
    dtype: str
    throughput: float
    state: str
    version: str
    local: bool
    expires_in_s: float
    last_error: str | None = None
