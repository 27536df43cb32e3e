"""Where the parts of a span go: one device without hooks, or spread over several GPUs through accelerate."""

from typing import Literal

import torch

from swarm.errors import StartError
from swarm.model.span import SpanModule

DeviceMap = Literal["none", "auto"]


def only_device() -> torch.device:
    """The first GPU, or the CPU where there is none."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def spread_parts(
    module: SpanModule, dtype: torch.dtype, memory: dict[int | str, int] | None = None
) -> dict[str, torch.device]:
    """Device of each submodule of a span that has no weights yet; parts that exceed the GPUs stay in CPU memory.

    `memory` is bytes by GPU number or "cpu", by default what is free. Raises StartError when it does not fit.
    """
    from accelerate import infer_auto_device_map  # type: ignore[import-untyped]

    whole = sorted({type(part).__name__ for part in module.parts.values()})
    places = infer_auto_device_map(module, max_memory=memory, no_split_module_classes=whole, dtype=dtype)
    if "disk" in places.values():
        raise StartError(f"parts {module.span} exceed the memory of all devices; host fewer with --layers")
    return {name: torch.device(place) for name, place in places.items()}


def device_of(places: dict[str, torch.device], name: str) -> torch.device:
    """`places` names modules; "" stands for all of them."""
    while name not in places and name:
        name = name.rpartition(".")[0]
    return places[name]


def attach_hooks(module: SpanModule, places: dict[str, torch.device]) -> None:
    """Let accelerate move inputs from part to part. The weights must lie where `places` says."""
    from accelerate import dispatch_model

    named = {name: device.index if device.type == "cuda" else str(device) for name, device in places.items()}
    dispatch_model(module, device_map=named, skip_keys=None)


def several_gpus() -> bool:
    return torch.cuda.device_count() > 1
