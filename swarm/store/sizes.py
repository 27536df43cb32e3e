"""Bytes that weights take in memory, from shapes alone. The same formula on both sides: loading and the fit check.

Quantisation covers the matrices of the layers. Embedding, head and vectors keep the activations' dtype: they are read
rarely or weigh little, and answers suffer most from errors there (Dettmers et al., 2022).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
QuantName = Literal["none", "int8", "nf4"]
NF4_BLOCK = 64
TIGHT_SHARE = 0.8
"""Beyond this share of what is free, hidden states, other programs or a second model leave too little."""


def tensor_bytes(shape: tuple[int, ...], dtype: str, quant: str, in_layer: bool) -> int:
    """int8 has a float32 scale a row; nf4 has half a byte a weight and a float32 scale for each 64 of them."""
    count = math.prod(shape)
    if in_layer and len(shape) == 2 and quant == "int8":
        return count + 4 * shape[0]
    if in_layer and len(shape) == 2 and quant == "nf4":
        return math.ceil(count / 2) + 4 * math.ceil(count / NF4_BLOCK)
    return count * DTYPE_BYTES[dtype]


def weights_bytes(tensors: Iterable[tuple[tuple[int, ...], bool]], dtype: str, quant: str) -> int:
    """`tensors` are (shape, whether it belongs to a layer)."""
    return sum(tensor_bytes(shape, dtype, quant, in_layer) for shape, in_layer in tensors)


class Verdict(StrEnum):
    FITS = "fits"
    TIGHT = "tight"
    DOES_NOT_FIT = "does not fit"


@dataclass(frozen=True, slots=True)
class Fit:
    """What is needed against what is free, in bytes."""

    needed: int
    free: int

    @property
    def verdict(self) -> Verdict:
        if self.needed > self.free:
            return Verdict.DOES_NOT_FIT
        return Verdict.TIGHT if self.needed > TIGHT_SHARE * self.free else Verdict.FITS


def size_text(count: int) -> str:
    """In decimal units, as disks and hubs count."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return f"{count / factor:.{1 if count >= 10 * factor else 2}f} {unit}"
    return f"{count} B"
