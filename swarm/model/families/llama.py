"""What Llama-shaped checkpoints share: the names of their config fields and of their tensors.

Dream (Qwen2) and DiffuLLaMA (Llama) are read through it, and LLaDA checkpoints that use these names.
"""

from dataclasses import dataclass

from swarm.errors import ModelFileError
from swarm.model.config import ModelConfig
from swarm.model.families import fields
from swarm.model.families.fields import Fields, check_heads, check_mask, positive, shown

_MUST_BE = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
    "pretraining_tp": 1,
    "partial_rotary_factor": 1.0,
}

# Read when a sliding window is on, which `use_sliding_window` refuses.
_WITHOUT_MEANING = ("sliding_window", "max_window_layers")

_LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn.q_proj.weight": "self_attn.q_proj.weight",
    "attn.k_proj.weight": "self_attn.k_proj.weight",
    "attn.v_proj.weight": "self_attn.v_proj.weight",
    "attn.o_proj.weight": "self_attn.o_proj.weight",
    "mlp_norm.weight": "post_attention_layernorm.weight",
    "mlp.gate_proj.weight": "mlp.gate_proj.weight",
    "mlp.up_proj.weight": "mlp.up_proj.weight",
    "mlp.down_proj.weight": "mlp.down_proj.weight",
}
_BIASES = {f"attn.{name}_proj.bias": f"self_attn.{name}_proj.bias" for name in "qkv"}


@dataclass(frozen=True, slots=True)
class Ways:
    """How a family differs from the others; see ModelConfig."""

    family: str
    qkv_bias: bool
    logit_shift: bool


def read_llama_config(raw: Fields, ways: Ways) -> ModelConfig:
    hidden = raw.size("hidden_size", fields.MAX_HIDDEN)
    heads = raw.size("num_attention_heads", fields.MAX_HEADS)
    kv_field = "num_key_value_heads"
    kv_heads = raw.size(kv_field, fields.MAX_HEADS) if raw.has(kv_field) else heads
    check_heads(("hidden_size", hidden), ("num_attention_heads", heads), (kv_field, kv_heads))
    raw.must_be(_MUST_BE)
    raw.agree({"head_dim": ("hidden_size / num_attention_heads", hidden // heads)})
    vocab = raw.size("vocab_size", fields.MAX_VOCAB)
    mask = raw.token("mask_token_id", vocab)
    eos = raw.token("eos_token_id", vocab)
    named = {field: raw.optional(field) for field in ("bos_token_id", "pad_token_id")}
    check_mask(mask, {"eos_token_id": eos, **named})
    config = ModelConfig(
        family=ways.family,
        hidden_size=hidden,
        n_layers=raw.size("num_hidden_layers", fields.MAX_LAYERS),
        n_heads=heads,
        n_kv_heads=kv_heads,
        intermediate_size=raw.size("intermediate_size", fields.MAX_INTERMEDIATE),
        vocab_size=vocab,
        max_length=raw.size("max_position_embeddings", fields.MAX_LENGTH),
        norm_eps=raw.positive("rms_norm_eps"),
        rope_theta=_rope_theta(raw),
        mask_id=mask,
        eos_id=eos,
        tied_head=raw.flag("tie_word_embeddings"),
        qkv_bias=ways.qkv_bias,
        rotates_in_weight_dtype=True,
        logit_shift=ways.logit_shift,
    )
    if raw.has("use_sliding_window"):
        raw.ignore(_WITHOUT_MEANING)
    raw.end()
    return config


def llama_names(config: ModelConfig, part: int) -> dict[str, str]:
    if part == 0:
        return {"table.weight": "model.embed_tokens.weight"}
    if part == config.head_part:
        out = "model.embed_tokens.weight" if config.tied_head else "lm_head.weight"
        return {"norm.weight": "model.norm.weight", "out.weight": out}
    layer = _LAYER | _BIASES if config.qkv_bias else _LAYER
    return {ours: f"model.layers.{part - 1}.{theirs}" for ours, theirs in layer.items()}


def _rope_theta(raw: Fields) -> float:
    """`rope_theta`, or `rope_parameters` as newer versions of transformers write it. No scaling of any kind."""
    scaling = raw.optional("rope_scaling")
    parameters = raw.optional("rope_parameters")
    for field, value in (("rope_scaling", scaling), ("rope_parameters", parameters)):
        if value is not None and not _is_plain(value):
            raise ModelFileError(f"config.json: {field} is {shown(value)}; glossd runs models without rotary scaling")
    inner = parameters.get("rope_theta") if isinstance(parameters, dict) else None
    if inner is None:
        return raw.positive("rope_theta")
    theta = positive("rope_parameters.rope_theta", inner)
    raw.agree({"rope_theta": ("rope_parameters", theta)})
    return theta


def _is_plain(rope: object) -> bool:
    return (
        isinstance(rope, dict)
        and rope.keys() <= {"rope_theta", "rope_type", "type"}
        and all(rope.get(kind) in (None, "default") for kind in ("rope_type", "type"))
    )
