"""LLaDA (GSAI-ML/LLaDA-8B and its kin): an OLMo-style checkpoint with a Llama-style layer.

Switches of that code base that would change the arithmetic are checked, never ignored. iLLaDA is the same layer with
grouped queries and a tied head; checkpoints that use Llama's names for fields or tensors are read by those names.
"""

from collections.abc import Collection
from typing import Any

from swarm.errors import ModelFileError
from swarm.model.config import ModelConfig
from swarm.model.families import fields
from swarm.model.families.fields import Fields, check_heads, check_mask
from swarm.model.families.llama import Ways, llama_names, read_llama_config

_MUST_BE = {
    "block_type": "llama",
    "block_group_size": 1,
    "activation_type": "silu",
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
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

# The first two belong to switches that are off; `mlp_hidden_size` stands in for the ratio; the last picks a kernel.
_WITHOUT_MEANING = ("alibi_bias_max", "attention_layer_norm_with_affine", "mlp_ratio", "flash_attention")

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

_LLAMA_NAMES = ("model.layers.", "model.embed_tokens.", "model.norm.", "lm_head.")


class LLaDA:
    def read_config(self, raw: dict[str, Any]) -> ModelConfig:
        if raw.get("d_model") is None and raw.get("hidden_size") is not None:
            return read_llama_config(Fields(raw), Ways("llada", qkv_bias=False, logit_shift=False))
        return _read_own(Fields(raw))

    def tensor_names(self, config: ModelConfig, part: int, published: Collection[str] = ()) -> dict[str, str]:
        if any(name.startswith(_LLAMA_NAMES) for name in published):
            if any(name.startswith("model.transformer.") for name in published):
                raise ModelFileError(
                    "the checkpoint holds both model.transformer.* and model.layers.* tensors; keep one"
                )
            return llama_names(config, part)
        root = "model.transformer"
        if part == 0:
            return {"table.weight": f"{root}.wte.weight"}
        if part == config.head_part:
            out = "wte" if config.tied_head else "ff_out"
            return {"norm.weight": f"{root}.ln_f.weight", "out.weight": f"{root}.{out}.weight"}
        return {ours: f"{root}.blocks.{part - 1}.{theirs}.weight" for ours, theirs in _LAYER.items()}


def _read_own(raw: Fields) -> ModelConfig:
    hidden = raw.size("d_model", fields.MAX_HIDDEN)
    layers = raw.size("n_layers", fields.MAX_LAYERS)
    heads = raw.size("n_heads", fields.MAX_HEADS)
    one_for_all = raw.flag("multi_query_attention")
    kv_heads = raw.size("n_kv_heads", fields.MAX_HEADS) if raw.has("n_kv_heads") else 1 if one_for_all else heads
    if one_for_all and kv_heads != 1:
        raise ModelFileError(
            f"config.json: multi_query_attention is true but n_kv_heads is {kv_heads}; keep one of them"
        )
    check_heads(("d_model", hidden), ("n_heads", heads), ("n_kv_heads", kv_heads))
    intermediate = raw.size("mlp_hidden_size", fields.MAX_INTERMEDIATE)
    length = raw.size("max_sequence_length", fields.MAX_LENGTH)
    tied = raw.flag("weight_tying")
    vocab = raw.size("vocab_size", fields.MAX_VOCAB)
    rows = raw.size("embedding_size", fields.MAX_VOCAB) if raw.has("embedding_size") else vocab
    if rows < vocab:
        raise ModelFileError(f"config.json: embedding_size {rows} is below vocab_size {vocab}")
    mask, eos = raw.token("mask_token_id", rows), raw.token("eos_token_id", rows)
    check_mask(mask, {"eos_token_id": eos, "pad_token_id": raw.optional("pad_token_id")})
    raw.must_be(_MUST_BE)
    raw.agree(
        {
            "hidden_size": ("d_model", hidden),
            "num_hidden_layers": ("n_layers", layers),
            "num_attention_heads": ("n_heads", heads),
            "num_key_value_heads": ("n_kv_heads", kv_heads),
            "intermediate_size": ("mlp_hidden_size", intermediate),
            "max_position_embeddings": ("max_sequence_length", length),
            "tie_word_embeddings": ("weight_tying", tied),
        }
    )
    config = ModelConfig(
        family="llada",
        hidden_size=hidden,
        n_layers=layers,
        n_heads=heads,
        n_kv_heads=kv_heads,
        intermediate_size=intermediate,
        vocab_size=rows,
        max_length=length,
        norm_eps=raw.positive("rms_norm_eps"),
        rope_theta=raw.positive("rope_theta"),
        mask_id=mask,
        eos_id=eos,
        tied_head=tied,
    )
    raw.ignore(_WITHOUT_MEANING)
    raw.end()
    return config
