"""The directory record of a node, as it is signed and stored: JSON, at most 1 KB, strictly decoded."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from swarm.errors import WireError
from swarm.ids import ModelId, PeerId, Span

RECORD_LIMIT = 1024
PROTOCOL_MAJOR = 1
PROTOCOL_MINOR = 0

Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
PeerName = Annotated[str, Field(min_length=10, max_length=80, pattern=r"^[1-9A-HJ-NP-Za-km-z]+$")]
"""A peer id as it is written: base58."""

State = Literal["joining", "online", "draining", "paused", "offline"]


class NodeRecord(BaseModel):
    """`model` and `tokenizer` are sha256 hashes; `start:stop` is the span served; `dtype` is that of hidden states
    and activations, `quant` what became of the layers' weights; `throughput` is layer passes of one
    position per second as the owner measured it, 0 before; `issued_ms` is the owner's wall clock and grows with each
    renewal; `started_ms` is that of the process. `next_start:next_stop` is where a node that is about to move will be.

    A node that is `joining` loads its span, `draining` ends what it has begun, `paused` keeps its machine to itself for
    a while, and `offline` has left. Passes go to those that are `online`.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    peer: PeerName
    model: Hash
    tokenizer: Hash
    start: Annotated[int, Field(ge=0, le=10_000)]
    stop: Annotated[int, Field(ge=1, le=10_001)]
    dtype: Literal["float32", "bfloat16", "float16"]
    quant: Literal["none", "int8", "nf4"] = "none"
    throughput: Annotated[float, Field(ge=0, le=1e12)]
    state: State = "online"
    next_start: Annotated[int, Field(ge=0, le=10_000)] | None = None
    next_stop: Annotated[int, Field(ge=1, le=10_001)] | None = None
    started_ms: Annotated[int, Field(ge=0, le=2**53)] = 0
    protocol_major: Annotated[int, Field(ge=0, le=1000)] = PROTOCOL_MAJOR
    protocol_minor: Annotated[int, Field(ge=0, le=1000)] = PROTOCOL_MINOR
    version: Annotated[str, Field(max_length=32)] = ""
    issued_ms: Annotated[int, Field(ge=0, le=2**53)]

    @model_validator(mode="after")
    def _ordered(self) -> "NodeRecord":
        if self.start >= self.stop:
            raise ValueError("start must be below stop")
        if (self.next_start is None) is not (self.next_stop is None):
            raise ValueError("next_start and next_stop go together")
        if self.next_start is not None and self.next_stop is not None and self.next_start >= self.next_stop:
            raise ValueError("next_start must be below next_stop")
        return self

    @property
    def peer_id(self) -> PeerId:
        return PeerId(self.peer)

    @property
    def model_id(self) -> ModelId:
        return ModelId(self.model)

    @property
    def precision(self) -> str:
        return precision(self.dtype, self.quant)

    @property
    def span(self) -> Span:
        return Span(self.start, self.stop)

    @property
    def next_span(self) -> Span | None:
        return None if self.next_start is None or self.next_stop is None else Span(self.next_start, self.next_stop)


def precision(dtype: str, quant: str) -> str:
    """For people: float32, or float32/nf4 where the layers' weights are quantised."""
    return dtype if quant == "none" else f"{dtype}/{quant}"


def encode_record(record: NodeRecord) -> bytes:
    # Defaults are left out: with a key and a signature around it, a record must fit into RECORD_LIMIT.
    return record.model_dump_json(exclude_defaults=True).encode()


def decode_record(data: bytes) -> NodeRecord:
    """Raises WireError."""
    if len(data) > RECORD_LIMIT:
        raise WireError(f"a record of {len(data)} bytes exceeds {RECORD_LIMIT}")
    try:
        return NodeRecord.model_validate_json(data)
    except ValidationError as error:
        raise WireError(f"malformed record: {error.error_count()} errors, first {error.errors()[0]['msg']}") from None
