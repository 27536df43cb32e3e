"""Tensors as they travel: little-endian bytes with a name, a type and a shape. Numpy only.

bfloat16, which numpy lacks, travels as raw 2-byte patterns: a coordinator forwards and checks it without torch.
Called by `frames`, and by hosts and chains to make and read tensors.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from swarm.errors import WireError
from swarm.wire.messages import BODY_LIMIT, DType, TensorHead

_NUMPY: dict[DType, str] = {"int8": "i1", "uint16": "<u2", "int32": "<i4", "float32": "<f4", "float16": "<f2"}
_ITEM_BYTES: dict[DType, int] = {
    "int8": 1,
    "uint16": 2,
    "uint24": 3,
    "int32": 4,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
}
_BFLOAT16_EXPONENT = 0x7F80
"""All exponent bits set means infinity or not-a-number."""


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """`data` holds exactly the bytes that `dtype` and `shape` ask for; make one with `of` or `raw`."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    data: bytes | memoryview

    @classmethod
    def of(cls, name: str, array: npt.NDArray[Any]) -> "Tensor":
        """A tensor of an int8, uint16, int32, float32 or float16 array; copies what is not contiguous little-endian."""
        for dtype, kind in _NUMPY.items():
            if array.dtype.newbyteorder("<") == np.dtype(kind):
                flat = np.ascontiguousarray(array, dtype=kind).reshape(-1).view(np.uint8)
                return cls.raw(name, dtype, array.shape, flat.data)
        raise WireError(f"tensor {name} is {array.dtype}; only int8, uint16, int32, float32 and float16 arrays travel")

    @classmethod
    def raw(cls, name: str, dtype: DType, shape: tuple[int, ...], data: bytes | memoryview) -> "Tensor":
        """A tensor of little-endian bytes. Raises WireError when their number does not fit the shape."""
        size, view = size_bytes(dtype, shape), byte_view(data)
        if view.nbytes != size:
            raise WireError(f"tensor {name} has {view.nbytes} bytes, {dtype} {list(shape)} needs {size}")
        return cls(name, dtype, tuple(shape), view.toreadonly())

    @classmethod
    def integers(cls, name: str, array: npt.NDArray[np.int32]) -> "Tensor":
        """A tensor of the narrowest type that holds the elements of an int32 array."""
        least, most = (int(array.min()), int(array.max())) if array.size else (0, 0)
        if least < 0 or most >= 1 << 24:
            return cls.of(name, array)
        if most < 1 << 16:
            return cls.raw(name, "uint16", array.shape, array.astype("<u2", order="C").reshape(-1).view(np.uint8).data)
        whole = np.ascontiguousarray(array, dtype="<i4").reshape(-1, 1).view(np.uint8)
        return cls.raw(name, "uint24", array.shape, np.ascontiguousarray(whole[:, :3]).reshape(-1).data)

    @property
    def is_integer(self) -> bool:
        return self.dtype in ("uint16", "uint24", "int32")

    def head(self) -> TensorHead:
        return TensorHead(name=self.name, dtype=self.dtype, shape=list(self.shape))

    def array(self) -> npt.NDArray[Any]:
        """A read-only view of `data`, without a copy. Raises WireError for types that numpy lacks."""
        if self.dtype not in _NUMPY:
            raise WireError(f"tensor {self.name} is {self.dtype}, which numpy cannot show; read its data")
        return self._view(_NUMPY[self.dtype]).reshape(self.shape)

    def as_int32(self) -> npt.NDArray[np.int32]:
        """The elements, whatever integer type they travelled in. Raises WireError when they are none."""
        if self.dtype == "int32":
            return self.array()
        if self.dtype == "uint16":
            return self._view("<u2").astype(np.int32).reshape(self.shape)
        if self.dtype != "uint24":
            raise WireError(f"tensor {self.name} is {self.dtype}; wanted integers")
        parts = self._view("u1").reshape(-1, 3)
        whole = np.zeros((len(parts), 4), np.uint8)
        whole[:, :3] = parts
        return whole.view("<i4").reshape(self.shape)

    def _view(self, kind: str) -> npt.NDArray[Any]:
        view: npt.NDArray[Any] = np.frombuffer(self.data, dtype=kind)
        view.flags.writeable = False
        return view


def byte_view(data: bytes | memoryview) -> memoryview:
    """`data` as a flat view of bytes."""
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")  # Python refuses to cast an empty view.


def item_bytes(dtype: DType) -> int:
    return _ITEM_BYTES[dtype]


def size_bytes(dtype: DType, shape: tuple[int, ...] | list[int]) -> int:
    """Bytes of such a tensor, in Python integers, which do not overflow. Raises WireError beyond BODY_LIMIT."""
    size = extent = _ITEM_BYTES[dtype]
    for length in shape:
        size *= length
        extent *= max(length, 1)
    # An empty tensor may still have sides that numpy refuses to multiply, so the limit leaves out its zeros.
    if extent > BODY_LIMIT:
        raise WireError(f"a tensor of {dtype} {list(shape)} exceeds {BODY_LIMIT} bytes")
    return size


def is_within(tensor: Tensor, limit: float) -> bool:
    """Whether every element is finite and at most `limit` in size; of bfloat16, `limit` is rounded down to a power of
    two."""
    if tensor.dtype == "bfloat16":
        exponent = (int(math.log2(limit)) + 127) << 7
        return not bool(((tensor._view("<u2") & _BFLOAT16_EXPONENT) >= exponent).any())
    array = tensor.array()
    return not array.size or (
        float(array.max()) <= limit and float(array.min()) >= -limit
    )  # false also of not-a-number


def is_finite(tensor: Tensor) -> bool:
    """Whether no element is infinite or not-a-number; integers are always finite."""
    if tensor.is_integer or tensor.dtype == "int8":
        return True
    if tensor.dtype == "bfloat16":
        return not bool(((tensor._view("<u2") & _BFLOAT16_EXPONENT) == _BFLOAT16_EXPONENT).any())
    return bool(np.isfinite(tensor.array()).all())
