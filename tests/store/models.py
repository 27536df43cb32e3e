"""Small random checkpoints in LLaDA's layout, written as strangers publish them."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from swarm.model.families import family_of

LAYERS, HIDDEN, VOCAB = 4, 64, 96


def config(tied: bool = False, layers: int = LAYERS) -> dict[str, object]:
    return {
        "model_type": "llada", "d_model": HIDDEN, "n_heads": 4, "n_layers": layers, "mlp_hidden_size": 128,
        "vocab_size": VOCAB, "embedding_size": VOCAB, "max_sequence_length": 64, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "mask_token_id": 2, "eos_token_id": 0, "weight_tying": tied,
        "block_type": "llama", "activation_type": "silu", "layer_norm_type": "rms", "rope": True,
    }  # fmt: skip


def part_names(raw: dict[str, object]) -> list[tuple[str, ...]]:
    family = family_of(raw)
    shape = family.read_config(dict(raw))
    return [tuple(family.tensor_names(shape, part).values()) for part in range(shape.n_parts)]


def write_checkpoint(folder: Path, shards: int = 2, tied: bool = False, seed: int = 0) -> list[tuple[str, ...]]:
    """float32 weights over `shards` files with an index, or one file without. Returns the names part by part."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = config(tied)
    (folder / "config.json").write_text(json.dumps(raw))
    names = part_names(raw)
    random = np.random.default_rng(seed)
    shapes = {"attn_norm": (HIDDEN,), "ff_norm": (HIDDEN,), "ln_f": (HIDDEN,), "wte": (VOCAB, HIDDEN)}
    shapes |= {"ff_proj": (128, HIDDEN), "up_proj": (128, HIDDEN)}
    tensors = {}
    for name in sorted({name for part in names for name in part}):
        leaf = name.split(".")[-2]
        shape = shapes.get(leaf, (HIDDEN, HIDDEN))
        if leaf == "ff_out":
            shape = (HIDDEN, 128) if "blocks" in name else (VOCAB, HIDDEN)
        tensors[name] = random.standard_normal(shape, dtype=np.float32) * 0.1
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return names
    files = [f"model-{i + 1:05d}-of-{shards:05d}.safetensors" for i in range(shards)]
    where = {name: files[i * shards // len(tensors)] for i, name in enumerate(tensors)}
    for file in files:
        save_file({n: t for n, t in tensors.items() if where[n] == file}, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return names
