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
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * normed.to(x.dtype)


def rope_tables(length: int, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the rotary angles, float32 [length, head_dim], halves repeated (Su et al., 2021)."""
    inverse = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    angles = torch.outer(torch.arange(length, dtype=torch.float32), inverse)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate [..., length, head_dim] by half-split rotary embedding, in the dtype of the tables, and cast back."""
    wide = x.to(cos.dtype)
    first, second = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


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


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x) of [N, size], the same bits for a line on any number of threads.

    torch shares out larger tensors among threads and rounds the ends of the shares with another exponential. Pieces
    below its limit stay whole; they take microseconds beside the products around them.
    """
    lines = SHARED_OUT_ABOVE // x.shape[-1]
    if x.is_cpu and torch.get_num_threads() > 1 and len(x) > lines > 0:
        return torch.cat([F.silu(piece) for piece in torch.split(x, lines)])
    return F.silu(x)


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x)) (Shazeer, 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


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
        x = x + self.attn(self.attn_norm(x), cos, sin, part, segments)
        return x + self.mlp(self.mlp_norm(x))  # type: ignore[no-any-return]
