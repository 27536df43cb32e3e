"""Messages of the pass protocol: JSON heads of strict schema, tensors as raw bytes behind them.

A frame is  u32 head length | u32 body length | head | body  (big-endian). The body is the tensors that the head lists,
little-endian, in order, without gaps. Those of an answer may be packed, see `swarm.wire.packed`.

On PASS_PROTOCOL a peer is asked to run parts and to push what comes out to the next peer of the route, and told when a
request has ended; nothing comes back on that stream, but a Pong for a Ping. On ANSWER_PROTOCOL the last hop answers the
coordinator, and a hop that fails refuses. Both streams are kept open.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from swarm.wire.records import Hash, PeerName

PASS_PROTOCOL = "/glossd/1/pass"  # noqa: S105 (no password)
ANSWER_PROTOCOL = "/glossd/1/answer"
MAX_HOPS = 64
MAX_TENSORS = 6
HEAD_LIMIT = 16 * 1024
BODY_LIMIT = 64 * 1024 * 1024

DType = Literal["int8", "uint16", "uint24", "int32", "float32", "float16", "bfloat16"]
"""uint24 is three bytes. Integers travel in the narrowest type that holds them."""

Activations = Literal["exact", "float16", "bfloat16", "int8"]
"""What hidden states are rounded to between hops; see `swarm.wire.activations`."""
PassKey = tuple[str, int, int]
"""Request, step and attempt: no two passes of a coordinator have the same."""

Size = Annotated[int, Field(ge=0, le=2**31 - 1)]
Attempt = Annotated[int, Field(ge=0, le=1000)]
Start = Annotated[int, Field(ge=0, le=10_000)]
Stop = Annotated[int, Field(ge=1, le=10_001)]
Computed = Annotated[list[Annotated[int, Field(ge=0, le=2**53)]], Field(max_length=MAX_HOPS)]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class TensorHead(_Message):
    """`packed` is the number of bytes that it takes in the body, for a tensor of an answer that is packed."""

    name: Annotated[str, Field(max_length=16)]
    dtype: DType
    shape: Annotated[list[Size], Field(max_length=4)]
    packed: Annotated[int, Field(ge=1, le=BODY_LIMIT)] | None = None


class Epoch(_Message):
    """Which keys and values a pass uses. A priming pass carries the whole canvas and stores them; a later pass of the
    same number carries the columns of the tensor `active` only."""

    number: Size
    primes: bool


class RouteHop(_Message):
    """`peer` runs parts start:stop."""

    peer: PeerName
    start: Start
    stop: Stop


class PassRequest(_Message):
    """Run parts start:stop of `model` over [rows, columns] positions, then push to the first hop of `route`.

    Tensors: `ids`, integers [rows, columns], when start is 0, else `hidden` [rows, columns, hidden size]; `active`,
    integers [columns], in a pass over some positions of a canvas; `positions`, integers [P], which the head will score.
    `activations` may ask for rounding: `hidden` is of another type then, and with int8 `scales`, `outliers` and
    `channels` come along. `packs` asks the head to pack its answer.
    `reply_to` is the coordinator. `session` is its secret for this request: who does not know it can neither read nor
    replace what a span keeps for the request. `computed_us` are the forwards of the hops before.
    """

    kind: Literal["pass"] = "pass"
    request: Annotated[str, Field(min_length=1, max_length=64)]
    step: Size
    attempt: Attempt
    model: Hash
    start: Start
    stop: Stop
    route: Annotated[list[RouteHop], Field(max_length=MAX_HOPS - 1)] = Field(default_factory=list)
    reply_to: PeerName
    session: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$", repr=False)]
    rows: Annotated[int, Field(ge=1, le=2)]
    columns: Annotated[int, Field(ge=1, le=2**31 - 1)]
    cfg_scale: Annotated[float, Field(ge=0, le=100)] = 0.0
    epoch: Epoch | None = None
    activations: Activations = "exact"
    packs: bool = False
    budget_ms: Annotated[int, Field(ge=1, le=600_000)]
    computed_us: Computed = Field(default_factory=list)
    tensors: Annotated[list[TensorHead], Field(max_length=MAX_TENSORS)] = Field(default_factory=list)

    @model_validator(mode="after")
    def _ordered(self) -> "PassRequest":
        spans = [(self.start, self.stop), *((hop.start, hop.stop) for hop in self.route)]
        if any(start >= stop for start, stop in spans):
            raise ValueError("start must be below stop")
        if any(hop.start != stop for hop, (_, stop) in zip(self.route, spans, strict=False)):
            raise ValueError("parts must follow one another")
        return self

    @property
    def key(self) -> PassKey:
        return self.request, self.step, self.attempt


class PassAnswer(_Message):
    """Tensors, from the head: `ids`, integers [P, K], `log_probs` float32 [P, K] and `log_tail` float32 [P]; from a
    chain that ends before it: `hidden` [rows, columns, hidden size]. `computed_us` are the forwards of all hops."""

    kind: Literal["answer"] = "answer"
    request: Annotated[str, Field(min_length=1, max_length=64)]
    step: Size
    attempt: Attempt
    computed_us: Computed
    tensors: Annotated[list[TensorHead], Field(max_length=MAX_TENSORS)] = Field(default_factory=list)

    @property
    def key(self) -> PassKey:
        return self.request, self.step, self.attempt


class Refusal(_Message):
    """A hop could not do its share. `peer` is at fault: the sender, or a neighbour of it in the chain.

    `code` is an error code of swarm.errors; `message` is for people.
    """

    kind: Literal["refusal"] = "refusal"
    request: Annotated[str, Field(min_length=1, max_length=64)]
    step: Size
    attempt: Attempt
    peer: PeerName
    code: Annotated[str, Field(pattern=r"^[a-z_]{1,32}$")]
    message: Annotated[str, Field(max_length=500)]

    @property
    def key(self) -> PassKey:
        return self.request, self.step, self.attempt


class Release(_Message):
    """The coordinator needs nothing more of `session`: passes that wait are dropped, keys and values freed."""

    kind: Literal["release"] = "release"
    session: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$", repr=False)]


class Ping(_Message):
    """Asks a peer that is late whether it is there at all."""

    kind: Literal["ping"] = "ping"


class Pong(_Message):
    kind: Literal["pong"] = "pong"
