"""How fast this node runs its span: real forwards, measured at start and announced."""

import statistics
import time

import numpy as np
import torch

from swarm.ids import Span
from swarm.model.forward import HeadWork, run_span
from swarm.model.span import SpanModule

POSITIONS, REPEATS = 64, 5


def measure_throughput(module: SpanModule, n_tokens: int) -> float:
    """Parts times positions per second, the median of a few forwards after one to warm up."""
    config, span = module.config, module.span
    length = min(POSITIONS, config.max_length)
    if span.start == 0:
        x = torch.full((1, length), config.mask_id)
    else:
        x = torch.zeros(1, length, config.hidden_size, dtype=module.dtype)
    head = HeadWork(np.arange(length, dtype=np.int32), 0.0, n_tokens) if config.head_part in span else None
    seconds = [_timed(module, span, x, head) for _ in range(REPEATS + 1)]
    return len(span) * length / statistics.median(seconds[1:])


def _timed(module: SpanModule, span: Span, x: torch.Tensor, head: HeadWork | None) -> float:
    began = time.perf_counter()
    run_span(module, span, x, head)
    return time.perf_counter() - began
