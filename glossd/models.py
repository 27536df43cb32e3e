"""Find a model by name: its files, its tokenizer and its recipe of decoding defaults."""

import tomllib
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from glossd.tasks import Overrides
from swarm.decode.settings import Commit, DecodeSettings, Order
from swarm.errors import BadRequest, ModelFileError
from swarm.ids import Span
from swarm.model.tokenizer import TextTokenizer
from swarm.model.weights import Checkpoint, open_checkpoint

_HERE = Path(__file__).parent
EMBEDDED = _HERE / "embedded"
DEFAULT_TOKENS = 128
RECIPES = (_HERE.parent / "configs" / "models", _HERE / "_configs" / "models")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Decoding defaults of a model."""

    max_tokens: int = DEFAULT_TOKENS
    settings: DecodeSettings = field(default_factory=lambda: DecodeSettings(block_length=32))

    def with_overrides(self, overrides: Overrides) -> DecodeSettings:
        named = {f.name: v for f in fields(overrides) if (v := getattr(overrides, f.name)) is not None}
        return replace(self.settings, **_enums(named))


@dataclass(frozen=True, slots=True)
class Model:
    checkpoint: Checkpoint
    tokenizer: TextTokenizer
    recipe: Recipe

    @property
    def n_tokens(self) -> int:
        """Ids from here on are never predicted."""
        return min(self.tokenizer.n_tokens, self.checkpoint.config.vocab_size)

    @property
    def name(self) -> str:
        return self.checkpoint.name


def open_model(name: str) -> Model:
    """`name` is an embedded model or a folder. Reads no weights. Raises ModelFileError."""
    embedded = EMBEDDED / name
    folder = embedded if "/" not in name and embedded.is_dir() else Path(name).expanduser()
    if not folder.is_dir():
        known = ", ".join(sorted(p.name for p in EMBEDDED.iterdir() if (p / "config.json").exists()))
        raise ModelFileError(f"no model {name!r}: give a folder with config.json, or one of: {known}")
    checkpoint = open_checkpoint(folder, folder.name)
    return Model(checkpoint, TextTokenizer(folder), read_recipe(folder.name))


def check_layers(layers: str, model: Model) -> None:
    """Raises BadSpan where `layers` is a span that the model does not have."""
    if layers not in ("auto", "none"):
        Span.parse(layers).check_within(model.checkpoint.config.n_parts)


def read_recipe(name: str) -> Recipe:
    for folder in RECIPES:
        path = folder / f"{name}.toml"
        if path.exists():
            try:
                raw = tomllib.loads(path.read_text())
                max_tokens = raw.pop("max_tokens", DEFAULT_TOKENS)
                return Recipe(max_tokens, DecodeSettings(**_enums(raw)))
            except (tomllib.TOMLDecodeError, TypeError, BadRequest) as error:
                raise ModelFileError(f"{path}: {error}") from None
    return Recipe()


def _enums(raw: dict[str, Any]) -> dict[str, Any]:
    for key, kind in (("commit", Commit), ("order", Order)):
        if key in raw:
            try:
                raw = raw | {key: kind(raw[key])}
            except ValueError:
                want = " or ".join(kind)
                raise BadRequest(f"{key} is {raw[key]!r}; it must be {want}", key) from None
    return raw
