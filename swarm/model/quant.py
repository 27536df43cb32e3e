"""Linear layers with quantised weights, through bitsandbytes, which works on CPU too.

int8: one scale a row of the weight and one a row of the input, integer product. Inputs above 6 stay in floating point,
because a few large features would otherwise take all the resolution (LLM.int8, Dettmers et al., 2022); here entry by
entry, so that a position's answer does not depend on its neighbours.
nf4: blocks of 64 weights on 16 levels (QLoRA, Dettmers et al., 2023), expanded for the product.
Weights are quantised on the CPU, in chunks, so that every machine gets the same bits.
"""

import logging
import types
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from swarm.errors import StartError
from swarm.model.reading import CHUNK_ITEMS, read_chunks
from swarm.store.shelf import Placed
from swarm.store.sizes import NF4_BLOCK, QuantName

OUTLIER = 6.0
_INT8_MAX = 127.0


class Int8Linear(nn.Module):
    """weight: int8 [out, in]; scale: float32 [out]."""

    weight: Tensor
    scale: Tensor

    def __init__(self, weight: Tensor, scale: Tensor, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., in] in a float dtype; the result has it too."""
        wide = x.reshape(-1, x.shape[-1]).float()
        large = wide.abs() > OUTLIER
        rest = wide.masked_fill(large, 0)
        row_scale = rest.abs().amax(1, keepdim=True).clamp(min=1e-12) / _INT8_MAX
        rounded = torch.round(rest / row_scale).to(torch.int8)
        product = _library().int8_linear_matmul(rounded, self.weight)
        out: Tensor = product.float() * row_scale * self.scale
        columns = large.any(0).nonzero()[:, 0]
        if len(columns):
            weight = self.weight[:, columns].float() * self.scale[:, None]
            out += torch.where(large[:, columns], wide[:, columns], 0) @ weight.t()
        if self.bias is not None:
            out += self.bias
        return out.to(x.dtype).view(*x.shape[:-1], -1)


class Nf4Linear(nn.Module):
    """weight: uint8, two weights a byte; scale: float32, one for each 64 weights."""

    weight: Tensor
    scale: Tensor

    def __init__(self, weight: Tensor, scale: Tensor, shape: torch.Size, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.shape = shape
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., in] in a float dtype; the result has it too."""
        library = _library()
        state = library.QuantState(
            absmax=self.scale,
            shape=self.shape,
            code=_nf4_levels(self.scale.device),
            blocksize=NF4_BLOCK,
            quant_type="nf4",
            dtype=x.dtype,
        )
        return F.linear(x, library.dequantize_4bit(self.weight, state), self.bias)


def read_quantised(placed: Placed, quant: QuantName, linear: nn.Linear, device: torch.device) -> nn.Module:
    """A module that stands for `linear`, its weight read and quantised chunk by chunk. Raises ModelFileError."""
    rows, columns = placed.spec.shape
    bias = linear.bias
    if quant == "int8":
        weight = torch.empty(rows, columns, dtype=torch.int8)
        scale = torch.empty(rows, dtype=torch.float32)
        at_once = max(1, CHUNK_ITEMS // columns)
        for start, chunk in read_chunks(placed, at_once * columns):
            first = start // columns
            part, peaks, _ = _library().int8_vectorwise_quant(chunk.float().view(-1, columns))
            weight[first : first + len(part)] = part
            scale[first : first + len(part)] = peaks.float() / _INT8_MAX
        return Int8Linear(weight.to(device), scale.to(device), bias)
    packed = torch.empty((rows * columns + 1) // 2, 1, dtype=torch.uint8)
    scale = torch.empty((rows * columns + NF4_BLOCK - 1) // NF4_BLOCK, dtype=torch.float32)
    for start, chunk in read_chunks(placed, CHUNK_ITEMS):
        part, state = _library().quantize_4bit(chunk.float(), blocksize=NF4_BLOCK, quant_type="nf4")
        packed[start // 2 : start // 2 + len(part)] = part
        scale[start // NF4_BLOCK : start // NF4_BLOCK + len(state.absmax)] = state.absmax
    return Nf4Linear(packed.to(device), scale.to(device), torch.Size((rows, columns)), bias)


@cache
def _library() -> types.ModuleType:
    """Imported when first needed: it takes seconds."""
    # It complains about an optional package for kernels that are not used here.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    try:
        import bitsandbytes.functional as functional
    except (ImportError, OSError, RuntimeError) as error:
        raise StartError(f"--quant needs bitsandbytes, which does not load here: {error}; use --quant none") from None
    return functional  # type: ignore[no-any-return]


@cache
def _nf4_levels(device: torch.device) -> Tensor:
    levels: Any = _library().get_4bit_type("nf4", device=device)
    return levels  # type: ignore[no-any-return]
