"""What keeps a daemon from starting: one clear line that says what to do, and the right exit code.

Each case runs the daemon's own main with its flags, in this process, because importing torch takes seconds.
"""

import json
import logging
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from glossd.daemon import main
from glossd.library import EMBEDDED

NOBODY = "/ip4/127.0.0.1/tcp/9/p2p/QmcgpsyWgH8Y8ajJz1Cu72KnS5uo2Aa2LpzU7kinSupNKC"

Start = Callable[..., tuple[int, str]]


@pytest.fixture(autouse=True)
def keep_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def start(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Start:
    """Run the daemon with these flags to its end: the exit code and the one line on stderr."""
    for name in [name for name in os.environ if name.startswith("GLOSSD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def run(**flags: object) -> tuple[int, str]:
        folder = tmp_path / "state"
        code = main([json.dumps({"state_dir": str(folder), "socket": str(tmp_path / "s"), **flags})])
        captured = capsys.readouterr()
        said = [line for line in captured.err.splitlines() if "event=hosting" not in line]
        assert captured.out == ""
        assert len(said) == 1, captured.err
        assert said[0].startswith("glossd: ")
        return code, said[0]

    return run


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EMBEDDED / "gloss-tiny", tmp_path / "model"))


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        ({"layerz": "0:8"}, 2, "did you mean layers?"),
        ({"port": "many"}, 2, "port is 'many' (flag)"),
        ({"port": 70000}, 2, "65535"),
        ({"layers": "three"}, 2, "write start:stop"),
        ({"layers": "3:12"}, 2, "0:8"),
        ({"http": "0.0.0.0:80"}, 2, "127.0.0.1:PORT"),
        ({"join": ["somewhere"]}, 2, "not a multiaddress"),
        ({"join": ["/ip4/127.0.0.1/tcp/9"]}, 1, "/p2p/"),
        ({"join": ["/ip4/127.0.0.1/udp/9/quic/p2p/Qm"]}, 1, "not a TCP multiaddress"),
        ({"join": [NOBODY], "require_join": True}, 1, f"nobody answers at {NOBODY}: connection refused"),
        ({"model": "gloss-tyni"}, 1, "gloss-tiny"),
        ({"state_dir": "/proc/none"}, 1, "--state-dir"),
        ({"state_dir": "/dev/null/x"}, 1, "cannot write to the state folder /dev/null/x"),
        ({"socket": "/tmp/" + 100 * "x"}, 1, "set a shorter --socket"),
        ({"config": "/none.toml"}, 2, "there is no config file /none.toml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_wrong_settings(start: Start, flags: dict[str, object], code: int, words: str) -> None:
    found, said = start(**flags)
    assert words in said
    assert found == code


def test_a_config_file_with_an_unknown_key(start: Start, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('soket = "/tmp/s"')
    code, said = start(config=str(tmp_path / "c.toml"))
    assert code == 2
    assert "soket" in said and "did you mean socket?" in said and "c.toml" in said


def test_a_busy_port(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = start(port=port)
        assert code == 1
        assert f"cannot listen on /ip4/127.0.0.1/tcp/{port}: Address already in use" in said
        code, said = start(http=f"127.0.0.1:{port}", layers="0:8")
        assert code == 1
        assert "set another --http" in said


@pytest.mark.parametrize(
    ("mode", "data", "words"),
    [
        (0o600, b"not a key", "is corrupt"),
        (0o600, b"", "is corrupt"),
        (0o640, None, "chmod 600"),
        (0o604, b"x", "chmod"),
    ],
)
def test_a_bad_identity_key(start: Start, tmp_path: Path, mode: int, data: bytes | None, words: str) -> None:
    key = tmp_path / "state" / "identity.key"
    key.parent.mkdir(mode=0o700)
    key.write_bytes(b"x" if data is None else data)
    key.chmod(mode)
    code, said = start()
    assert code == 1
    assert words in said and str(key) in said


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def nonsense(path: Path) -> None:
    path.write_bytes(b"\x93\xff{")


def huge_head(path: Path) -> None:
    path.write_bytes(b"\xff" * 7 + b"\x7f" + path.read_bytes()[8:])


DAMAGES: list[tuple[str, Callable[[Path], None]]] = [
    ("model.safetensors", cut),
    ("model.safetensors", huge_head),
    ("model.safetensors", Path.unlink),
    ("config.json", nonsense),
    ("config.json", Path.unlink),
    ("tokenizer.json", nonsense),
    ("tokenizer.json", Path.unlink),
]


@pytest.mark.parametrize("recorded", [True, False], ids=["with manifest", "without"])
@pytest.mark.parametrize(("name", "damage"), DAMAGES, ids=lambda value: getattr(value, "__name__", value))
def test_a_corrupt_model(start: Start, model: Path, name: str, damage: Callable[[Path], None], recorded: bool) -> None:
    if not recorded:
        (model / "manifest.json").unlink()
    damage(model / name)
    code, said = start(model=str(model))
    assert code == 1
    assert str(model) in said


def test_a_flipped_bit_shows_by_the_manifest(start: Start, model: Path) -> None:
    data = bytearray((model / "model.safetensors").read_bytes())
    data[len(data) // 2] ^= 1
    (model / "model.safetensors").write_bytes(data)
    code, said = start(model=str(model))
    assert code == 1
    assert f"{model / 'model.safetensors'} is corrupt" in said


def test_a_model_that_lacks_a_layer(start: Start, model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"n_layers": 7}))
    (model / "manifest.json").unlink()
    code, said = start(model=str(model), layers="0:9")
    assert code == 1
    assert "lacks tensor" in said
