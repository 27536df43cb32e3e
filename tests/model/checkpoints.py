"""Reads the golden checkpoints and cuts models in spans, for the tests of numerics."""

import itertools
from pathlib import Path

import torch
from safetensors.torch import load_file

from swarm.ids import Span
from swarm.model.span import SpanModule
from swarm.model.weights import Checkpoint, open_checkpoint

GOLDEN = Path(__file__).parents[1] / "golden"


def checkpoint(shape: str, dtype: str) -> Checkpoint:
    return open_checkpoint(GOLDEN / f"{shape}-{dtype}", shape)


def reference(shape: str, dtype: str) -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / f"{shape}-{dtype}" / "ref.safetensors")


def splits(n_parts: int) -> list[list[Span]]:
    """Every way to cut the parts in 1, 2 or 3 spans, and into single parts."""
    cuts = [list(c) for n in (0, 1, 2) for c in itertools.combinations(range(1, n_parts), n)]
    cuts.append(list(range(1, n_parts)))
    return [[Span(a, b) for a, b in itertools.pairwise([0, *cut, n_parts])] for cut in cuts]


@torch.inference_mode()
def dense(modules: list[SpanModule], ids: torch.Tensor) -> torch.Tensor:
    """Logits [rows, length, vocabulary] by running the spans one after the other."""
    x = ids
    for module in modules:
        x = module(x)
    head = modules[-1].head
    assert head is not None
    return head(x)
