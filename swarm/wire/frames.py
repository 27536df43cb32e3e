"""Frames of the pass protocol: bytes to messages with their tensors, and back. See `messages` for the layout.

Every limit is checked on the eight bytes of the prefix, before anything is read or allocated, and the tensors that a
head lists are checked against the body's length before the body is read. Only WireError leaves the decoders.
"""

import struct
from collections.abc import Sequence
from typing import Annotated, Protocol

from pydantic import Field, TypeAdapter, ValidationError

from swarm.errors import WireError
from swarm.wire.messages import (
    BODY_LIMIT,
    HEAD_LIMIT,
    MAX_TENSORS,
    PassAnswer,
    PassRequest,
    Ping,
    Pong,
    Refusal,
    Release,
    TensorHead,
)
from swarm.wire.packed import packed, unpacked
from swarm.wire.tensors import Tensor, byte_view, size_bytes

Message = PassRequest | PassAnswer | Refusal | Release | Ping | Pong
Tensors = dict[str, Tensor]

_MESSAGE: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="kind")])
_PREFIX = struct.Struct(">II")


class ByteStream(Protocol):
    """What frames need of `swarm.net.transport.Stream`."""

    async def read_exactly(self, size: int) -> bytes: ...

    async def write(self, *chunks: bytes | memoryview) -> None: ...


def encode(message: Message, tensors: Sequence[Tensor] = (), *, packs: bool = False) -> list[bytes | memoryview]:
    """The frame as chunks to write in order. The heads of `tensors` replace those that `message` lists.

    With `packs` the tensors of an answer are packed where that makes them smaller.
    """
    parts: list[bytes | memoryview] = [tensor.data for tensor in tensors]
    if isinstance(message, PassRequest | PassAnswer):
        heads = [tensor.head() for tensor in tensors]
        if packs and isinstance(message, PassAnswer):
            for place, tensor in enumerate(tensors):
                if (smaller := packed(tensor)) is not None:
                    parts[place] = smaller
                    heads[place] = heads[place].model_copy(update={"packed": len(smaller)})
        message = message.model_copy(update={"tensors": heads})
    elif tensors:
        raise WireError(f"a {message.kind} carries no tensors")
    head = message.model_dump_json(exclude_none=True).encode()
    body_size = sum(byte_view(part).nbytes for part in parts)
    # What the peer would refuse must not leave this node. The message's own fields were checked when it was made.
    _check_lengths(len(head), body_size)
    _check_heads(message, body_size)
    return [_PREFIX.pack(len(head), body_size) + head, *parts]


def decode(head: bytes, body: bytes | memoryview) -> tuple[Message, Tensors]:
    """The message of `head` with its tensors, which are views into `body`. Raises WireError."""
    view = byte_view(body)
    _check_lengths(len(head), view.nbytes)
    message = _decode_head(head, view.nbytes)
    return message, _cut(message, view)


async def read_frame(stream: ByteStream) -> tuple[Message, Tensors]:
    """The next frame. Raises WireError, after which the stream is of no more use, or what the stream raises."""
    head_size, body_size = _PREFIX.unpack(await stream.read_exactly(_PREFIX.size))
    _check_lengths(head_size, body_size)
    message = _decode_head(await stream.read_exactly(head_size), body_size)
    body = await stream.read_exactly(body_size) if body_size else b""
    return message, _cut(message, memoryview(body))


async def write_frame(stream: ByteStream, message: Message, tensors: Sequence[Tensor] = ()) -> None:
    """Raises WireError before a byte is sent, or what the stream raises."""
    await stream.write(*encode(message, tensors))


def _check_lengths(head_size: int, body_size: int) -> None:
    if not 0 < head_size <= HEAD_LIMIT:
        raise WireError(f"a frame's head of {head_size} bytes is outside 1..{HEAD_LIMIT}")
    if body_size > BODY_LIMIT:
        raise WireError(f"a frame's body of {body_size} bytes exceeds {BODY_LIMIT}; send fewer positions at once")


def _decode_head(head: bytes, body_size: int) -> Message:
    try:
        message = _MESSAGE.validate_json(head)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise WireError(f"malformed message: {error.error_count()} errors, first {first['msg']} at {place}") from None
    _check_heads(message, body_size)
    return message


def _check_heads(message: Message, body_size: int) -> None:
    heads = _heads(message)
    if len(heads) > MAX_TENSORS:
        raise WireError(f"{len(heads)} tensors in one message; at most {MAX_TENSORS} travel together")
    if len({head.name for head in heads}) != len(heads):
        raise WireError("two tensors of a message have the same name")
    if not isinstance(message, PassAnswer) and any(head.packed for head in heads):
        raise WireError("only the tensors of an answer may be packed")
    sizes = [size_bytes(head.dtype, head.shape) for head in heads]
    listed = sum(head.packed or size for head, size in zip(heads, sizes, strict=True))
    if listed != body_size:
        raise WireError(f"the tensors of a message take {listed} bytes but its body has {body_size}")


def _cut(message: Message, body: memoryview) -> Tensors:
    tensors, start = {}, 0
    for head in _heads(message):
        make, size = (unpacked, head.packed) if head.packed else (Tensor.raw, size_bytes(head.dtype, head.shape))
        stop = start + size
        tensors[head.name] = make(head.name, head.dtype, tuple(head.shape), body[start:stop])
        start = stop
    return tensors


def _heads(message: Message) -> list[TensorHead]:
    return message.tensors if isinstance(message, PassRequest | PassAnswer) else []
