"""What a request tells its client: one plan, any number of steps and texts, then exactly one of done, error, halted.

These models are the native API's NDJSON lines as they stand; the OpenAI routes and the command line read the same.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True)


class Cell(_Event):
    """One position of the canvas. `text` is what the token adds to the text; a masked cell has none."""

    state: Literal["given", "committed", "guessed", "masked"]
    text: str = ""


class Hop(_Event):
    """A span of a chain and the peer that runs it. `local` marks this node."""

    peer: str
    span: str
    local: bool = False


class Committed(_Event):
    position: int
    text: str
    confidence: float


class Plan(_Event):
    """`canvas` is the state before the first step, without a chat prompt's own tokens."""

    type: Literal["plan"] = "plan"
    id: str
    model: str
    chain: tuple[Hop, ...]
    prompt_tokens: int
    masks: int
    blocks: int
    settings: dict[str, str | int | float | bool | None]
    canvas: tuple[Cell, ...]


class Step(_Event):
    """`passes` counts forward passes so far, replays included; `tokens_per_s` is the mean so far."""

    type: Literal["step"] = "step"
    step: int
    block: int
    committed: tuple[Committed, ...]
    masks_left: int
    passes: int
    tokens_per_s: float
    chain: tuple[Hop, ...]
    canvas: tuple[Cell, ...]


class Text(_Event):
    """The next piece of the answer. Pieces are final: their concatenation is the answer's text."""

    type: Literal["text"] = "text"
    text: str


class Usage(_Event):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Timings(_Event):
    queued_s: float
    decode_s: float
    steps: int
    passes: int
    replays: int
    hedges: int = 0
    tokens_per_s: float


class Pipeline(_Event):
    """What a displaced patch pipeline did; see `Telemetry` (swarm.decode.patches) and `Travel` (swarm.chain.pipeline).

    `agreement` and `drift` are means over the refreshes, None without one.
    """

    loops: int
    synchronous: int
    displaced: int
    lost: int
    staleness: int
    agreement: float | None
    drift: float | None
    travel_s: float
    masked_s: float


class Done(_Event):
    """`gaps` are the texts that filled a template's gaps, in order; empty for prompts."""

    type: Literal["done"] = "done"
    id: str
    text: str
    reason: Literal["stop", "length"]
    gaps: tuple[str, ...] = ()
    token_ids: tuple[int, ...]
    usage: Usage
    timings: Timings
    peers: tuple[str, ...]
    pipeline: Pipeline | None = None


class Error(_Event):
    """`code` and `exit_code` as in swarm.errors; `parts` names uncovered parts for coverage_lost."""

    type: Literal["error"] = "error"
    code: str
    message: str
    exit_code: int
    http_status: int
    field: str | None = None
    parts: tuple[int, ...] = ()


class HaltedEvent(_Event):
    type: Literal["halted"] = "halted"
    message: str


Terminal = Done | Error | HaltedEvent
RequestEvent = Plan | Step | Text | Terminal
EVENT: TypeAdapter[RequestEvent] = TypeAdapter(Annotated[RequestEvent, Field(discriminator="type")])
