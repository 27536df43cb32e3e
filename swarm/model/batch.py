"""Sequences that one forward runs together: concatenated for the linear layers, apart for attention.

A segment is one request's share of a batch. With a cache, only its active positions are in the batch and attention
also sees the keys and values that the cache keeps of all others (Fast-dLLM's prefix and dual caches, Wu et al., 2025).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True)
class LayerCache:
    """keys (rotated) and values of one layer: [rows, kv heads, length, head_dim]."""

    keys: Tensor
    values: Tensor

    @property
    def size_bytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes


@dataclass(slots=True)
class Cache:
    """Keys and values of one request on this span, by part: `rows` canvases of `length` positions."""

    rows: int
    length: int
    layers: dict[int, LayerCache] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return sum(layer.size_bytes for layer in self.layers.values())


@dataclass(frozen=True, slots=True)
class Segment:
    """`count` positions of each of `rows` canvases; positions: int64 [count], where they stand in the canvas.

    `cache` is filled by a pass over the whole canvas (`primes`), read and updated in place by later ones. In-place is
    safe to repeat: all steps of an epoch recompute the same positions.
    """

    rows: int
    positions: Tensor
    cache: Cache | None = None
    primes: bool = False

    @property
    def count(self) -> int:
        return len(self.positions)

    @property
    def size(self) -> int:
        return self.rows * self.count

    def attended(self, part: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """What the segment's queries see at `part`, given its own [rows, kv heads, count, head_dim]."""
        if self.cache is None:
            return keys, values
        if self.primes:
            self.cache.layers[part] = LayerCache(keys.contiguous(), values.contiguous())
            return keys, values
        layer = self.cache.layers[part]
        at = self.positions.to(keys.device)
        layer.keys.index_copy_(2, at, keys)
        layer.values.index_copy_(2, at, values)
        return layer.keys, layer.values


def flat_positions(segments: Sequence[Segment]) -> Tensor:
    """The canvas position of every line of the batch, int64 [N]."""
    return torch.cat([segment.positions.repeat(segment.rows) for segment in segments])
