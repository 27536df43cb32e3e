"""Open a model folder, whole or pulled in part, and read the tensors of a span and no others."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from swarm.errors import ModelFileError
from swarm.ids import ModelId, Span
from swarm.model.config import ModelConfig
from swarm.model.devices import DeviceMap, attach_hooks, device_of, only_device, several_gpus, spread_parts
from swarm.model.families import Family, family_of
from swarm.model.quant import read_quantised
from swarm.model.reading import read_tensor
from swarm.model.span import SpanModule
from swarm.model.tokenizer import mask_token_id
from swarm.model.vocabulary import tokenizer_files
from swarm.store.index import INDEX, INDEX_LIMIT, PICKLES, SINGLE, parse_index
from swarm.store.parts import runs
from swarm.store.published import CONFIG, model_identity
from swarm.store.safetensors_file import TensorSpec, read_header
from swarm.store.shelf import Placed, Shelf, file_sha256, read_manifest
from swarm.store.sizes import QuantName, weights_bytes

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CONFIG_LIMIT = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model folder whose config was read and whose files are known by hash. Weights are read by `load_span`.

    `model_id` hashes config and published weights, `tokenizer_id` the tokenizer: peers whose ids differ are never
    mixed. `tensors` are those that lie here, `published` all that the model has; they differ where parts were pulled.
    """

    folder: Path
    name: str
    config: ModelConfig
    family: Family
    tensors: dict[str, Placed]
    published: dict[str, TensorSpec]
    model_id: ModelId
    tokenizer_id: str

    @property
    def auto_dtype(self) -> str:
        """What `--dtype auto` means, the same on every node: the published bfloat16, else float32."""
        count = Counter(spec.dtype for spec in self.published.values() if len(spec.shape) == 2)
        return "bfloat16" if count and count.most_common(1)[0][0] == "BF16" else "float32"

    @property
    def held(self) -> list[Span]:
        """The parts whose weights lie here, as spans."""
        return runs(
            part for part in range(self.config.n_parts) if self.tensors.keys() >= set(self.names(part).values())
        )

    def names(self, part: int) -> dict[str, str]:
        """Module parameter name within the part -> published tensor name."""
        return self.family.tensor_names(self.config, part, self.published.keys())


def open_checkpoint(folder: Path, name: str) -> Checkpoint:
    """Raises ModelFileError with one line that names the file."""
    raw = _read_json(folder / CONFIG)
    family = family_of(raw)
    mask = mask_token_id(folder) if raw.get("mask_token_id") is None else None
    if mask is not None:
        raw["mask_token_id"] = mask
    config = family.read_config(raw)
    recorded = read_manifest(folder)
    config_hash = _checked_hash(folder / CONFIG, recorded)
    shelf = Shelf(folder)
    if shelf.exists:
        identity, tensors = shelf.identity(), shelf.tensors()
        published = {name: spec for shard in shelf.shards().values() for name, spec in shard.tensors.items()}
    else:
        paths = _shard_paths(folder)
        tensors = {name: Placed(path, spec) for path in paths for name, spec in read_header(path).items()}
        published = {name: placed.spec for name, placed in tensors.items()}
        identity = model_identity(config_hash, {path.name: _checked_hash(path, recorded) for path in paths})
    if mask is not None:
        identity = ModelId(hashlib.sha256(f"{identity} mask {mask}".encode()).hexdigest())
    tokenizer_id = "".join(_checked_hash(path, recorded) for path in tokenizer_files(folder))
    if len(tokenizer_id) != 64:
        tokenizer_id = hashlib.sha256(tokenizer_id.encode()).hexdigest()
    return Checkpoint(folder, name, config, family, tensors, published, identity, tokenizer_id)


