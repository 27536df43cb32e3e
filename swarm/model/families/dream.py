"""Dream (Dream-org/Dream-v0 7B and its kin): Qwen2's layer, grouped-query with biases, logits shifted by one."""

from collections.abc import Collection
from typing import Any

from swarm.model.config import ModelConfig
from swarm.model.families.fields import Fields
from swarm.model.families.llama import Ways, llama_names, read_llama_config


class Dream:
    def read_config(self, raw: dict[str, Any]) -> ModelConfig:
        return read_llama_config(Fields(raw), Ways("dream", qkv_bias=True, logit_shift=True))

    def tensor_names(self, config: ModelConfig, part: int, published: Collection[str] = ()) -> dict[str, str]:
        return llama_names(config, part)
