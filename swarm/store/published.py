"""What a published checkpoint consists of: config, shards by size and hash, and where each tensor lies in them.

Read once from a source before anything is fetched. Two nodes that pull other parts of one checkpoint read the same
description, so that they agree on its identity.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from swarm.errors import FetchFailed, ModelFileError
from swarm.ids import ModelId
from swarm.store.index import INDEX, INDEX_LIMIT, PICKLES, SINGLE, parse_index
from swarm.store.safetensors_file import LENGTH_BYTES, TensorSpec, header_end, parse_header
from swarm.store.source import Source, read_small

CONFIG = "config.json"
SMALL_LIMIT = 64 * 1024 * 1024
COMPANIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
    "LICENSE",
)
"""Small files that are kept beside the weights when a checkpoint has them."""


@dataclass(frozen=True, slots=True)
class Shard:
    """`header` is the file's beginning up to its data; `sha256` is of the whole file."""

    size_bytes: int
    sha256: str
    header: bytes
    tensors: dict[str, TensorSpec]


@dataclass(frozen=True, slots=True)
class Published:
    """`files` are config.json and its companions, whole."""

    files: dict[str, bytes]
    shards: dict[str, Shard]

    @property
    def tensors(self) -> dict[str, tuple[str, TensorSpec]]:
        """Tensor name -> its shard and where in it."""
        return {
            name: (file, spec) for file, shard in self.shards.items() for name, spec in shard.tensors.items()
        }  # fmt: skip


def model_identity(config_sha256: str, shards: Mapping[str, str]) -> ModelId:
    """`shards` maps file names to the sha256 of the published file. Says the same whichever parts a node holds."""
    digest = hashlib.sha256(f"{CONFIG}\0{config_sha256}\n".encode())
    for file, sha256 in sorted(shards.items()):
        digest.update(f"{file}\0{sha256}\n".encode())
    return ModelId(digest.hexdigest())


def shard_from_header(data: bytes, size_bytes: int, sha256: str, where: str) -> Shard:
    """`data` is the file's beginning up to its data. Raises ModelFileError."""
    if header_end(data[:LENGTH_BYTES], size_bytes, where) != len(data):
        raise ModelFileError(f"{where} is cut short; pull the model again")
    return Shard(size_bytes, sha256, data, parse_header(data[LENGTH_BYTES:], size_bytes, where))


def read_published(source: Source) -> Published:
    """Fetch config, companions, index and shard headers. Raises FetchFailed, ModelFileError."""
    config = read_small(source, CONFIG, SMALL_LIMIT)
    if config is None:
        raise FetchFailed(f"{source.name} has no {CONFIG}; name a model repository or folder")
    files = {CONFIG: config}
    index = _read_index(source)
    for name in COMPANIONS:
        data = read_small(source, name, SMALL_LIMIT)
        if data is not None:
            files[name] = data
    shards = {file: _read_shard(source, file) for file in sorted(set(index.values()) or {SINGLE})}
    found = {name: file for file, shard in shards.items() for name in shard.tensors}
    if sum(len(shard.tensors) for shard in shards.values()) != len(found):
        raise ModelFileError(f"{source.name}: two shards hold a tensor of the same name")
    for name, file in index.items():
        if found.get(name) != file:
            raise ModelFileError(f"{source.name}: the index puts {name[:80]!r} into {file}, which does not hold it")
    return Published(files, shards)


def _read_index(source: Source) -> dict[str, str]:
    """Tensor -> shard; empty for a checkpoint of one file. Raises ModelFileError if the weights are pickled."""
    data = read_small(source, INDEX, INDEX_LIMIT)
    if data is not None:
        return parse_index(data, f"{source.name}/{INDEX}")
    if source.has(SINGLE):
        return {}
    if any(source.has(name) for name in PICKLES):
        raise ModelFileError(
            f"{source.name} has pickled weights (.bin) only, which can run code; glossd reads safetensors: convert them"
        )
    raise ModelFileError(f"{source.name} has neither {INDEX} nor {SINGLE}; name a checkpoint with safetensors weights")


def _read_shard(source: Source, file: str) -> Shard:
    facts = source.facts(file)
    if facts is None:
        raise ModelFileError(f"{source.name} lacks {file}, which its index names")
    if facts.sha256 is None:
        raise FetchFailed(
            f"{source.name} does not tell the sha256 of {file}, so peers could not agree on what it is; "
            "pull from a hub that does, or from a complete copy with --from"
        )
    where = f"{source.name}/{file}"
    if facts.size_bytes < LENGTH_BYTES + 2:
        raise ModelFileError(f"{where} is too short for a safetensors file")
    first = b"".join(source.read(file, 0, LENGTH_BYTES))
    end = header_end(first, facts.size_bytes, where)
    header = first + b"".join(source.read(file, LENGTH_BYTES, end))
    return shard_from_header(header, facts.size_bytes, facts.sha256, where)
