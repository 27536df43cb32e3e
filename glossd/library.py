"""The models on this machine, as the command line sees them: where they lie, what they consist of, what they weigh.

Reads configs and headers, never weights, and imports neither torch nor hivemind.
"""

import json
import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glossd.recipes import read_toml, recipe_path
from swarm.errors import ModelFileError
from swarm.ids import Span
from swarm.model.config import ModelConfig
from swarm.model.families import family_of
from swarm.model.tokenizer import mask_token_id
from swarm.store.index import INDEX, SINGLE, parse_index
from swarm.store.parts import held_parts, runs
from swarm.store.published import CONFIG
from swarm.store.safetensors_file import TensorSpec, read_header
from swarm.store.shelf import Shelf
from swarm.store.sizes import weights_bytes

_HERE = Path(__file__).parent
EMBEDDED = _HERE / "embedded"


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's config and the tensors that each part needs, by published name."""

    config: ModelConfig
    names: tuple[tuple[str, ...], ...]

    def memory_bytes(self, span: Span, tensors: dict[str, TensorSpec], dtype: str, quant: str) -> int:
        """What the weights of `span` take when loaded."""
        wanted = {name: part not in (0, self.config.head_part) for part in span for name in self.names[part]}
        return weights_bytes(((tensors[name].shape, in_layer) for name, in_layer in wanted.items()), dtype, quant)


@dataclass(frozen=True, slots=True)
class Entry:
    """A model folder. `tensors` are all published ones, `held` the parts that lie here; the last three if pulled."""

    folder: Path
    shape: Shape
    tensors: dict[str, TensorSpec]
    held: list[Span]
    disk_bytes: int
    source: str = ""
    revision: str = ""
    model_id: str = ""

    @property
    def name(self) -> str:
        return self.folder.name


def find_folder(name: str, models_dir: Path) -> Path:
    """An embedded model, a pulled one, or a folder. Raises ModelFileError."""
    plain = "/" not in name and name not in (".", "..")
    for folder in (EMBEDDED / name, models_dir / name) if plain else ():
        if (folder / CONFIG).is_file():
            return folder
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    known = ", ".join(sorted(folder.name for folder in model_folders(models_dir)))
    raise ModelFileError(f"no model {name!r} here; `glossd pull` fetches one, or name a folder; there are: {known}")


def model_folders(models_dir: Path) -> list[Path]:
    """The embedded and the pulled models."""
    found = [*EMBEDDED.iterdir(), *(models_dir.iterdir() if models_dir.is_dir() else ())]
    return sorted(folder for folder in found if (folder / CONFIG).is_file())


def open_entry(folder: Path) -> Entry:
    """Raises ModelFileError."""
    shelf = Shelf(folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if not shelf.exists:
        tensors = {name: spec for path in _weights(folder) for name, spec in read_header(path).items()}
        shape = read_shape(folder, tensors)
        return Entry(folder, shape, tensors, runs(held_parts(shape.names, frozenset(tensors))), size)
    tensors = {name: spec for shard in shelf.shards().values() for name, spec in shard.tensors.items()}
    shape, origin = read_shape(folder, tensors), shelf.origin()
    held = runs(held_parts(shape.names, frozenset(shelf.tensors())))
    return Entry(folder, shape, tensors, held, size, origin.source, origin.revision, origin.model_id)


def read_shape(folder: Path, published: Collection[str]) -> Shape:
    """`published` are the names of all tensors that the model has. Raises ModelFileError."""
    path = folder / CONFIG
    try:
        raw = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ModelFileError(f"{path} must hold a JSON object")
    family = family_of(raw)
    if raw.get("mask_token_id") is None and (mask := mask_token_id(folder)) is not None:
        raw["mask_token_id"] = mask
    config = family.read_config(raw)
    names = tuple(tuple(family.tensor_names(config, part, published).values()) for part in range(config.n_parts))
    missing = [name for part in names for name in part if name not in published]
    if missing:
        raise ModelFileError(f"{folder.name} lacks tensor {missing[0]}, which its config asks for")
    return Shape(config, names)


def auto_dtype(tensors: Iterable[TensorSpec]) -> str:
    """What `--dtype auto` means: the published bfloat16, else float32. As Checkpoint.auto_dtype."""
    matrices = [spec.dtype for spec in tensors if len(spec.shape) == 2]
    return "bfloat16" if 2 * matrices.count("BF16") > len(matrices) else "float32"


def recipe(name: str) -> dict[str, Any]:
    """The recipe of a known model as it stands in its file; empty when there is none. Raises ModelFileError."""
    path = recipe_path(name)
    return {} if path is None else read_toml(path)


def remove(name: str, models_dir: Path) -> int:
    """Delete a pulled model; the bytes that it took. Raises ModelFileError."""
    folder = models_dir / name
    if "/" in name or name in ("", ".", "..") or not folder.is_dir():
        embedded = "it is part of glossd" if (EMBEDDED / name).is_dir() else "`glossd models` lists them"
        raise ModelFileError(f"no pulled model {name!r}: {embedded}")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise ModelFileError(f"cannot remove {folder}: {error.strerror}") from None
    return size


def _weights(folder: Path) -> list[Path]:
    index = folder / INDEX
    if not index.is_file():
        return [folder / SINGLE]
    try:
        return [folder / file for file in sorted(set(parse_index(index.read_bytes(), str(index)).values()))]
    except OSError as error:
        raise ModelFileError(f"cannot read {index}: {error.strerror}") from None
