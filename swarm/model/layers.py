"""The transformer layer that every family shares: RMS norm, rotary attention without a mask, gated MLP.

The order of casts follows the published modelling code, because logits must match it bit for bit: the norm is computed
in float32 and cast back before its weight multiplies. Queries and keys are rotated in float32, or in the weights' dtype
where the family does so.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from swarm.model.batch import Segment
from swarm.model.config import ModelConfig

SHARED_OUT_ABOVE = 32768
"""Elements up to which torch works on one thread (its grain size)."""


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis (Zhang and Sennrich, 2019)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float32:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return F.rms_norm(x.float(), self.weight.shape, None, self.eps).to(x.dtype) * self.weight


def rope_tables(length: int, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the rotary angles, float32 [length, head_dim], for `rotate` (Su et al., 2021).

    Halves are repeated; the sine's first half is negative, so that no rotation has to negate anything.
    """
    inverse = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    angles = torch.outer(torch.arange(length, dtype=torch.float32), inverse)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate [..., length, head_dim] by half-split rotary embedding, in the dtype of the tables, and cast back."""
    wide = x.to(cos.dtype)
    first, second = wide.chunk(2, dim=-1)
    return torch.cat((second, first), dim=-1).mul_(sin).add_(wide * cos).to(x.dtype)


class Attention(nn.Module):
    """Bidirectional attention: every position sees every other, no mask at all."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        kv_size = config.n_kv_heads * config.head_dim
        self.head_dim = config.head_dim
        self.groups = config.n_heads // config.n_kv_heads
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=config.qkv_bias)
        self.k_proj = nn.Linear(config.hidden_size, kv_size, bias=config.qkv_bias)
        self.v_proj = nn.Linear(config.hidden_size, kv_size, bias=config.qkv_bias)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, part: int, segments: Sequence[Segment]) -> Tensor:
        """x: [N, hidden], the lines of all segments; cos, sin: [N, 1, head_dim] of the same lines."""
        q, k, v = (proj(x).view(len(x), -1, self.head_dim) for proj in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed, start = [], 0
        for segment in segments:
            lines = slice(start, start + segment.size)
            mixed.append(self._attend(q[lines], k[lines], v[lines], part, segment))
            start += segment.size
        return self.o_proj(mixed[0] if len(mixed) == 1 else torch.cat(mixed))  # type: ignore[no-any-return]

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, part: int, segment: Segment) -> Tensor:
        q, k, v = (t.view(segment.rows, segment.count, -1, self.head_dim).transpose(1, 2) for t in (q, k, v))
        k, v = segment.attended(part, k, v)
        if self.groups > 1:
            k, v = k.repeat_interleave(self.groups, dim=1), v.repeat_interleave(self.groups, dim=1)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return mixed.transpose(1, 2).reshape(segment.size, -1)


def silu_(x: Tensor) -> Tensor:
    """x * sigmoid(x) of [N, size] in place, the same bits for a line on any number of threads.

    torch shares out larger tensors among threads and rounds the ends of the shares with another exponential. Pieces
    below its limit stay whole; they take microseconds beside the products around them.
    """
    lines = SHARED_OUT_ABOVE // x.shape[-1]
    if x.is_cpu and torch.get_num_threads() > 1 and len(x) > lines > 0:
        for piece in torch.split(x, lines):
            F.silu(piece, inplace=True)
        return x
    return F.silu(x, inplace=True)


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x)) (Shazeer, 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gated = silu_(self.gate_proj(x)).mul_(self.up_proj(x))
        return self.down_proj(gated)  # type: ignore[no-any-return]


class Layer(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.attn = Attention(config)
        self.mlp_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, part: int, segments: Sequence[Segment]) -> Tensor:
        """x: [N, hidden], the lines of all segments. `part` is this layer's number in the model."""
        x = self.attn(self.attn_norm(x), cos, sin, part, segments).add_(x)
        return self.mlp(self.mlp_norm(x)).add_(x)  # type: ignore[no-any-return]
