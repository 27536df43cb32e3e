"""Recipes: one TOML file per known model, with its decoding defaults and, under [about], facts for people.

Found by the last component of a model's name, whatever its case. Imports neither torch nor hivemind.
"""

import tomllib
from pathlib import Path
from typing import Any

from swarm.errors import ModelFileError

_HERE = Path(__file__).parent
RECIPES = (_HERE.parent / "configs" / "models", _HERE / "_configs" / "models")


def recipe_path(name: str) -> Path | None:
    """`name` may be a repository, a folder or a plain name."""
    wanted = Path(name).name.casefold()
    for folder in RECIPES:
        for path in sorted(folder.glob("*.toml")):
            if path.stem.casefold() == wanted:
                return path
    return None


def read_toml(path: Path) -> dict[str, Any]:
    """Raises ModelFileError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ModelFileError(f"{path}: {error}") from None
