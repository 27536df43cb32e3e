"""Packed tensors come back bit by bit, and what does not unpack to just the bytes wanted is refused."""

import zlib

import numpy as np
import pytest
from hypothesis import given

from swarm.errors import WireError
from swarm.wire.frames import decode, encode
from swarm.wire.messages import DType
from swarm.wire.packed import LEAST_BYTES, LIMIT_BYTES, packed, unpacked
from swarm.wire.tensors import Tensor

from .mutate import hundred_damaged, hundred_seeds, seeds
from .test_frames import ANSWER, IDS, REQUEST, split


def rows(count: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    """Like those of a head over 512 tokens."""
    rng = np.random.default_rng(3)
    scores = rng.standard_normal((count, 512)) * 4
    log_probs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    ids = np.argsort(-log_probs, axis=1)[:, :256]
    best = np.take_along_axis(log_probs, ids, axis=1).astype(np.float32)
    tail = np.full(count, -np.inf, np.float32)
    return Tensor.integers("ids", ids.astype(np.int32)), Tensor.of("log_probs", best), Tensor.of("log_tail", tail)


def size(tensors: tuple[Tensor, ...], *, packs: bool) -> int:
    return len(b"".join(encode(ANSWER, tensors, packs=packs)))


def test_score_rows_shrink_and_come_back_bit_by_bit() -> None:
    tensors = rows(48)
    frame = b"".join(encode(ANSWER, tensors, packs=True))
    assert len(frame) < 0.7 * size(tensors, packs=False)
    message, found = decode(*split(frame))
    assert [head.packed is not None for head in message.tensors] == [True, True, False]  # type: ignore[union-attr]
    for tensor in tensors:
        back = found[tensor.name]
        assert (back.dtype, back.shape, bytes(back.data)) == (tensor.dtype, tensor.shape, bytes(tensor.data))


@pytest.mark.parametrize("dtype", ["int8", "uint16", "uint24", "int32", "float32", "float16", "bfloat16"])
def test_every_type_comes_back(dtype: DType) -> None:
    width = {"int8": 1, "uint24": 3, "int32": 4, "float32": 4}.get(dtype, 2)
    data = bytes(np.random.default_rng(1).integers(0, 9, 5000 * width, dtype=np.uint8))
    tensor = Tensor.raw("x", dtype, (50, 100), data)
    smaller = packed(tensor)
    assert smaller is not None
    assert bytes(unpacked("x", dtype, (50, 100), memoryview(smaller)).data) == data


def test_what_would_not_shrink_is_sent_as_it_is() -> None:
    noise = np.random.default_rng(1).bytes(4 * LEAST_BYTES)
    assert packed(Tensor.raw("x", "int8", (4 * LEAST_BYTES,), noise)) is None
    assert packed(Tensor.raw("x", "int8", (LEAST_BYTES - 1,), bytes(LEAST_BYTES - 1))) is None
    assert packed(Tensor.raw("x", "int8", (LIMIT_BYTES + 1,), bytes(LIMIT_BYTES + 1))) is None


PLAIN = bytes(4000)


@pytest.mark.parametrize(
    "data",
    [
        b"\0",
        zlib.compress(PLAIN)[:-1],
        zlib.compress(PLAIN) + b"\0",
        zlib.compress(PLAIN[:-1]),
        zlib.compress(PLAIN + b"\0"),
        zlib.compress(bytes(2**26)),
    ],
)
def test_what_does_not_unpack_to_the_bytes_wanted_is_refused(data: bytes) -> None:
    with pytest.raises(WireError, match="does not unpack"):
        unpacked("x", "float32", (1000,), memoryview(data))


def test_large_tensors_are_not_unpacked() -> None:
    with pytest.raises(WireError, match="at most"):
        unpacked("x", "int8", (LIMIT_BYTES + 1,), memoryview(zlib.compress(bytes(LIMIT_BYTES + 1))))


def test_only_answers_are_packed() -> None:
    assert encode(REQUEST, (IDS,), packs=True)[1:] == [IDS.data]
    head = IDS.head().model_copy(update={"packed": 5})
    text = REQUEST.model_copy(update={"tensors": [head]}).model_dump_json(exclude_none=True).encode()
    with pytest.raises(WireError, match="only the tensors of an answer"):
        decode(text, bytes(5))


FRAME = b"".join(encode(ANSWER, rows(2), packs=True))


@hundred_seeds
@given(seeds)
def test_damaged_packed_frames_decode_or_raise_wire_error(seed: int) -> None:
    for damaged in hundred_damaged(FRAME, seed):
        try:
            _, tensors = decode(*split(damaged))
        except WireError:
            continue
        for tensor in tensors.values():
            assert memoryview(tensor.data).nbytes == np.prod(tensor.shape) * {"uint16": 2}.get(tensor.dtype, 4)
