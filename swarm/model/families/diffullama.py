"""DiffuLLaMA (diffusionfamily/diffullama): Llama 2 turned into a masked-diffusion model, logits shifted by one.

Its config says `model_type: llama`, as any Llama's does. What tells it apart is a mask token: `mask_token_id` in
config.json, or the `mask_token` of tokenizer_config.json, whose id the caller fills in. The mask is a token of the
ordinary vocabulary. The published sampler leaves position 0 as given: the begin token stands there and is never open.
"""

from collections.abc import Collection
from typing import Any

from swarm.errors import ModelFileError
from swarm.model.config import ModelConfig
from swarm.model.families.fields import Fields
from swarm.model.families.llama import Ways, llama_names, read_llama_config


class DiffuLLaMA:
    def read_config(self, raw: dict[str, Any]) -> ModelConfig:
        if raw.get("mask_token_id") is None:
            raise ModelFileError(
                "config.json: mask_token_id is missing; a Llama checkpoint is run as DiffuLLaMA, which names its mask "
                "token there or as mask_token in tokenizer_config.json"
            )
        return read_llama_config(Fields(raw), Ways("diffullama", qkv_bias=False, logit_shift=True))

    def tensor_names(self, config: ModelConfig, part: int, published: Collection[str] = ()) -> dict[str, str]:
        return llama_names(config, part)
