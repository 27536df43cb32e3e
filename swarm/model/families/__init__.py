"""Registry of model families: a published `config.json` is read by the family that its `model_type` names."""

from collections.abc import Collection
from typing import Any, Protocol

from swarm.errors import ModelFileError
from swarm.model.config import ModelConfig
from swarm.model.families import diffullama, dream, llada
from swarm.model.families.fields import shown


class Family(Protocol):
    def read_config(self, raw: dict[str, Any]) -> ModelConfig: ...

    def tensor_names(self, config: ModelConfig, part: int, published: Collection[str] = ()) -> dict[str, str]:
        """Module parameter name within the part -> published tensor name.

        `published` are the names that the checkpoint's files hold, for families that come in more than one layout.
        """
        ...


FAMILIES: dict[str, Family] = {
    "Dream": dream.Dream(),
    "llada": llada.LLaDA(),
    "llama": diffullama.DiffuLLaMA(),
}


def family_of(raw: dict[str, Any]) -> Family:
    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise ModelFileError(f"config.json: model_type is {shown(model_type)}; glossd can run {known}")
    return FAMILIES[model_type]
