"""Messages of the pass protocol: JSON heads of strict schema, tensors as raw bytes behind them.

A frame is  u32 head length | u32 body length | head | body  (big-endian). The body is the tensors that the head lists,
little-endian, in order, without gaps.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from swarm.wire.records import Hash

PASS_PROTOCOL = "/glossd/1/pass"  # noqa: S105 (no password)
HEAD_LIMIT = 16 * 1024
BODY_LIMIT = 64 * 1024 * 1024

DType = Literal["int32", "float32", "float16", "bfloat16"]
Size = Annotated[int, Field(ge=0, le=2**31 - 1)]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class TensorHead(_Message):
    name: Annotated[str, Field(max_length=16)]
    dtype: DType
    shape: Annotated[list[Size], Field(max_length=4)]


class Epoch(_Message):
    """Which keys and values a pass uses. A priming pass carries the whole canvas and stores them; a later pass of the
    same number carries the columns of the tensor `active` only. The session is (calling peer, request)."""

    number: Size
    primes: bool


class PassRequest(_Message):
    """Run parts start:stop of `model` over a canvas of [rows, length].

    Tensors: `ids` int32 [rows, length] when start is 0, else `hidden` [rows, length, hidden size]; and, when the span
    ends in the head, `positions` int32 [P]. `key` is (request, step, attempt): late answers are dropped by it.
    """

    kind: Literal["pass"] = "pass"
    request: Annotated[str, Field(min_length=1, max_length=64)]
    step: Size
    attempt: Annotated[int, Field(ge=0, le=1000)]
    model: Hash
    start: Annotated[int, Field(ge=0, le=10_000)]
    stop: Annotated[int, Field(ge=1, le=10_001)]
    cfg_scale: Annotated[float, Field(ge=0, le=100)] = 0.0
    epoch: Epoch | None = None
    budget_ms: Annotated[int, Field(ge=1, le=600_000)]
    tensors: Annotated[list[TensorHead], Field(max_length=4)] = Field(default_factory=list)

    @model_validator(mode="after")
    def _ordered(self) -> "PassRequest":
        if self.start >= self.stop:
            raise ValueError("start must be below stop")
        return self


class PassAnswer(_Message):
    """Tensors: `hidden` [rows, length, hidden size], or, from the head, `ids` int32 [P, K], `log_probs` float32 [P, K]
    and `log_tail` float32 [P]. `compute_us` is the time of the forward alone."""

    kind: Literal["answer"] = "answer"
    request: Annotated[str, Field(min_length=1, max_length=64)]
    step: Size
    attempt: Annotated[int, Field(ge=0, le=1000)]
    compute_us: Annotated[int, Field(ge=0, le=2**53)]
    tensors: Annotated[list[TensorHead], Field(max_length=4)] = Field(default_factory=list)


class Refusal(_Message):
    """`code` is an error code of swarm.errors; `message` is for people."""

    kind: Literal["refusal"] = "refusal"
    request: Annotated[str, Field(max_length=64)]
    code: Annotated[str, Field(pattern=r"^[a-z_]{1,32}$")]
    message: Annotated[str, Field(max_length=500)]
