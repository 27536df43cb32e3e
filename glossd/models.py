"""Find a model by name: its files, its tokenizer and its recipe of decoding defaults."""

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from glossd import paths
from glossd.library import find_folder
from glossd.recipes import read_toml, recipe_path
from glossd.tasks import Overrides
from swarm.decode.settings import Cache, Commit, DecodeSettings, Order
from swarm.errors import BadRequest, ModelFileError
from swarm.ids import Span
from swarm.model.tokenizer import TextTokenizer
from swarm.model.weights import Checkpoint, open_checkpoint

DEFAULT_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Recipe:
    """Decoding defaults of a model. `about` holds facts for people: family, source, licence, bytes per part."""

    max_tokens: int = DEFAULT_TOKENS
    settings: DecodeSettings = field(default_factory=lambda: DecodeSettings(block_length=32))
    about: dict[str, Any] = field(default_factory=dict)

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


def open_model(name: str, models_dir: Path | None = None) -> Model:
    """`name` is an embedded or pulled model, or a folder. Reads no weights of pulled models. Raises ModelFileError."""
    folder = find_folder(name, models_dir or paths.models_dir())
    checkpoint = open_checkpoint(folder, folder.name)
    return Model(checkpoint, TextTokenizer(folder), read_recipe(folder.name))


def check_layers(layers: str, model: Model) -> None:
    """Raises BadSpan where `layers` is a span that the model does not have."""
    if layers not in ("auto", "none"):
        Span.parse(layers).check_within(model.checkpoint.config.n_parts)


def read_recipe(name: str) -> Recipe:
    path = recipe_path(name)
    if path is None:
        return Recipe()
    raw = read_toml(path)
    about, max_tokens = raw.pop("about", {}), raw.pop("max_tokens", DEFAULT_TOKENS)
    try:
        settings = DecodeSettings(**_enums(raw))
        settings.check_pair()
    except (TypeError, BadRequest) as error:
        raise ModelFileError(f"{path}: {error}") from None
    return Recipe(max_tokens, settings, about)


def _enums(raw: dict[str, Any]) -> dict[str, Any]:
    for key, kind in (("commit", Commit), ("order", Order), ("cache", Cache)):
        if key in raw:
            try:
                raw = raw | {key: kind(raw[key])}
            except ValueError:
                want = " or ".join(kind)
                raise BadRequest(f"{key} is {raw[key]!r}; it must be {want}", key) from None
    return raw
