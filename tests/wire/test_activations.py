"""Rounded hidden states: as exact as promised, and anything but what `pack` makes is refused with one error."""

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given

from swarm.errors import WireError
from swarm.wire.activations import BLOCK, pack, unpack
from swarm.wire.frames import decode, encode
from swarm.wire.messages import Activations, DType
from swarm.wire.tensors import Tensor

from .mutate import hundred_damaged, hundred_seeds, seeds
from .test_frames import REQUEST, split

LOSSY: list[Activations] = ["float16", "bfloat16", "int8"]
KINDS: list[Activations] = ["exact", *LOSSY]
SHAPES = [(1, 1, 1), (1, 3, 64), (2, 5, 100), (1, 4, 257)]


def states(shape: tuple[int, ...], scale: float = 1.0) -> np.ndarray:
    """Like those of a transformer: a few channels are far larger than the rest."""
    rng = np.random.default_rng(7)
    values = rng.standard_normal(shape) * scale
    values[..., shape[-1] // 2] *= 300
    return values.astype(np.float32)


def bits_of_bfloat16(values: np.ndarray) -> Tensor:
    return Tensor.raw("hidden", "bfloat16", values.shape, (values.view(np.uint32) >> 16).astype("<u2").tobytes())


def there_and_back(hidden: Tensor, kind: Activations) -> Tensor:
    packed = {tensor.name: tensor for tensor in pack(hidden, kind)}
    return unpack(packed, kind, hidden.dtype, hidden.shape)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 10.0])
@pytest.mark.parametrize("kind", KINDS)
def test_rounding_stays_within_its_bound(kind: Activations, shape: tuple[int, ...], scale: float) -> None:
    values = states(shape, scale)
    error = np.abs(there_and_back(Tensor.of("hidden", values), kind).array() - values)
    if kind == "int8":
        lines = values.reshape(-1, shape[-1])
        bound = np.zeros_like(lines)
        for line, row in enumerate(lines):
            row = row.copy()
            row[np.argsort(np.abs(row))[len(row) - -(-len(row) // 128) :]] = 0
            for start in range(0, len(row), BLOCK):
                bound[line, start : start + BLOCK] = np.abs(row[start : start + BLOCK]).max() / 127 / 2
        bound = bound.reshape(shape) * 1.001
    else:
        bound = {
            "exact": np.zeros_like(values),
            "float16": np.maximum(np.abs(values) * 2.0**-11, 2.0**-25),
            "bfloat16": np.abs(values) * 2.0**-8,
        }[kind]
    assert (error <= bound).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_exact_is_the_tensor_itself(dtype: DType) -> None:
    values = states((1, 2, 70), 0.1)
    hidden = bits_of_bfloat16(values) if dtype == "bfloat16" else Tensor.of("hidden", values.astype(dtype))
    assert pack(hidden, "exact") == (hidden,)
    assert there_and_back(hidden, "exact") is hidden
    for kind in LOSSY[:2]:
        if dtype != "float32":
            assert there_and_back(hidden, kind) is hidden


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_travel_as_int8(dtype: DType) -> None:
    values = states((1, 2, 130), 0.1)
    hidden = bits_of_bfloat16(values) if dtype == "bfloat16" else Tensor.of("hidden", values.astype(np.float16))
    packed = pack(hidden, "int8")
    assert sum(memoryview(tensor.data).nbytes for tensor in packed) < 0.7 * memoryview(hidden.data).nbytes
    back = there_and_back(hidden, "int8")
    assert back.dtype == dtype
    same = {tensor.name: tensor for tensor in pack(back, "int8")}
    assert np.array_equal(same["channels"].array(), packed[3].array())
    assert bytes(same["outliers"].data) == bytes(packed[2].data)


def test_outliers_travel_as_they_are_and_do_not_blur_the_others() -> None:
    values = np.full((1, 1, 256), 0.5, np.float32)
    values[0, 0, 100], values[0, 0, 101] = 30_000.1, -1e30
    back = there_and_back(Tensor.of("hidden", values), "int8").array()
    assert back[0, 0, 100] == values[0, 0, 100]
    assert back[0, 0, 101] == values[0, 0, 101]
    assert np.allclose(back, values, rtol=1e-6)


@pytest.mark.parametrize("kind", LOSSY)
def test_the_largest_numbers_stay_finite(kind: Activations) -> None:
    most = np.finfo(np.float32).max
    back = there_and_back(Tensor.of("hidden", np.array([[[most, -most, most, 0.0]]], np.float32)), kind).array()
    assert np.isfinite(back).all()
    assert (np.sign(back) == [1, -1, 1, 0]).all()


@pytest.mark.parametrize("kind", LOSSY)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_not_rounded(kind: Activations, bad: float) -> None:
    values = states((1, 2, 64))
    values[0, 1, 5] = bad
    with pytest.raises(WireError, match="not finite"):
        pack(Tensor.of("hidden", values), kind)


def changed(name: str, index: tuple[int, ...], value: float) -> dict[str, Tensor]:
    tensors = {tensor.name: tensor for tensor in pack(Tensor.of("hidden", states((1, 2, 200))), "int8")}
    array = tensors[name].array().copy()
    array[index] = value
    return tensors | {name: Tensor.of(name, array)}


@pytest.mark.parametrize(
    "tensors",
    [
        changed("scales", (0, 0, 0), np.nan),
        changed("scales", (0, 0, 0), np.inf),
        changed("scales", (0, 0, 0), -1.0),
        changed("scales", (0, 0, 0), 3e38),
        changed("outliers", (0, 1, 0), np.nan),
        changed("channels", (0, 0, 1), 200),
        changed("channels", (0, 0), 3),
        {k: v for k, v in changed("scales", (0, 0, 0), 0.0).items() if k != "scales"},
        changed("scales", (0, 0, 0), 0.0) | {"scales": Tensor.of("scales", np.zeros((1, 2, 5), np.float32))},
        changed("scales", (0, 0, 0), 0.0) | {"hidden": Tensor.of("hidden", states((1, 2, 200)))},
        changed("scales", (0, 0, 0), 0.0) | {"more": Tensor.of("more", np.zeros(1, np.int32))},
        {"hidden": Tensor.of("hidden", states((1, 2, 200)))},
    ],
)
def test_what_pack_does_not_make_is_refused(tensors: dict[str, Tensor]) -> None:
    with pytest.raises(WireError, match="hidden states"):
        unpack(tensors, "int8", "float32", (1, 2, 200))


@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_is_the_one_that_was_asked_for(kind: Activations) -> None:
    packed = {tensor.name: tensor for tensor in pack(Tensor.of("hidden", states((1, 2, 64))), kind)}
    for other in {*get_args(Activations)} - {kind}:
        with pytest.raises(WireError, match="wanted hidden states"):
            unpack(packed, other, "float32", (1, 2, 64))


@pytest.mark.parametrize("kind", KINDS)
@hundred_seeds
@given(seed=seeds)
def test_damaged_hidden_states_are_finite_or_raise_wire_error(kind: Activations, seed: int) -> None:
    hidden = Tensor.of("hidden", states((1, 2, 20)))
    message: Any = REQUEST.model_copy(update={"rows": 1, "columns": 2, "activations": kind})
    frame = b"".join(encode(message, pack(hidden, kind)))
    for damaged in hundred_damaged(frame, seed):
        try:
            _, tensors = decode(*split(damaged))
            back = unpack(tensors, kind, "float32", (1, 2, 20))
        except WireError:
            continue
        assert back.shape == (1, 2, 20)
        assert np.isfinite(back.array()).all()
