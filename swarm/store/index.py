"""The index of a published checkpoint: which of its files holds which tensor. Read from strangers, so checked first."""

import json
import re

from swarm.errors import ModelFileError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
INDEX_LIMIT = 32 * 1024 * 1024
SHARD_LIMIT = 1000
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}\.safetensors")


def parse_index(data: bytes, where: str) -> dict[str, str]:
    """Tensor name -> file that holds it. Raises ModelFileError."""
    try:
        if len(data) > INDEX_LIMIT:
            raise ValueError(f"larger than {INDEX_LIMIT} bytes")
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{where} is not valid JSON: {error}") from None
    weights = raw.get("weight_map") if isinstance(raw, dict) else None
    if not isinstance(weights, dict) or not weights:
        raise ModelFileError(f"{where} has no weight_map from tensors to files")
    for tensor, file in weights.items():
        if not is_plain(file):
            raise ModelFileError(f"{where}: {tensor[:80]!r} lies in {str(file)[:80]!r}, no plain .safetensors name")
    if len(set(weights.values())) > SHARD_LIMIT:
        raise ModelFileError(f"{where} names over {SHARD_LIMIT} files")
    return weights


def is_plain(file: object) -> bool:
    """A file name without folders, so that nothing is read or written outside the model's own folder."""
    return isinstance(file, str) and _PLAIN.fullmatch(file) is not None
