"""Hidden states on their way between hops: as they are, or rounded to fewer bytes when the coordinator asks for that.

float16 and bfloat16 halve float32. int8 takes blocks of 64 channels with a float32 scale each; the largest channels of
a position, on which such a scale would be wasted, travel beside them as they are (the outliers of Dettmers et al. 2022,
"LLM.int8()", arXiv 2208.07339, with blocks as in "8-bit Optimizers via Block-wise Quantization", arXiv 2110.02861).
Numpy only. Called by relays.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from swarm.errors import WireError
from swarm.wire.messages import Activations, DType
from swarm.wire.tensors import Tensor, is_finite, item_bytes

BLOCK = 64
CHANNELS_PER_OUTLIER = 128
BESIDE = ("active", "positions")
"""Tensors that go along with hidden states, unchanged."""
_LEVELS = 127
_MOST: dict[DType, float] = {"float32": 3.4028234663852886e38, "float16": 65504.0, "bfloat16": 3.3895313892515355e38}

Floats = npt.NDArray[np.float32]


def pack(hidden: Tensor, kind: Activations) -> tuple[Tensor, ...]:
    """What travels instead of `hidden` [rows, columns, size]. Raises WireError when rounding meets what is not finite.

    Values beyond the range of a smaller type become its largest.
    """
    kind = _fitting(kind, hidden.dtype)
    if kind == "exact":
        return (hidden,)
    if not is_finite(hidden):
        raise WireError("hidden states are not finite")
    values = _floats(hidden)
    return _blocks(values) if kind == "int8" else (_tensor("hidden", values, kind),)


def unpack(tensors: Mapping[str, Tensor], kind: Activations, dtype: DType, shape: tuple[int, int, int]) -> Tensor:
    """Hidden states of `dtype` and `shape` from what `pack` made of them. Raises WireError for anything else.

    Within the range of its type an element is off by at most: float16 2^-11 of itself (2^-25 near zero), bfloat16 2^-8
    of itself, int8 half of its block's scale, which is the block's largest element after the outliers over 127.
    """
    kind = _fitting(kind, dtype)
    want = _wanted(kind, dtype, shape)
    found = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items() if name not in BESIDE}
    if found != want:
        raise WireError(f"wanted hidden states of {dtype} {list(shape)} sent as {kind}, which are {want}; got {found}")
    if not all(is_finite(tensors[name]) for name in want):
        raise WireError("hidden states are not finite")
    if kind == "exact":
        return tensors["hidden"]
    values = _from_blocks(tensors, shape) if kind == "int8" else _floats(tensors["hidden"])
    return _tensor("hidden", values, dtype)


def _fitting(kind: Activations, dtype: DType) -> Activations:
    """Rounding that saves nothing is left out."""
    return kind if kind != "exact" and item_bytes(kind) < item_bytes(dtype) else "exact"


def _wanted(kind: Activations, dtype: DType, shape: tuple[int, int, int]) -> dict[str, tuple[DType, tuple[int, ...]]]:
    if kind != "int8":
        return {"hidden": (dtype if kind == "exact" else kind, shape)}
    *lines, size = shape
    return {
        "hidden": ("int8", shape),
        "scales": ("float32", (*lines, -(-size // BLOCK))),
        "outliers": ("float32", (*lines, _n_outliers(size))),
        "channels": ("uint16", (*lines, _n_outliers(size))),
    }


def _n_outliers(size: int) -> int:
    return -(-size // CHANNELS_PER_OUTLIER)


def _blocks(values: Floats) -> tuple[Tensor, ...]:
    *lines, size = values.shape
    if size >= 1 << 16:
        raise WireError(f"hidden states of {size} channels do not travel as int8")
    most = _n_outliers(size)
    channels = np.sort(np.argpartition(np.abs(values), size - most, axis=-1)[..., size - most :], axis=-1)
    outliers = np.take_along_axis(values, channels, axis=-1)
    padded = np.zeros((*lines, -(-size // BLOCK) * BLOCK), np.float32)
    padded[..., :size] = values
    np.put_along_axis(padded, channels, np.float32(0), axis=-1)
    blocks = padded.reshape(*lines, -1, BLOCK)
    # A scale that is rounded up must not bring the largest numbers beyond what float32 holds.
    scales = np.minimum(np.abs(blocks).max(axis=-1) / np.float32(_LEVELS), np.float32(_MOST["float32"] / (_LEVELS + 1)))
    divisors = np.where(scales == 0, np.float32(1), scales)[..., None]
    codes = np.clip(np.rint(blocks / divisors), -_LEVELS, _LEVELS).astype(np.int8)
    return (
        Tensor.of("hidden", codes.reshape(padded.shape)[..., :size]),
        Tensor.of("scales", scales),
        Tensor.of("outliers", outliers),
        Tensor.of("channels", channels.astype(np.uint16)),
    )


def _from_blocks(tensors: Mapping[str, Tensor], shape: tuple[int, int, int]) -> Floats:
    channels, scales = tensors["channels"].as_int32(), tensors["scales"].array()
    if (channels >= shape[-1]).any() or (channels[..., 1:] <= channels[..., :-1]).any():
        raise WireError("channels of outliers are not ascending channels of the hidden states")
    if (scales < 0).any() or (scales > _MOST["float32"] / (_LEVELS + 1)).any():
        raise WireError("scales of hidden states are out of range")
    values = tensors["hidden"].array().astype(np.float32)
    values *= np.repeat(scales, BLOCK, axis=-1)[..., : shape[-1]]
    np.put_along_axis(values, channels.astype(np.int64), tensors["outliers"].array(), axis=-1)
    return values


def _floats(tensor: Tensor) -> Floats:
    """float32 of a tensor of any floating type."""
    if tensor.dtype == "bfloat16":
        bits = np.frombuffer(tensor.data, "<u2").astype(np.uint32) << 16
        return bits.view(np.float32).reshape(tensor.shape)
    return tensor.array().astype(np.float32, copy=False)


def _tensor(name: str, values: Floats, dtype: DType) -> Tensor:
    """`values`, all finite, rounded to the nearest of `dtype`, ties to even."""
    if dtype == "float32":
        return Tensor.of(name, values)
    bounded = np.clip(values, -_MOST[dtype], _MOST[dtype])
    if dtype == "float16":
        return Tensor.of(name, bounded.astype(np.float16))
    bits = np.ascontiguousarray(bounded, "<f4").view(np.uint32)
    halves = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    return Tensor.raw(name, "bfloat16", values.shape, halves.reshape(-1).view(np.uint8).data)
