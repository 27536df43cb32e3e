"""Write a trained state as a model folder: float16 safetensors in LLaDA's layout, config, tokenizer, manifest.

python -m scripts.train.export --run runs/tiny --to glossd/embedded/gloss-tiny
"""

import argparse
import hashlib
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from scripts.train import tokenizer as tiny_tokenizer
from scripts.train.train import Checkpoint, shape
from swarm.model.config import ModelConfig
from swarm.model.families import FAMILIES


def config_json(config: ModelConfig) -> dict[str, object]:
    return {
        "model_type": "llada",
        "architectures": ["LLaDAModelLM"],
        "activation_type": "silu",
        "alibi": False,
        "attention_layer_norm": False,
        "bias_for_layer_norm": False,
        "block_type": "llama",
        "d_model": config.hidden_size,
        "embedding_size": config.vocab_size,
        "eos_token_id": config.eos_id,
        "include_bias": False,
        "include_qkv_bias": False,
        "input_emb_norm": False,
        "layer_norm_type": "rms",
        "mask_token_id": config.mask_id,
        "max_sequence_length": config.max_length,
        "mlp_hidden_size": config.intermediate_size,
        "n_heads": config.n_heads,
        "n_kv_heads": config.n_kv_heads,
        "n_layers": config.n_layers,
        "pad_token_id": config.eos_id,
        "rms_norm_eps": config.norm_eps,
        "rope": True,
        "rope_full_precision": True,
        "rope_theta": config.rope_theta,
        "scale_logits": False,
        "torch_dtype": "float16",
        "vocab_size": config.vocab_size,
        "weight_tying": config.tied_head,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--to", type=Path, required=True)
    args = parser.parse_args()
    step, state = Checkpoint(args.run).load()
    tokenizer = tiny_tokenizer.write(args.to)
    config = shape(tokenizer.token_to_id(tiny_tokenizer.MASK), tokenizer.token_to_id(tiny_tokenizer.EOS))
    family = FAMILIES[config.family]
    tensors = {
        published: state[f"averaged.parts.{part}.{ours}"].to(torch.float16).contiguous()
        for part in range(config.n_parts)
        for ours, published in family.tensor_names(config, part).items()
    }
    save_file(tensors, args.to / "model.safetensors")
    (args.to / "config.json").write_text(json.dumps(config_json(config), indent=2) + "\n")
    names = ("config.json", "model.safetensors", "tokenizer.json")
    manifest = {name: hashlib.sha256((args.to / name).read_bytes()).hexdigest() for name in names}
    (args.to / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    print(f"step {step}: {sum(t.numel() for t in tensors.values())} parameters in {args.to}")


if __name__ == "__main__":
    main()
