"""The folder of one pulled model: what lies in it, what of it is whole, and how files get their final names.

    config.json, tokenizer.json ...   as published
    published.json                    where it came from; size and sha256 of every published shard
    headers/SHARD.header              the beginning of each shard, so that all tensors are known, held or not
    part-00007.safetensors            the tensors at home in part 7, under their published names
    manifest.json                     file name -> sha256 of everything above that is held
    part-00007.safetensors.partial    being fetched; `.journal` beside it says which bytes are there

A file that `manifest.json` lists was complete and checked when it got its name.
"""

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from swarm.errors import FetchFailed, ModelFileError
from swarm.ids import ModelId
from swarm.store.index import is_plain
from swarm.store.published import CONFIG, Published, Shard, model_identity, shard_from_header
from swarm.store.safetensors_file import TensorSpec, read_header

MANIFEST = "manifest.json"
PUBLISHED = "published.json"
HEADERS = "headers"
JSON_LIMIT = 1024 * 1024

_Sha256 = Field(pattern=r"^[0-9a-f]{64}$")


class ShardNote(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    size_bytes: int = Field(ge=10, lt=2**63)
    sha256: str = _Sha256


class Origin(BaseModel):
    """The content of published.json. `source` is a repository or folder, `revision` its commit."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    source: str
    revision: str
    model_id: str = _Sha256
    shards: dict[str, ShardNote] = Field(min_length=1, max_length=1000)


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor that is held: in `path`, at the bytes `spec` says."""

    path: Path
    spec: TensorSpec


class Shelf:
    """Reads lazily and caches nothing: pulls are rare, and the files are the truth. Methods raise ModelFileError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = folder.name

    @property
    def exists(self) -> bool:
        return (self.folder / PUBLISHED).is_file()

    def origin(self) -> Origin:
        path = self.folder / PUBLISHED
        try:
            return Origin.model_validate_json(_read(path))
        except ValidationError as error:
            raise ModelFileError(f"{path} is damaged ({error.error_count()} errors); pull the model again") from None

    def identity(self) -> ModelId:
        """Raises ModelFileError where published.json contradicts itself or the config."""
        origin = self.origin()
        config = self.manifest().get(CONFIG, "")
        found = model_identity(config, {file: note.sha256 for file, note in origin.shards.items()})
        if found != origin.model_id:
            raise ModelFileError(f"{self.folder / PUBLISHED} contradicts {MANIFEST}; remove the model, pull it again")
        return found

    def manifest(self) -> dict[str, str]:
        return read_manifest(self.folder)

    def shards(self) -> dict[str, Shard]:
        """Every published shard by its header, whether its tensors are held or not."""
        found = {}
        for file, note in self.origin().shards.items():
            if not is_plain(file):
                raise ModelFileError(f"{self.folder / PUBLISHED} names {file[:80]!r}, no plain .safetensors name")
            path = self.header_path(file)
            found[file] = shard_from_header(_read(path, note.size_bytes), note.size_bytes, note.sha256, str(path))
        return found

    def tensors(self) -> dict[str, Placed]:
        """What is held, by tensor name. The bytes are checked when a span is loaded."""
        manifest = self.manifest()
        paths = [self.folder / name for name in sorted(manifest) if name.startswith("part-") and is_plain(name)]
        return {
            name: Placed(path, spec) for path in paths if path.is_file() for name, spec in read_header(path).items()
        }

    def header_path(self, shard: str) -> Path:
        return self.folder / HEADERS / f"{shard}.header"

    def part_path(self, part: int) -> Path:
        return self.folder / f"part-{part:05d}.safetensors"

    def describe(self, published: Published, source: str, revision: str) -> None:
        """Write everything but the weights. A second pull must bring the same model. Raises FetchFailed too."""
        hashes = {name: _sha256(data) for name, data in published.files.items()}
        identity = model_identity(hashes[CONFIG], {file: shard.sha256 for file, shard in published.shards.items()})
        if self.exists and self.origin().model_id != identity:
            raise FetchFailed(
                f"{source} is not the {self.name} that is already here (from {self.origin().source}); "
                f"remove that with `glossd rm {self.name}` first"
            )
        notes = {
            file: ShardNote(size_bytes=shard.size_bytes, sha256=shard.sha256)
            for file, shard in published.shards.items()
        }
        origin = Origin(source=source, revision=revision, model_id=identity, shards=notes)
        with disk_errors(self.folder):
            (self.folder / HEADERS).mkdir(parents=True, exist_ok=True)
            for name, data in published.files.items():
                replace_file(self.folder / name, data)
            for file, shard in published.shards.items():
                replace_file(self.header_path(file), shard.header)
            self.record(hashes)
            replace_file(self.folder / PUBLISHED, origin.model_dump_json(indent=2).encode())

    def record(self, hashes: dict[str, str], without: Sequence[str] = ()) -> None:
        """Add to manifest.json, and leave names out of it."""
        path = self.folder / MANIFEST
        manifest = {name: value for name, value in (self.manifest() | hashes).items() if name not in without}
        replace_file(path, (json.dumps(manifest, indent=2, sort_keys=True) + "\n").encode())

    def quarantine(self, name: str) -> None:
        """Take a file with wrong bytes out of service; it stays beside the others as NAME.corrupt."""
        with disk_errors(self.folder):
            self.record({}, without=[name])
            (self.folder / name).replace(self.folder / f"{name}.corrupt")


def read_manifest(folder: Path) -> dict[str, str]:
    """File name -> sha256, of any model folder; empty where there is no manifest. Raises ModelFileError."""
    path = folder / MANIFEST
    if not path.exists():
        return {}
    try:
        raw: Any = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(raw, dict) or not all(isinstance(value, str) for value in raw.values()):
        raise ModelFileError(f"{path} must map file names to sha256 hashes")
    return raw


def file_sha256(path: Path) -> str:
    """Raises ModelFileError."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror}") from None


def replace_file(path: Path, data: bytes) -> None:
    """Write under another name, make it durable, then rename. Raises OSError and leaves no trace then."""
    temporary = path.with_name(f"{path.name}.new")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn an OSError inside the block into a FetchFailed that says what to do."""
    try:
        yield
    except OSError as error:
        raise disk_failure(error, folder) from None


def disk_failure(error: OSError, folder: Path) -> FetchFailed:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FetchFailed(f"the disk of {folder} is full; free space and run the same command again, it goes on")
    return FetchFailed(f"cannot write below {folder}: {error.strerror}; set --models-dir to another folder")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _read(path: Path, limit: int = JSON_LIMIT) -> bytes:
    try:
        if path.stat().st_size > limit:
            raise ModelFileError(f"{path} exceeds {limit} bytes; pull the model again")
        return path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror}; pull the model again") from None
