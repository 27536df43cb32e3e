"""Read the tensors of a span, and no others, from a folder of safetensors files."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from swarm.errors import ModelFileError
from swarm.ids import ModelId, Span
from swarm.model.config import ModelConfig
from swarm.model.families import Family, family_of
from swarm.model.span import SpanModule
from swarm.model.tokenizer import mask_token_id
from swarm.model.vocabulary import tokenizer_files

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CONFIG_LIMIT = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model folder whose config was read and whose files are known by hash. Weights are read by `load_span`.

    `model_id` hashes config and weights, `tokenizer_id` the tokenizer: peers whose ids differ are never mixed.
    """

    folder: Path
    name: str
    config: ModelConfig
    family: Family
    files: dict[str, Path]
    model_id: ModelId
    tokenizer_id: str


def open_checkpoint(folder: Path, name: str) -> Checkpoint:
    """Raises ModelFileError with one line that names the file."""
    config_path = folder / "config.json"
    raw = _read_json(config_path)
    family = family_of(raw)
    digest = hashlib.sha256()
    if raw.get("mask_token_id") is None and (mask := mask_token_id(folder)) is not None:
        raw["mask_token_id"] = mask
        digest.update(f"mask {mask}\n".encode())
    config = family.read_config(raw)
    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        raise ModelFileError(f"{folder} has no .safetensors file; name a folder with config.json and its weights")
    manifest = folder / "manifest.json"
    recorded = _read_json(manifest) if manifest.exists() else {}
    for path in (config_path, *shards):
        digest.update(f"{path.name}\0{_checked_hash(path, recorded)}\n".encode())
    tokenizer_id = "".join(_checked_hash(path, recorded) for path in tokenizer_files(folder))
    if len(tokenizer_id) != 64:
        tokenizer_id = hashlib.sha256(tokenizer_id.encode()).hexdigest()
    files = {tensor: path for path in shards for tensor in _tensor_names(path)}
    return Checkpoint(folder, name, config, family, files, ModelId(digest.hexdigest()), tokenizer_id)


def load_span(checkpoint: Checkpoint, span: Span, dtype: torch.dtype) -> SpanModule:
    """Build the span's modules without memory, then fill each from its own tensors. Raises ModelFileError."""
    config = checkpoint.config
    with torch.device("meta"):
        module = SpanModule(config, span)
    module.rebuild_tables()
    with ExitStack() as stack:
        open_files: dict[Path, Any] = {}
        for name, published, shape in _wanted(checkpoint, module):
            path = checkpoint.files.get(published)
            if path is None:
                raise ModelFileError(f"{checkpoint.folder} lacks tensor {published}, which parts {span} need")
            if path not in open_files:
                open_files[path] = stack.enter_context(safe_open(path, framework="pt"))
            tensor = open_files[path].get_tensor(published)
            if tensor.shape != shape:
                raise ModelFileError(f"{path}: {published} is {list(tensor.shape)}, config.json wants {list(shape)}")
            _assign(module, name, tensor.to(dtype))
    return module.eval().requires_grad_(False)


def span_bytes(config: ModelConfig, span: Span, dtype: torch.dtype) -> int:
    """Bytes that the weights of `span` take in memory."""
    with torch.device("meta"):
        module = SpanModule(config, span)
    return sum(parameter.numel() for parameter in module.parameters()) * dtype.itemsize


def _wanted(checkpoint: Checkpoint, module: SpanModule) -> Iterator[tuple[str, str, torch.Size]]:
    for part in module.span:
        names = checkpoint.family.tensor_names(checkpoint.config, part, checkpoint.files.keys())
        for ours, parameter in module.parts[str(part)].named_parameters():
            yield f"parts.{part}.{ours}", names[ours], parameter.shape


def _assign(module: SpanModule, name: str, tensor: torch.Tensor) -> None:
    owner, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(owner), leaf, torch.nn.Parameter(tensor, requires_grad=False))


def _tensor_names(path: Path) -> list[str]:
    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise ModelFileError(f"{path} is not a readable safetensors file ({error}); fetch it again") from None


def _checked_hash(path: Path, recorded: dict[str, Any]) -> str:
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror}") from None
    want = recorded.get(path.name)
    if want is not None and want != found:
        raise ModelFileError(f"{path} is corrupt: its sha256 differs from manifest.json; install or fetch it again")
    return found


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror}") from None
    try:
        if len(data) > CONFIG_LIMIT:
            raise ValueError(f"larger than {CONFIG_LIMIT} bytes")
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ModelFileError(f"{path} must hold a JSON object")
    return raw
