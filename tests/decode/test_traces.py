"""The reference sampler's outputs, token for token, through decoder and model."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from swarm.decode.decoder import Decoder
from swarm.decode.settings import DecodeSettings
from swarm.ids import Span
from swarm.mixture.rows import ScoreRows
from swarm.model.forward import HeadWork, run_span
from swarm.model.span import SpanModule
from swarm.model.weights import load_span, open_checkpoint

GOLDEN = Path(__file__).parents[1] / "golden"
TRACES = json.loads((GOLDEN / "llada-sampler-traces.json").read_text())


@pytest.fixture(scope="module")
def model() -> SpanModule:
    torch.set_num_threads(1)
    checkpoint = open_checkpoint(GOLDEN / "llada-mha-float32", "llada-mha")
    return load_span(checkpoint, Span(0, checkpoint.config.n_parts), torch.float32)


@pytest.mark.parametrize(
    "trace", TRACES["traces"], ids=lambda t: f"b{t['block_length']}-s{t['steps']}-w{t['cfg_scale']}"
)
def test_reference_trace_is_reproduced(model: SpanModule, trace: dict) -> None:
    config = model.config
    canvas = np.array(trace["prompt"] + [config.mask_id] * trace["gen_length"], dtype=np.int32)
    settings = DecodeSettings(
        block_length=trace["block_length"], steps=trace["steps"], cfg_scale=trace["cfg_scale"], stop_at_eos=False
    )
    decoder = Decoder(canvas, settings, config.mask_id, config.eos_id)
    steps = 0
    while work := decoder.wanted():
        head = HeadWork(work[0].positions, work[0].cfg_scale, config.vocab_size)
        rows = run_span(model, model.span, torch.from_numpy(work[0].ids).long(), head)
        assert isinstance(rows, ScoreRows)
        decoder.apply(work[0].step, rows)
        steps += 1
    assert decoder.canvas.tolist() == trace["output"]
    assert steps == trace["steps"]
