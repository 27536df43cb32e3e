"""Settings: who wins, who is named, what is refused."""

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from glossd import paths
from glossd.config import resolve
from swarm.errors import ConfigError


@pytest.fixture(autouse=True)
def clean_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No setting of whoever runs the tests leaks in."""
    for name in ("GLOSSD_MODEL", "GLOSSD_PORT", "GLOSSD_CONFIG", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def toml(folder: Path, text: str) -> Path:
    file = folder / "given.toml"
    file.write_text(text)
    return file


def test_each_source_beats_the_next_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = toml(tmp_path, 'model = "of-file"\nport = 1\nthreads = 1\n')
    monkeypatch.setenv("GLOSSD_MODEL", "of-env")
    monkeypatch.setenv("GLOSSD_PORT", "2")
    resolved = resolve({"config": file, "model": "of-flag", "dtype": None})
    settings, origins = resolved.settings, resolved.origins
    assert (settings.model, settings.port, settings.threads, settings.dtype) == ("of-flag", 2, 1, "auto")
    assert origins["model"] == "flag"
    assert origins["port"] == "env GLOSSD_PORT"
    assert origins["threads"] == f"file {file}"
    assert origins["dtype"] == "default"
    assert set(origins) == set(type(settings).model_fields)


def test_the_users_file_is_read_without_being_named() -> None:
    paths.config_file().parent.mkdir(parents=True)
    paths.config_file().write_text('layers = "0:3"')
    resolved = resolve({})
    assert resolved.settings.layers == "0:3"
    assert resolved.file == paths.config_file()


def test_an_environment_variable_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOSSD_CONFIG", str(toml(tmp_path, "port = 7")))
    assert resolve({}).settings.port == 7


def test_lists_come_from_the_environment_as_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOSSD_JOIN", "/ip4/127.0.0.1/tcp/1/p2p/a, /ip4/127.0.0.1/tcp/2/p2p/b")
    assert resolve({}).settings.join == ["/ip4/127.0.0.1/tcp/1/p2p/a", "/ip4/127.0.0.1/tcp/2/p2p/b"]


def test_unknown_key_of_a_file_names_the_nearest(tmp_path: Path) -> None:
    file = toml(tmp_path, "quue_limit = 3")
    with pytest.raises(ConfigError, match=rf"quue_limit \(file {file}\); did you mean queue_limit"):
        resolve({"config": file})


def test_unknown_variable_names_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOSSD_MODLE", "x")
    with pytest.raises(ConfigError, match=r"modle \(env GLOSSD_MODLE\); did you mean model"):
        resolve({})


@pytest.mark.parametrize("layers", ["auto", "none", "0:4"])
def test_layers_are_a_span_or_a_word(layers: str) -> None:
    assert resolve({"layers": layers}).settings.layers == layers


def test_unknown_flag_is_refused() -> None:
    with pytest.raises(ConfigError, match="colour"):
        resolve({"colour": 1})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('port = "many"', ("port", "many", "integer")),
        ("port = true", ("port", "number")),
        ("port = 70000", ("port", "70000", "65535")),
        ("model = 3", ("model", "3", "string")),
        ('layers = "4"', ("layers", "start:stop")),
        ('dtype = "int8"', ("dtype", "float32")),
        ('http = "0.0.0.0:80"', ("http", "127.0.0.1:PORT")),
        ('http = "127.0.0.1:99999"', ("http", "127.0.0.1:PORT")),
        ('join = ["1.2.3.4:5"]', ("join", "multiaddress")),
        ("hop_timeout_s = 0", ("hop_timeout_s", "greater than 0")),
        ("hop_timeout_s = inf", ("hop_timeout_s", "finite")),
        ("state_dir = 5", ("state_dir", "path")),
    ],
)
def test_wrong_values_name_key_origin_and_want(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    file = toml(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        resolve({"config": file})
    for word in (*words, f"file {file}"):
        assert word in str(caught.value)


def test_a_wrong_token_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOSSD_HTTP_TOKEN", "geheim")
    with pytest.raises(ConfigError, match="GLOSSD_HTTP_TOKEN") as caught:
        resolve({})
    assert "geheim" not in str(caught.value)


def test_a_file_that_is_missing_or_not_toml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no config file"):
        resolve({"config": tmp_path / "absent.toml"})
    with pytest.raises(ConfigError, match="TOML"):
        resolve({"config": toml(tmp_path, "= 3")})


def test_the_result_is_frozen() -> None:
    settings = resolve({}).settings
    with pytest.raises(ValidationError):
        settings.port = 3  # type: ignore[misc]


def test_socket_goes_to_a_private_runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert resolve({}).settings.socket == runtime / "glossd" / "glossd.sock"


def test_socket_falls_back_to_the_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    for runtime in (tmp_path / "missing", open_to_all):
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
        assert resolve({"state_dir": str(tmp_path / "s")}).settings.socket == tmp_path / "s" / "glossd.sock"


def test_it_imports_nothing_heavy() -> None:
    code = "import sys, glossd.config; sys.exit(bool({'torch', 'hivemind', 'httpx'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_node_that_nobody_can_call_may_not_announce_parts() -> None:
    far = ["/ip4/192.168.1.20/tcp/4001/p2p/QmX"]
    with pytest.raises(ConfigError, match=r"--host 0\.0\.0\.0"):
        resolve({"join": far})
    assert resolve({"join": far, "host": "0.0.0.0"}).settings.join == far
    assert resolve({"join": far, "layers": "none"}).settings.join == far
    assert resolve({"join": ["/ip4/127.0.0.1/tcp/4001/p2p/QmX"]}).settings.host == "127.0.0.1"
