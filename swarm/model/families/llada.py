"""LLaDA (GSAI-ML/LLaDA-8B and its kin): an OLMo-style checkpoint with a Llama-style layer.

Switches of that code base that would change the arithmetic are checked, never ignored.
"""

import math
from typing import Any

from swarm.errors import ModelFileError
from swarm.model.config import ModelConfig

_MUST_BE = {
    "block_type": "llama",
    "activation_type": "silu",
    "layer_norm_type": "rms",
    "rope": True,
    "rope_full_precision": True,
    "alibi": False,
    "attention_layer_norm": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "input_emb_norm": False,
    "scale_logits": False,
    "bias_for_layer_norm": False,
}

_LAYER = {
    "attn_norm.weight": "attn_norm",
    "attn.q_proj.weight": "q_proj",
    "attn.k_proj.weight": "k_proj",
    "attn.v_proj.weight": "v_proj",
    "attn.o_proj.weight": "attn_out",
    "mlp_norm.weight": "ff_norm",
    "mlp.gate_proj.weight": "ff_proj",
    "mlp.up_proj.weight": "up_proj",
    "mlp.down_proj.weight": "ff_out",
}


class LLaDA:
    def read_config(self, raw: dict[str, Any]) -> ModelConfig:
        for field, want in _MUST_BE.items():
            if field in raw and raw[field] != want:
                raise ModelFileError(f"config.json: {field} is {raw[field]!r}; glossd runs LLaDA models with {want!r}")
        hidden, heads = _size(raw, "d_model"), _size(raw, "n_heads")
        if hidden % heads:
            raise ModelFileError(f"config.json: d_model {hidden} is not a multiple of n_heads {heads}")
        kv_heads = heads if raw.get("n_kv_heads") is None else _size(raw, "n_kv_heads")
        if heads % kv_heads:
            raise ModelFileError(f"config.json: n_heads {heads} is not a multiple of n_kv_heads {kv_heads}")
        vocab = _size(raw, "vocab_size")
        rows = vocab if raw.get("embedding_size") is None else _size(raw, "embedding_size")
        if rows < vocab:
            raise ModelFileError(f"config.json: embedding_size {rows} is below vocab_size {vocab}")
        return ModelConfig(
            family="llada",
            hidden_size=hidden,
            n_layers=_size(raw, "n_layers"),
            n_heads=heads,
            n_kv_heads=kv_heads,
            intermediate_size=_size(raw, "mlp_hidden_size"),
            vocab_size=rows,
            max_length=_size(raw, "max_sequence_length"),
            norm_eps=_positive(raw, "rms_norm_eps"),
            rope_theta=_positive(raw, "rope_theta"),
            mask_id=_token(raw, "mask_token_id", rows),
            eos_id=_token(raw, "eos_token_id", rows),
            tied_head=raw.get("weight_tying") is True,
        )

    def tensor_names(self, config: ModelConfig, part: int) -> dict[str, str]:
        root = "model.transformer"
        if part == 0:
            return {"table.weight": f"{root}.wte.weight"}
        if part == config.head_part:
            out = "wte" if config.tied_head else "ff_out"
            return {"norm.weight": f"{root}.ln_f.weight", "out.weight": f"{root}.{out}.weight"}
        return {ours: f"{root}.blocks.{part - 1}.{theirs}.weight" for ours, theirs in _LAYER.items()}


def _size(raw: dict[str, Any], field: str) -> int:
    value = raw.get(field)
    if type(value) is not int or not 0 < value < 2**24:
        raise ModelFileError(f"config.json: {field} is {value!r}; it must be a positive whole number")
    return value


def _positive(raw: dict[str, Any], field: str) -> float:
    value = raw.get(field)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ModelFileError(f"config.json: {field} is {value!r}; it must be a positive number")
    return float(value)


def _token(raw: dict[str, Any], field: str, rows: int) -> int:
    value = raw.get(field)
    if type(value) is not int or not 0 <= value < rows:
        raise ModelFileError(f"config.json: {field} is {value!r}; it must be a token id from 0 to {rows - 1}")
    return value
