"""Loading a span: memory, seconds, and what a pull reads. A random bfloat16 checkpoint, a hub in this process.

Keys: loads (peak_over_span is the rise of the peak resident size over the bytes of the span, in a fresh process; the
weights are touched, so mapped ones count), pull (read_over_needed: bytes of weights over the wire for two layers over
the bytes of their tensors; descriptions, which are headers, config and index, are given apart).
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from scripts.benches.harness import say
from swarm.ids import Span
from swarm.model.families import family_of
from swarm.model.span import SpanModule
from swarm.store.parts import files_for, plan_file
from swarm.store.published import read_published
from swarm.store.pull import pull_files
from swarm.store.shelf import Shelf
from tests.store.hub import serving

CONFIG: dict[str, object] = {
    "model_type": "llada", "d_model": 2048, "n_heads": 16, "n_layers": 4, "mlp_hidden_size": 6144,
    "vocab_size": 16384, "embedding_size": 16384, "max_sequence_length": 4096, "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "mask_token_id": 2, "eos_token_id": 0, "weight_tying": False,
    "block_type": "llama", "activation_type": "silu", "layer_norm_type": "rms", "rope": True,
}  # fmt: skip
LOADS = (
    ("bfloat16", "none", "0:6"),
    ("float32", "none", "0:6"),
    ("float32", "none", "0:1"),
    ("bfloat16", "int8", "1:5"),
    ("bfloat16", "nf4", "1:5"),
)
CHILD = """
import json, sys, time, torch
from pathlib import Path
from swarm.ids import Span
from swarm.model import quant as quantised
from swarm.model.weights import DTYPES, load_span, open_checkpoint, span_bytes
torch.set_num_threads(1)
dtype, quant, span = DTYPES[sys.argv[2]], sys.argv[3], Span.parse(sys.argv[4])
point = open_checkpoint(Path(sys.argv[1]), "bench")
# What torch and bitsandbytes import at their first use is no matter of the span.
needed = span_bytes(point.config, span, dtype, quant)
if quant != "none":
    quantised._library().int8_vectorwise_quant(torch.ones(64, 64))
    quantised._library().quantize_4bit(torch.ones(64, 64), blocksize=64, quant_type="nf4")
def peak():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
Path("/proc/self/clear_refs").write_text("5")
before, began = peak(), time.perf_counter()
module = load_span(point, span, dtype, quant=quant)
seconds = time.perf_counter() - began
for tensor in [*module.parameters(), *module.buffers()]:
    tensor.view(torch.uint8).view(-1)[::512].sum()
print(json.dumps({"span_bytes": needed, "peak_over_span": round((peak() - before) / needed, 4),
                  "seconds": round(seconds, 2)}))
"""


def write_checkpoint(folder: Path) -> list[tuple[str, ...]]:
    """Two shards with an index. Returns the tensors part by part."""
    family = family_of(CONFIG)
    config = family.read_config(dict(CONFIG))
    noise = torch.randn(config.vocab_size * config.hidden_size, generator=torch.Generator().manual_seed(0))
    noise = noise.mul_(0.02).bfloat16()
    with torch.device("meta"):
        module = SpanModule(config, Span(0, config.n_parts))
    tensors = {
        family.tensor_names(config, part)[ours]: noise[: p.numel()].view(p.shape).clone()
        for part in range(config.n_parts)
        for ours, p in module.parts[str(part)].named_parameters()
    }
    (folder / "config.json").write_text(json.dumps(CONFIG))
    order = sorted(tensors)
    files = {name: f"model-0000{1 + (2 * i >= len(order))}-of-00002.safetensors" for i, name in enumerate(order)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in order if files[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return [tuple(family.tensor_names(config, part).values()) for part in range(config.n_parts)]


def measure_load(folder: Path, dtype: str, quant: str, span: str) -> dict[str, object]:
    command = [sys.executable, "-c", CHILD, str(folder), dtype, quant, span]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {"dtype": dtype, "quant": quant, "span": span, **json.loads(done.stdout)}


def measure_pull(origin: Path, to: Path, names: list[tuple[str, ...]]) -> dict[str, object]:
    span = Span(2, 4)
    with serving(origin) as hub:
        source = hub.source()
        began = time.perf_counter()
        published = read_published(source)
        described = source.bytes_read
        shelf = Shelf(to)
        shelf.describe(published, source.name, source.revision)
        files = [plan_file(published.shards, names, part) for part in files_for(names, span)]
        pull_files(source, shelf, published.shards, files, lambda done, total: None)
        seconds = time.perf_counter() - began
        needed = sum(published.tensors[name][1].size_bytes for part in span for name in names[part])
        return {
            "span": str(span),
            "needed_bytes": needed,
            "described_bytes": described,
            "read_over_needed": round((source.bytes_read - described) / needed, 6),
            "read_over_needed_with_description": round(source.bytes_read / needed, 6),
            "whole_bytes": sum(shard.size_bytes for shard in published.shards.values()),
            "seconds": round(seconds, 2),
        }


def run() -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="glossd-load-") as folder:
        origin = Path(folder) / "origin"
        origin.mkdir()
        say("writing a random checkpoint")
        names = write_checkpoint(origin)
        loads = []
        for case in LOADS:
            say(f"loading {' '.join(case)}")
            loads.append(measure_load(origin, *case))
        say("pulling two layers")
        return {
            "where": "one process each, hub on loopback",
            "loads": loads,
            "worst_peak_over_span": max(float(str(load["peak_over_span"])) for load in loads),
            "pull": measure_pull(origin, Path(folder) / "pulled", names),
        }
