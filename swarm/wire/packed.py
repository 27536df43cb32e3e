"""Lossless packing of tensors: the bytes of one significance side by side, then zlib at its fastest level.

Score rows shrink to a little more than half. log-probabilities fall along a row, and the bit patterns of negative
floats grow as the numbers fall, so their differences are small integers. Numpy only. Called by `frames`.
"""

import zlib

import numpy as np
import numpy.typing as npt

from swarm.errors import WireError
from swarm.wire.messages import DType
from swarm.wire.tensors import Tensor, item_bytes, size_bytes

LEAST_BYTES = 1024
"""Smaller tensors are not worth the time."""
LIMIT_BYTES = 4 * 1024 * 1024
"""Unpacked bytes of one tensor: unpacking must not cost a node more than a few milliseconds."""
_LEVEL = 1


def packed(tensor: Tensor) -> bytes | None:
    """Fewer bytes that `unpacked` understands, None when there are none worth sending."""
    size = memoryview(tensor.data).nbytes
    if not LEAST_BYTES <= size <= LIMIT_BYTES:
        return None
    items = np.frombuffer(tensor.data, np.uint8).reshape(-1, item_bytes(tensor.dtype))
    if tensor.dtype == "float32":
        patterns = items.view("<u4").reshape(-1)
        items = np.diff(patterns, prepend=np.uint32(0)).view(np.uint8).reshape(-1, 4)
    data = zlib.compress(items.T.tobytes(), _LEVEL)
    return data if len(data) < size else None


def unpacked(name: str, dtype: DType, shape: tuple[int, ...], data: memoryview) -> Tensor:
    """Raises WireError for anything but one whole zlib stream of as many bytes as `dtype` and `shape` need."""
    size, width = size_bytes(dtype, shape), item_bytes(dtype)
    if size > LIMIT_BYTES:
        raise WireError(f"tensor {name} of {size} bytes is packed; at most {LIMIT_BYTES} may be")
    reader = zlib.decompressobj()
    try:
        # One byte more than there may be, so that too long a stream is told from one that ends.
        plain = reader.decompress(data, size + 1)
    except zlib.error:
        raise WireError(f"tensor {name} does not unpack") from None
    if len(plain) != size or not reader.eof or reader.unused_data:
        raise WireError(f"tensor {name} does not unpack to {size} bytes")
    items: npt.NDArray[np.uint8] = np.ascontiguousarray(np.frombuffer(plain, np.uint8).reshape(width, -1).T)
    if dtype == "float32":
        items = np.cumsum(items.view("<u4").reshape(-1), dtype=np.uint32).view(np.uint8)
    return Tensor.raw(name, dtype, shape, items.reshape(-1).data)
