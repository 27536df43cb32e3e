"""configs/default.toml says what the defaults are: every key, its real value, and what it means."""

import re
import tomllib
from pathlib import Path

import pytest

from glossd.config import Settings, resolve

FILE = Path(__file__).parent.parent / "configs" / "default.toml"
_EXAMPLE = re.compile(r"^# (?=[a-z_]+ = )", re.MULTILINE)


@pytest.fixture(autouse=True)
def clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*(f"GLOSSD_{key.upper()}" for key in Settings.model_fields), "GLOSSD_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_its_values_are_the_defaults() -> None:
    assert resolve({"config": FILE}).settings == resolve({}).settings


def test_each_key_is_there_once_with_a_value_or_an_example() -> None:
    live = tomllib.loads(FILE.read_text())
    without_value = {key for key in Settings.model_fields if key not in live}
    assert without_value == {"state_dir", "socket", "http", "http_token", "models_dir"}
    assert tomllib.loads(_EXAMPLE.sub("", FILE.read_text())).keys() == Settings.model_fields.keys()


def test_its_examples_are_valid(tmp_path: Path) -> None:
    everything = tmp_path / "all.toml"
    everything.write_text(_EXAMPLE.sub("", FILE.read_text()))
    origins = resolve({"config": everything}).origins
    assert set(origins.values()) == {f"file {everything}"}


def test_each_key_follows_a_comment_that_explains_it() -> None:
    paragraphs = FILE.read_text().strip().split("\n\n")[1:]
    keys = []
    for paragraph in paragraphs:
        *comment, setting = paragraph.splitlines()
        assert all(line.startswith("# ") for line in comment), paragraph
        assert comment, paragraph
        keys.append(setting.removeprefix("# ").partition(" = ")[0])
    assert keys == list(Settings.model_fields)
