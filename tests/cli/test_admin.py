"""Commands about the daemon, the start of one, and what --help loads."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from glossd import __version__
from glossd.config import resolve
from tests.cli.conftest import Daemon, Glossd
from tests.fakes import PEER


def test_status(glossd: Glossd, daemon: Daemon) -> None:
    result = glossd("status")
    assert result.code == 0
    assert "complete" in result.out
    assert "glossd run --join" in result.out
    daemon.service.uncovered = (1, 2)
    assert "nobody serves parts 1, 2" in glossd("status").out
    assert json.loads(glossd("status", "--json").out)["uncovered"] == [1, 2]


def test_peers(glossd: Glossd, daemon: Daemon) -> None:
    head, row = glossd("peers").out.splitlines()
    assert head.startswith("PEER")
    assert row.startswith(PEER)
    assert row.endswith("this node")
    assert json.loads(glossd("peers", "--json").out)[0]["span"] == "0:4"


def test_bans(glossd: Glossd, daemon: Daemon) -> None:
    assert glossd("ban", PEER, "--reason", "sends \x1b[2J").code == 0
    assert [(ban.peer, ban.reason) for ban in daemon.service.banned] == [(PEER, "sends \x1b[2J")]
    _, row = glossd("bans").out.splitlines()
    assert row.startswith(PEER)
    assert "\x1b" not in row
    assert json.loads(glossd("bans", "--json").out)[0]["peer"] == PEER
    assert glossd("unban", PEER).code == 0
    assert not daemon.service.banned
    again = glossd("unban", PEER)
    assert (again.code, again.err) == (1, "glossd: that peer is not banned\n")
    assert "peer" in glossd("ban", "no/peer").err


def test_id_and_version(glossd: Glossd, daemon: Daemon) -> None:
    assert glossd("id").out == PEER + "\n"
    assert glossd("version").out == f"glossd {__version__}\n"


@pytest.mark.parametrize("name", ["leave", "stop"])
def test_leave_waits_for_the_end(glossd: Glossd, daemon: Daemon, name: str) -> None:
    result = glossd(name)
    assert (result.code, result.out, result.err) == (0, "", "left\n")
    assert glossd("status").code == 3


@pytest.mark.parametrize("command", ["status", "peers", "id", "pause", "resume", "leave"])
def test_no_daemon(glossd: Glossd, tmp_path: Path, command: str) -> None:
    result = glossd(command, "--socket", str(tmp_path / "none"))
    assert result.code == 3
    assert result.err == f"glossd: no daemon answers on {tmp_path / 'none'}; start one with `glossd run`\n"


def test_config(glossd: Glossd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOSSD_HTTP_TOKEN", "very-secret")
    file = tmp_path / "c.toml"
    file.write_text("port = 5")
    text = glossd("config", "show", "--config", str(file)).out
    table = json.loads(glossd("config", "show", "--json", "--config", str(file)).out)
    assert table["port"] == {"value": 5, "origin": f"file {file}"}
    assert table["socket"]["origin"] == "env GLOSSD_SOCKET"
    assert table["model"]["origin"] == "default"
    assert "very-secret" not in text + json.dumps(table)
    assert glossd("config", "path").out == f"{tmp_path / 'config' / 'glossd' / 'glossd.toml'}\n"


def test_a_wrong_setting_is_a_usage_error(glossd: Glossd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOSSD_PROT", "5")
    result = glossd("status")
    assert result.code == 2
    assert "did you mean port" in result.err
    assert result.err.count("\n") == 1


def started(glossd: Glossd, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[str]:
    """The command line of the daemon that `glossd run` would become."""
    taken: list[list[str]] = []

    def execv(path: str, command: list[str]) -> None:
        assert path == sys.executable
        taken.append(command)

    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.setattr(signal, "pthread_sigmask", lambda *_: None)  # it would outlive the test
    assert glossd("run", *arguments).code == 0
    return taken[0]


def test_run_hands_over_what_was_given(glossd: Glossd, monkeypatch: pytest.MonkeyPatch) -> None:
    command = started(
        glossd,
        monkeypatch,
        "--blocks",
        "0:3",
        "--join",
        "/ip4/127.0.0.1/a",
        "--join",
        "/ip4/127.0.0.1/b",
        "--port",
        "0",
        "--log-json",
    )
    assert command[-3:-1] == ["-m", "glossd.start"]
    flags = json.loads(command[-1])
    assert flags == {"layers": "0:3", "join": ["/ip4/127.0.0.1/a", "/ip4/127.0.0.1/b"], "port": 0, "log_json": True}
    assert resolve(flags).settings.layers == "0:3"


def test_run_can_set_every_setting_but_the_secret(glossd: Glossd, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (
        "--model m --layers 0:3 --join /a --host 0.0.0.0 --port 1 --announce /b --socket /s --http 127.0.0.1:1 "
        "--state-dir /d --dtype float32 --threads 1 --queue-limit 1 --max-running 1 --hop-timeout 1 --drain 1 "
        "--log-level debug --log-json --models-dir /m --quant nf4 --device-map auto --deterministic --cache-mb 9 "
        "--activations int8 --require-join --pass-timeout-floor 1 --hedge-share 0.2 --memory 5"
    )
    flags = json.loads(started(glossd, monkeypatch, *arguments.split())[-1])
    resolved = resolve(flags)
    assert {key for key, origin in resolved.origins.items() if origin != "flag"} == {"http_token"}


def test_run_without_flags_leaves_all_to_the_daemon(glossd: Glossd, monkeypatch: pytest.MonkeyPatch) -> None:
    assert json.loads(started(glossd, monkeypatch)[-1]) == {}


def test_foreign_python_files_do_not_reach_the_daemon(
    glossd: Glossd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = os.getcwd()
    monkeypatch.setattr(sys, "path", [here, *(entry for entry in sys.path if entry)])
    assert "-P" not in started(glossd, monkeypatch)
    monkeypatch.chdir(tmp_path)
    assert "-P" in started(glossd, monkeypatch)


def test_help_loads_nothing_slow() -> None:
    slow = "{'torch', 'hivemind', 'httpx', 'rich', 'pydantic', 'numpy', 'starlette'}"
    code = f"import sys, glossd.cli.main; sys.exit(str({slow} & set(sys.modules)) if {slow} & set(sys.modules) else 0)"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_commands_load_neither_torch_nor_hivemind() -> None:
    code = (
        "import sys, glossd.client, glossd.config, glossd.cli.main, glossd.cli.canvas;"
        "sys.exit(bool({'torch', 'hivemind'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
