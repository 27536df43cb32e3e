"""Bring one tensor from a safetensors file into memory: mapped where that is exact, else copied in small chunks.

Nothing is ever in memory twice: a cast or a quantisation sees a small piece of the file at a time.
"""

import mmap
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from swarm.errors import ModelFileError
from swarm.store.safetensors_file import ALIGNMENT, TensorSpec
from swarm.store.shelf import Placed

CHUNK_ITEMS = 128 * 1024
"""A multiple of every quantisation block; half a megabyte as float32, so that the copies made of a chunk stay small."""

_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def read_tensor(placed: Placed, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The tensor as `dtype` on `device`. Raises ModelFileError.

    Bytes that lie aligned and need no cast are mapped: the system reads them when they are used, and shares them among
    processes. Others are copied, because kernels may sum in another order on unaligned memory, and answers would then
    depend on the layout of a file.
    """
    spec = placed.spec
    if stored_dtype(placed) == dtype and device.type == "cpu" and spec.start % ALIGNMENT == 0 and spec.size_bytes > 0:
        return _mapped(placed.path, spec, dtype)
    whole = torch.empty(spec.shape, dtype=dtype, device=device)
    flat = whole.view(-1)
    for start, chunk in read_chunks(placed, CHUNK_ITEMS):
        flat[start : start + len(chunk)].copy_(chunk)
    return whole


def read_chunks(placed: Placed, items: int) -> Iterator[tuple[int, Tensor]]:
    """(index of the first item, at most `items` items) in order. Asking for the next chunk overwrites this one."""
    dtype = stored_dtype(placed)
    total = placed.spec.size_bytes // dtype.itemsize
    buffer = bytearray(min(items, total) * dtype.itemsize)
    try:
        with placed.path.open("rb", buffering=0) as file:
            file.seek(placed.spec.start)
            for start in range(0, total, items):
                count = min(items, total - start)
                _fill(file.readinto, memoryview(buffer)[: count * dtype.itemsize], placed.path)
                yield start, torch.frombuffer(buffer, dtype=dtype, count=count)
    except OSError as error:
        raise ModelFileError(f"cannot read {placed.path}: {error.strerror}") from None


def stored_dtype(placed: Placed) -> torch.dtype:
    """Raises ModelFileError for what is no published weight."""
    if placed.spec.dtype not in _DTYPES:
        known = ", ".join(_DTYPES)
        raise ModelFileError(f"{placed.path} holds weights as {placed.spec.dtype}; glossd reads {known}")
    return _DTYPES[placed.spec.dtype]


def _mapped(path: Path, spec: TensorSpec, dtype: torch.dtype) -> Tensor:
    begin = spec.start - spec.start % mmap.ALLOCATIONGRANULARITY
    try:
        with path.open("rb") as file:
            if spec.stop > path.stat().st_size:
                raise ModelFileError(f"{path} ended early; fetch it again")
            # Copy-on-write, since torch knows no read-only memory; nothing writes.
            pages = mmap.mmap(file.fileno(), spec.stop - begin, access=mmap.ACCESS_COPY, offset=begin)
    except OSError as error:
        raise ModelFileError(f"cannot map {path}: {error.strerror}") from None
    count = spec.size_bytes // dtype.itemsize
    return torch.frombuffer(pages, dtype=dtype, count=count, offset=spec.start - begin).view(spec.shape)


def _fill(readinto: Callable[[memoryview], int | None], view: memoryview, path: Path) -> None:
    while view:
        count = readinto(view)
        if not count:
            raise ModelFileError(f"{path} ended early; fetch it again")
        view = view[count:]
