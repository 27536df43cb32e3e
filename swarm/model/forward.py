"""Run a span of a model over one canvas: what a host does with a request and a lone process with its own model."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swarm.errors import BadRequest
from swarm.ids import Span
from swarm.mixture.rows import ScoreRows
from swarm.model.config import ModelConfig
from swarm.model.head import guide, score_rows
from swarm.model.span import SpanModule


@dataclass(frozen=True, slots=True, eq=False)
class HeadWork:
    """positions: int32 [P], ascending; `cfg_scale` composes two canvas rows into one set of score rows."""

    positions: npt.NDArray[np.int32]
    cfg_scale: float
    n_tokens: int


@torch.inference_mode()
def run_span(module: SpanModule, span: Span, x: Tensor, head: HeadWork | None) -> Tensor | ScoreRows:
    """Run the parts `span`, which `module` must hold.

    x: int64 ids [rows, length] at part 0, else hidden states [rows, length, hidden].
    Returns hidden states, or score rows when the span ends in the head. Raises BadRequest on what does not fit.
    """
    _check(module, span, x, head)
    hidden = module.run(x, span)
    if head is None:
        return hidden
    wanted = hidden[:, read_at(module.config, head.positions)]
    if module.head is None:
        raise BadRequest(f"this node holds {module.span}, which has no head")
    logits = module.head(wanted)
    composed = logits[0] if len(logits) == 1 else guide(logits[0], logits[1], head.cfg_scale)
    return score_rows(composed, head.positions, module.config.mask_id, head.n_tokens)


def read_at(config: ModelConfig, positions: npt.NDArray[np.int32]) -> Tensor:
    """Where the head reads the predictions for `positions`, int64 [P]."""
    at = torch.from_numpy(positions.astype(np.int64))
    return (at - 1).clamp(min=0) if config.logit_shift else at


def _check(module: SpanModule, span: Span, x: Tensor, head: HeadWork | None) -> None:
    config = module.config
    if span.start < module.span.start or span.stop > module.span.stop:
        raise BadRequest(f"parts {span} are not hosted here; this node holds {module.span}", "start")
    if x.ndim != (2 if span.start == 0 else 3) or not 1 <= x.shape[0] <= 2:
        raise BadRequest(f"input of shape {list(x.shape)} does not fit parts {span}", "tensors")
    if not 1 <= x.shape[1] <= config.max_length:
        raise BadRequest(f"{x.shape[1]} positions exceed the model's {config.max_length}", "tensors")
    if span.start == 0 and not (int(x.min()) >= 0 and int(x.max()) < config.vocab_size):
        raise BadRequest(f"token ids must lie from 0 to {config.vocab_size - 1}", "tensors")
    if span.start > 0 and x.shape[2] != config.hidden_size:
        raise BadRequest(f"hidden states have size {x.shape[2]}, the model {config.hidden_size}", "tensors")
    if (config.head_part in span) is not (head is not None):
        raise BadRequest("positions to score go with the head, and only with it", "tensors")
    if head is not None and not (
        head.positions.ndim == 1
        and 1 <= len(head.positions) <= x.shape[1]
        and int(head.positions[0]) >= 0
        and int(head.positions[-1]) < x.shape[1]
        and bool((np.diff(head.positions) > 0).all())
    ):
        raise BadRequest("positions must ascend within the canvas", "positions")
