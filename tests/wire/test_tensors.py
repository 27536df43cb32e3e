import numpy as np
import pytest

from swarm.errors import WireError
from swarm.wire.messages import BODY_LIMIT
from swarm.wire.tensors import Tensor, is_finite, is_within, size_bytes


@pytest.mark.parametrize("dtype", ["int32", "float32", "float16"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 5), (2, 3, 4)])
def test_an_array_comes_back_as_it_was(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
    back = Tensor.of("x", array).array()
    assert back.dtype == array.dtype
    assert back.shape == shape
    assert np.array_equal(back, array)


def test_big_endian_and_strided_arrays_travel_little_endian() -> None:
    array = np.arange(12, dtype=">i4").reshape(3, 4)[:, ::2]
    tensor = Tensor.of("x", array)
    assert bytes(tensor.data) == np.array([0, 2, 4, 6, 8, 10], dtype="<i4").tobytes()
    assert np.array_equal(tensor.array(), array)


def test_the_view_is_the_data_itself_and_cannot_be_written() -> None:
    data = bytearray(8)
    view = Tensor.raw("x", "int32", (2,), memoryview(data)).array()
    data[0] = 7
    assert view[0] == 7
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


def test_other_types_do_not_travel() -> None:
    with pytest.raises(WireError, match="float64"):
        Tensor.of("x", np.zeros(2))


def test_bytes_must_fit_the_shape() -> None:
    with pytest.raises(WireError, match="has 7 bytes"):
        Tensor.raw("x", "bfloat16", (2, 2), bytes(7))


def test_numpy_does_not_show_bfloat16() -> None:
    with pytest.raises(WireError, match="bfloat16"):
        Tensor.raw("x", "bfloat16", (1,), bytes(2)).array()


@pytest.mark.parametrize(
    ("least", "most", "dtype"),
    [
        (0, 2**16 - 1, "uint16"),
        (0, 2**16, "uint24"),
        (0, 2**24 - 1, "uint24"),
        (0, 2**24, "int32"),
        (-1, 5, "int32"),
        (-(2**31), 2**31 - 1, "int32"),
    ],
)
@pytest.mark.parametrize("kind", ["<i4", ">i4"])
def test_integers_travel_in_the_narrowest_type_and_come_back(least: int, most: int, dtype: str, kind: str) -> None:
    array = np.array([[least, 1, most], [3, 4, most - 1]], dtype=kind)
    tensor = Tensor.integers("x", array)
    assert tensor.dtype == dtype
    assert np.array_equal(tensor.as_int32(), array)
    assert np.array_equal(Tensor.integers("x", array[:, ::2]).as_int32(), array[:, ::2])


@pytest.mark.parametrize("shape", [(0,), (2, 0, 5)])
def test_no_integers_travel_too(shape: tuple[int, ...]) -> None:
    assert Tensor.integers("x", np.zeros(shape, np.int32)).as_int32().shape == shape


def test_other_types_are_no_integers() -> None:
    with pytest.raises(WireError, match="wanted integers"):
        Tensor.of("x", np.zeros(2, np.float32)).as_int32()
    with pytest.raises(WireError, match="uint24"):
        Tensor.raw("x", "uint24", (1,), bytes(3)).array()


def test_sizes_do_not_overflow() -> None:
    assert size_bytes("bfloat16", (BODY_LIMIT // 2,)) == BODY_LIMIT
    for shape in ((BODY_LIMIT // 2 + 1,), (2**31 - 1,) * 4, (0, 2**31 - 1, 2**31 - 1)):
        with pytest.raises(WireError, match="exceeds"):
            size_bytes("bfloat16", shape)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_infinities_and_nans_are_found(dtype: str) -> None:
    fine = np.array([0, -1, np.finfo(dtype).max, np.finfo(dtype).tiny], dtype=dtype)
    assert is_finite(Tensor.of("x", fine))
    for bad in (np.inf, -np.inf, np.nan):
        assert not is_finite(Tensor.of("x", np.append(fine, fine.dtype.type(bad))))


def test_infinities_and_nans_are_found_in_bfloat16_bits() -> None:
    fine = np.array([0, -1, np.finfo("float32").max, 1e-38], dtype="<f4").view("<u2")[1::2].tobytes()
    assert is_finite(Tensor.raw("x", "bfloat16", (4,), fine))
    for pattern in (0x7F80, 0xFF80, 0x7FC0, 0x7F81):
        bad = fine + pattern.to_bytes(2, "little")
        assert not is_finite(Tensor.raw("x", "bfloat16", (5,), bad))


def test_integers_are_finite() -> None:
    assert is_finite(Tensor.of("x", np.array([-1, 0x7F80_0000], dtype=np.int32)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_size_is_seen_in_every_format(dtype: str) -> None:
    def tensor(*values: float) -> Tensor:
        if dtype == "float32":
            return Tensor.of("x", np.array(values, np.float32))
        return Tensor.raw(
            "x", "bfloat16", (len(values),), (np.array(values, "<f4").view("<u4") >> 16).astype("<u2").tobytes()
        )

    assert is_within(tensor(0.0, -500.0, 1000.0), 1024.0)
    for bad in (2048.0, -3e38, np.inf, -np.inf, np.nan):
        assert not is_within(tensor(0.0, bad), 1024.0)
    assert is_within(tensor(), 1024.0)
