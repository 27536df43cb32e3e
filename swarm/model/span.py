"""A contiguous range of parts of one backbone, as one torch module. A node builds only the parts it hosts."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from swarm.ids import Span
from swarm.model.batch import Segment, flat_positions
from swarm.model.config import ModelConfig
from swarm.model.layers import Layer, RMSNorm, rope_tables

TABLE_LENGTH = 4096
"""Positions that the rotary tables cover at first; a model may allow many times more than most requests need."""


class Embedding(nn.Module):
    """Part 0: token ids to hidden states."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.table = nn.Embedding(config.vocab_size, config.hidden_size)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids)  # type: ignore[no-any-return]


class Head(nn.Module):
    """Part n+1: final norm and projection to the vocabulary."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.out = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.out(self.norm(hidden))  # type: ignore[no-any-return]


class SpanModule(nn.Module):
    """Parts `span.start`..`span.stop - 1` of the backbone that `config` describes.

    `parts` is keyed by the part's number in the whole model, so that names in a checkpoint map to modules without
    knowing where the span begins.
    """

    def __init__(self, config: ModelConfig, span: Span) -> None:
        super().__init__()
        span.check_within(config.n_parts)
        self.config = config
        self.span = span
        self.parts = nn.ModuleDict({str(part): self._build(part) for part in span})
        self.rebuild_tables()

    def rebuild_tables(self, length: int = TABLE_LENGTH) -> None:
        """Fill the rotary tables, which are derived and never stored, for at least `length` positions."""
        config = self.config
        with torch.device("cpu"):
            cos, sin = rope_tables(min(length, config.max_length), config.head_dim, config.rope_theta)
        # Both at once: another thread may be about to read them.
        self._tables = cos, sin

    @property
    def table_length(self) -> int:
        """Positions that the rotary tables cover now."""
        return len(self._tables[0])

    def tables(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine [N, 1, head_dim] at `positions`, as the layers take them for hidden states of `dtype`."""
        longest = int(positions.max()) + 1
        if longest > self.table_length:
            self.rebuild_tables(2 * longest)
        target = dtype if self.config.rotates_in_weight_dtype else torch.float32
        cos, sin = (table.to(positions.device, target)[positions, None] for table in self._tables)
        return cos, sin

    def _build(self, part: int) -> nn.Module:
        if part == 0:
            return Embedding(self.config)
        return Head(self.config) if part == self.config.head_part else Layer(self.config)

    def forward(self, x: Tensor) -> Tensor:
        """Run all hosted parts but the head, which is called on its own because it needs fewer positions."""
        return self.run(x, self.span)

    def run(self, x: Tensor, span: Span) -> Tensor:
        """Run the embedding and layers of `span`, which lies within the hosted parts, over whole canvases.

        x: token ids [rows, length] (int64) when `span` starts at part 0, else hidden states [rows, length, hidden].
        Returns hidden states [rows, length, hidden].
        """
        segment = Segment(len(x), torch.arange(x.shape[1], device=x.device))
        return self.run_batch(x.flatten(0, 1), span, [segment]).view(*x.shape[:2], -1)

    def run_batch(self, x: Tensor, span: Span, segments: Sequence[Segment]) -> Tensor:
        """The same over the lines of many segments: ids [N] or hidden states [N, hidden] to hidden states."""
        if span.start == 0:
            x = self.parts["0"](x)
        layers = [part for part in span if part not in (0, self.config.head_part)]
        if layers:
            cos, sin = self.tables(flat_positions(segments).to(x.device), x.dtype)
            for part in layers:
                x = self.parts[str(part)](x, cos, sin, part, segments)
        return x

    @property
    def head(self) -> Head | None:
        part = self.parts[str(self.config.head_part)] if self.config.head_part in self.span else None
        return part if isinstance(part, Head) else None

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device