def load_span(
    checkpoint: Checkpoint,
    span: Span,
    dtype: torch.dtype,
    *,
    quant: QuantName = "none",
    device: torch.device | None = None,
    device_map: DeviceMap = "none",
) -> SpanModule:
    """Build the span's modules without memory, then fill each from its own tensors.

    Weights become `dtype`, the layers' matrices `quant`; without `device` they go to the first GPU, if there is one.
    `device_map="auto"` spreads them where there are several. Raises ModelFileError, BadSpan, StartError.
    """
    _check_held(checkpoint, span)
    _check_hashes(checkpoint, span)
    with torch.device("meta"):
        module = SpanModule(checkpoint.config, span)
    module.rebuild_tables()
    wanted = list(_wanted(checkpoint, module))
    for _, published, shape in wanted:
        placed = checkpoint.tensors[published]
        if placed.spec.shape != shape:
            raise ModelFileError(
                f"{placed.path}: {published} is {list(placed.spec.shape)}, the config wants {list(shape)}"
            )
    spread = device_map == "auto" and device is None and several_gpus()
    places = spread_parts(module, dtype) if spread else {"": device or only_device()}
    shared: dict[str, nn.Parameter] = {}
    for name, published, _ in wanted:
        owner, _, leaf = name.rpartition(".")
        placed, target = checkpoint.tensors[published], device_of(places, owner)
        parent = module.get_submodule(owner)
        if quant != "none" and isinstance(parent, nn.Linear) and leaf == "weight" and _in_layer(checkpoint, name):
            above, _, own = owner.rpartition(".")
            setattr(module.get_submodule(above), own, read_quantised(placed, quant, parent, target))
            continue
        key = f"{published} {target}"
        if key not in shared:
            shared[key] = nn.Parameter(read_tensor(placed, dtype, target), requires_grad=False)
        setattr(parent, leaf, shared[key])
    if spread:
        attach_hooks(module, places)
    return module.eval().requires_grad_(False)


def span_bytes(config: ModelConfig, span: Span, dtype: torch.dtype, quant: QuantName = "none") -> int:
    """Bytes that the weights of `span` take in memory."""
    with torch.device("meta"):
        module = SpanModule(config, span)
    shapes = [
        (tuple(parameter.shape), part not in (0, config.head_part))
        for part in span
        for name, parameter in module.parts[str(part)].named_parameters()
        if not (config.tied_head and part == config.head_part and 0 in span and name == "out.weight")
    ]
    return weights_bytes(shapes, str(dtype).removeprefix("torch."), quant)


def _check_held(checkpoint: Checkpoint, span: Span) -> None:
    span.check_within(checkpoint.config.n_parts)
    for part in span:
        for name in checkpoint.names(part).values():
            if name in checkpoint.tensors:
                continue
            if name in checkpoint.published:
                held = ", ".join(map(str, checkpoint.held)) or "none"
                raise ModelFileError(
                    f"part {part} of {checkpoint.name} was not pulled (held: {held}); "
                    f"run `glossd pull {checkpoint.name} --parts {span}`"
                )
            raise ModelFileError(f"{checkpoint.folder} lacks tensor {name}, which part {part} needs")


def _check_hashes(checkpoint: Checkpoint, span: Span) -> None:
    """What was pulled is hashed again before it is used; wrong files are set aside. Whole folders were when opened."""
    shelf = Shelf(checkpoint.folder)
    if not shelf.exists:
        return
    manifest = shelf.manifest()
    for path in sorted({checkpoint.tensors[name].path for part in span for name in checkpoint.names(part).values()}):
        if file_sha256(path) != manifest.get(path.name):
            shelf.quarantine(path.name)
            raise ModelFileError(
                f"{path} is corrupt and set aside as {path.name}.corrupt; "
                f"run `glossd pull {checkpoint.name} --parts {span}` again"
            )


def _wanted(checkpoint: Checkpoint, module: SpanModule) -> Iterator[tuple[str, str, torch.Size]]:
    for part in module.span:
        names = checkpoint.names(part)
        for ours, parameter in module.parts[str(part)].named_parameters():
            yield f"parts.{part}.{ours}", names[ours], parameter.shape


def _in_layer(checkpoint: Checkpoint, name: str) -> bool:
    return name.split(".")[1] not in ("0", str(checkpoint.config.head_part))


def _shard_paths(folder: Path) -> list[Path]:
    index = folder / INDEX
    if index.exists():
        files = set(parse_index(_read(index, INDEX_LIMIT), str(index)).values())
        return [folder / file for file in sorted(files)]
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    if any((folder / name).exists() for name in PICKLES):
        raise ModelFileError(
            f"{folder} has pickled weights (.bin) only, which can run code; convert them to safetensors"
        )
    raise ModelFileError(f"{folder} has neither {SINGLE} nor {INDEX}; name a folder with config.json and its weights")


def _checked_hash(path: Path, recorded: dict[str, str]) -> str:
    found = file_sha256(path)
    want = recorded.get(path.name)
    if want is not None and want != found:
        raise ModelFileError(f"{path} is corrupt: its sha256 differs from manifest.json; install or fetch it again")
    return found


def _read(path: Path, limit: int) -> bytes:
    try:
        if path.stat().st_size > limit:
            raise ModelFileError(f"{path} is larger than {limit} bytes")
        return path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror}") from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(_read(path, CONFIG_LIMIT))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ModelFileError(f"{path} must hold a JSON object")
    return raw
