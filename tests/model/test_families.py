"""Families against the public modules of `transformers`, and what a config.json may and may not say."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel

from swarm.errors import ModelFileError
from swarm.ids import Span
from swarm.model.families import FAMILIES, family_of
from swarm.model.layers import rope_tables
from swarm.model.span import TABLE_LENGTH, SpanModule
from swarm.model.weights import load_span, open_checkpoint
from tests.model.checkpoints import GOLDEN, dense, splits

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 120,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "rope_scaling": None,
    "pretraining_tp": 1,
    "initializer_range": 0.02,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "mask_token_id": 81,
    "tie_word_embeddings": False,
}
DREAM = LLAMA | {"model_type": "Dream", "num_key_value_heads": 2, "rope_theta": 1e6}
LLADA: dict[str, Any] = json.loads((GOLDEN / "llada-mha-float32" / "config.json").read_text())


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


def published(raw: dict[str, Any], dtype: torch.dtype) -> Any:
    """The public module of this shape with random weights, biases and norms included."""
    import transformers

    name = "Qwen2" if raw["model_type"] == "Dream" else "Llama"
    ours = ("model_type", "mask_token_id", "rope_theta", "rope_scaling")
    shape = {key: value for key, value in raw.items() if key not in ours}
    config = getattr(transformers, f"{name}Config")(
        **shape, rope_parameters={"rope_type": "default", "rope_theta": raw["rope_theta"]}, attn_implementation="sdpa"
    )
    torch.manual_seed(5)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.ndim == 1), std=0.2)
    frequencies = model.model.rotary_emb.inv_freq.clone()
    model = model.to(dtype)
    # Loading a checkpoint leaves these in float32, as a cast of the whole module does not.
    model.model.rotary_emb.inv_freq = frequencies
    return model


def written(folder: Path, model: Any, raw: dict[str, Any]) -> Path:
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("raw", [LLAMA, LLAMA | {"num_key_value_heads": 1}, DREAM], ids=["llama", "grouped", "dream"])
@torch.inference_mode()
def test_float32_logits_and_hidden_states_equal_the_public_module(tmp_path: Path, raw: dict[str, Any]) -> None:
    model = published(raw, torch.float32)
    point = open_checkpoint(written(tmp_path, model, raw), "tiny")
    ids = torch.randint(0, 120, (2, 40), generator=torch.Generator().manual_seed(3))
    want = model(ids, attention_mask=torch.zeros(2, 1, 40, 40), output_hidden_states=True)
    module = load_span(point, Span(0, point.config.n_parts), torch.float32)
    x = module.run(ids, Span(0, 1))
    for layer in range(point.config.n_layers):
        torch.testing.assert_close(x, want.hidden_states[layer], atol=1e-5, rtol=0)
        x = module.run(x, Span(layer + 1, layer + 2))
    whole = dense([module], ids)
    torch.testing.assert_close(whole, want.logits, atol=1e-5, rtol=0)
    for split in splits(point.config.n_parts):
        assert torch.equal(dense([load_span(point, span, torch.float32) for span in split], ids), whole), split


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("raw", [LLAMA, DREAM], ids=["llama", "dream"])
@torch.inference_mode()
def test_bfloat16_logits_stay_within_two_units_of_the_public_module(tmp_path: Path, raw: dict[str, Any]) -> None:
    model = published(raw, torch.bfloat16)
    point = open_checkpoint(written(tmp_path, model, raw), "tiny")
    ids = torch.randint(0, 120, (1, 40), generator=torch.Generator().manual_seed(3))
    for layer in model.model.layers:
        # Without a mask argument both sides take the same attention kernel.
        layer.self_attn.is_causal = False
    want = model(ids).logits.float()
    logits = dense([load_span(point, Span(0, point.config.n_parts), torch.bfloat16)], ids).float()
    unit = 2.0 ** (torch.floor(torch.log2(want.abs().max())).item() - 7)
    assert (logits - want).abs().max().item() <= 2 * unit


@torch.inference_mode()
def test_a_llada_checkpoint_with_llama_names_gives_the_same_bits(tmp_path: Path) -> None:
    source = GOLDEN / "llada-gqa-tied-float32"
    plain = open_checkpoint(source, "tiny")
    tensors = load_file(source / "model.safetensors")
    llama_style = {"model.layers.0.any": "Llama's names"}
    renamed = {}
    for part in range(plain.config.n_parts):
        own = plain.family.tensor_names(plain.config, part)
        other = plain.family.tensor_names(plain.config, part, llama_style)
        renamed |= {other[ours]: tensors[own[ours]].clone() for ours in own}
    assert "model.layers.0.self_attn.q_proj.weight" in renamed
    assert "lm_head.weight" not in renamed
    save_file(renamed, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    other_point = open_checkpoint(tmp_path, "tiny")
    ids = load_file(source / "ref.safetensors")["input_ids"]
    span = Span(0, plain.config.n_parts)
    mine, theirs = (load_span(p, span, torch.float32) for p in (plain, other_point))
    assert torch.equal(dense([mine], ids), dense([theirs], ids))


def test_two_layouts_in_one_checkpoint_are_refused() -> None:
    family = family_of(LLADA)
    with pytest.raises(ModelFileError, match="keep one"):
        family.tensor_names(family.read_config(LLADA), 1, ["model.layers.0.x", "model.transformer.blocks.0.x"])


def test_a_llada_config_with_llama_fields_is_read() -> None:
    raw = LLAMA | {"model_type": "llada", "num_key_value_heads": 1, "tie_word_embeddings": True}
    config = family_of(raw).read_config(raw)
    assert (config.family, config.n_kv_heads, config.tied_head, config.logit_shift) == ("llada", 1, True, False)


def test_a_llama_without_a_mask_token_is_refused(tmp_path: Path) -> None:
    raw = {key: value for key, value in LLAMA.items() if key != "mask_token_id"}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ModelFileError, match="mask_token_id"):
        open_checkpoint(tmp_path, "tiny")


def test_the_mask_token_may_stand_in_the_tokenizers_config(tmp_path: Path) -> None:
    raw = {key: value for key, value in LLAMA.items() if key != "mask_token_id"}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    words = Tokenizer(WordLevel({"a": 0, "b": 7, "c": 8, "d": 9}))
    words.add_special_tokens([AddedToken("<hole>", special=True)])
    words.save(str(tmp_path / "tokenizer.json"))
    ids = {}
    for name, token in (("b", "b"), ("hole", {"content": "<hole>"})):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"mask_token": token}))
        point = open_checkpoint(tmp_path, "tiny")
        ids[name] = (point.config.mask_id, point.model_id)
    assert ids["b"][0] == 7
    assert ids["hole"][0] == words.token_to_id("<hole>")
    assert ids["b"][1] != ids["hole"][1], "another mask is another model"


BAD: list[tuple[dict[str, Any], str]] = [
    (LLAMA | {"hidden_size": 63}, "hidden_size"),
    (LLAMA | {"hidden_size": None}, "hidden_size"),
    (LLAMA | {"hidden_size": 2**40}, "hidden_size"),
    (LLAMA | {"hidden_size": 64.0}, "hidden_size"),
    (LLAMA | {"num_hidden_layers": 10**9}, "num_hidden_layers"),
    (LLAMA | {"vocab_size": 10**12}, "vocab_size"),
    (LLAMA | {"max_position_embeddings": 10**12}, "max_position_embeddings"),
    (LLAMA | {"num_key_value_heads": 3}, "num_key_value_heads"),
    (LLAMA | {"head_dim": 32}, "head_dim"),
    (LLAMA | {"hidden_act": "gelu"}, "hidden_act"),
    (LLAMA | {"attention_bias": True}, "attention_bias"),
    (LLAMA | {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling"),
    (LLAMA | {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_parameters"),
    (LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 2e4}}, "rope_theta"),
    (LLAMA | {"rope_theta": 0}, "rope_theta"),
    (LLAMA | {"rms_norm_eps": float("nan")}, "rms_norm_eps"),
    (LLAMA | {"rms_norm_eps": True}, "rms_norm_eps"),
    (LLAMA | {"mask_token_id": 2}, "mask_token_id"),
    (LLAMA | {"mask_token_id": 120}, "mask_token_id"),
    (LLAMA | {"eos_token_id": -1}, "eos_token_id"),
    (LLAMA | {"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    (LLAMA | {"quantization_config": {"bits": 4}}, "quantization_config"),
    (LLAMA | {"num_experts": 8}, "num_experts"),
    (LLAMA | {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    (LLAMA | {"sliding_window": 4096}, "sliding_window"),
    (DREAM | {"use_sliding_window": True}, "use_sliding_window"),
    (LLADA | {"block_type": "sequential"}, "block_type"),
    (LLADA | {"rope": 1}, "rope"),
    (LLADA | {"hidden_size": 128}, "hidden_size"),
    (LLADA | {"tie_word_embeddings": True}, "tie_word_embeddings"),
    (LLADA | {"multi_query_attention": True}, "multi_query_attention"),
    (LLADA | {"embedding_size": 100}, "embedding_size"),
    (LLADA | {"pad_token_id": 500}, "pad_token_id"),
    (LLADA | {"clip_qkv": 8.0}, "clip_qkv"),
    ({"model_type": "gpt2"}, "model_type"),
    ({"model_type": ["llada"]}, "model_type"),
]


@pytest.mark.parametrize(("raw", "field"), BAD, ids=[f"{raw['model_type']}-{field}" for raw, field in BAD])
def test_a_config_that_cannot_be_run_faithfully_names_the_field(raw: dict[str, Any], field: str) -> None:
    with pytest.raises(ModelFileError, match=field):
        family_of(raw).read_config(raw)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), raw=st.sampled_from([LLAMA, DREAM, LLADA]), value=JSON)
def test_whatever_a_field_holds_the_answer_is_a_shape_or_one_clear_error(
    data: st.DataObject, raw: dict[str, Any], value: Any
) -> None:
    field = data.draw(st.sampled_from([*raw, "rope_parameters", "head_dim", "num_experts"]))
    wrapped = data.draw(st.sampled_from([value, {"rope_type": value}, {"rope_theta": value}, [value]]))
    changed = raw | {field: wrapped}
    try:
        config = family_of(changed).read_config(changed)
    except ModelFileError as error:
        assert "config.json" in str(error)
        assert len(str(error)) < 400
        return
    assert config.hidden_size % config.n_heads == config.n_heads % config.n_kv_heads == 0
    assert 0 <= config.mask_id < config.vocab_size


@pytest.mark.parametrize("raw", [LLAMA, DREAM, LLADA], ids=["llama", "dream", "llada"])
def test_fields_without_a_say_are_ignored(raw: dict[str, Any]) -> None:
    extra = {
        "transformers_version": "4.46.2",
        "attention_dropout": 0.1,
        "use_cache": True,
        "torch_dtype": "bfloat16",
        "auto_map": {"AutoModel": "modeling.Model"},
        "some_new_attention_switch": False,
    }
    assert family_of(raw).read_config(raw | extra) == family_of(raw).read_config(raw)


def test_newer_transformers_write_the_rotary_base_elsewhere() -> None:
    raw = {k: v for k, v in DREAM.items() if k != "rope_theta"}
    raw["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e6}
    assert family_of(raw).read_config(raw) == family_of(DREAM).read_config(DREAM)


def test_published_shapes_are_accepted_and_sized() -> None:
    """The parameters of one layer of iLLaDA, Dream and DiffuLLaMA."""
    illada = LLADA | {
        "d_model": 4096, "n_heads": 32, "n_kv_heads": 8, "mlp_hidden_size": 14336, "vocab_size": 155136,
        "embedding_size": 155136, "mask_token_id": 5, "eos_token_id": 1, "weight_tying": True,
    }  # fmt: skip
    dream = DREAM | {
        "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944,
        "max_position_embeddings": 131072, "use_sliding_window": False, "sliding_window": 131072,
    }  # fmt: skip
    llama = LLAMA | {
        "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 32, "intermediate_size": 11008,
    }  # fmt: skip
    for raw, want in ((illada, 218_112_000), (dream, 233_057_792), (llama, 202_383_360)):
        config = family_of(raw).read_config(raw)
        with torch.device("meta"):
            module = SpanModule(config, Span(1, 2))
        assert sum(p.numel() for p in module.parameters()) == want
        assert module.table_length <= TABLE_LENGTH


def test_rotary_tables_grow_without_changing() -> None:
    config = family_of(DREAM).read_config(DREAM | {"max_position_embeddings": 3 * TABLE_LENGTH})
    module = SpanModule(config, Span(1, 2))
    cos, sin = (t[:, 0] for t in module.tables(torch.arange(2 * TABLE_LENGTH + 5), torch.float32))
    want = rope_tables(3 * TABLE_LENGTH, config.head_dim, config.rope_theta)
    assert torch.equal(cos, want[0][: len(cos)])
    assert torch.equal(sin, want[1][: len(sin)])
    short = rope_tables(100, config.head_dim, config.rope_theta)
    assert torch.equal(short[0], cos[:100])


def test_every_family_names_every_parameter() -> None:
    for raw in (LLAMA, DREAM, LLADA):
        config = family_of(raw).read_config(raw)
        with torch.device("meta"):
            module = SpanModule(config, Span(0, config.n_parts))
        for part, child in module.parts.items():
            names = FAMILIES[raw["model_type"]].tensor_names(config, int(part))
            assert names.keys() == {name for name, _ in child.named_parameters()}
