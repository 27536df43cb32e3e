"""pull, models, show and rm, against a hub in this process and without a daemon."""

import json
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from glossd.models import open_model
from swarm.errors import FetchFailed
from swarm.ids import Span
from tests.cli.conftest import Glossd
from tests.store.hub import Hub, serving
from tests.store.models import write_checkpoint


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    write_checkpoint(tmp_path / "origin", tied=True)
    for name in ("HF_TOKEN", "GLOSSD_MODELS_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(tmp_path / "origin") as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        yield served


@pytest.fixture
def models_dir(tmp_path: Path) -> Path:
    return tmp_path / "data" / "glossd" / "models"


def test_pull_list_show_and_remove(hub: Hub, glossd: Glossd, models_dir: Path) -> None:
    pulled = glossd("pull", hub.repo, "--parts", "1:3")
    assert pulled.code == 0, pulled.err
    assert "disk" in pulled.err
    assert "fits" in pulled.err
    assert "glossd run --model tiny --layers 1:3" in pulled.err
    listed = json.loads(glossd("models", "--json").out)
    assert [(m["name"], m["held"]) for m in listed if m["name"] == "tiny"] == [("tiny", ["1:3"])]
    assert "1:3 of 0:6" in glossd("models").out
    shown = json.loads(glossd("show", "tiny", "--json", "--quant", "int8").out)
    assert shown["source"] == hub.repo
    assert shown["config"]["layers"] == 4
    assert shown["memory_bytes"]["whole"] < sum(p.stat().st_size for p in hub.folder.glob("*.safetensors"))
    assert "parts 1 to 4 (layers)" in glossd("show", "tiny").out
    assert glossd("rm", "tiny").code == 0
    assert not (models_dir / "tiny").exists()


def test_a_second_pull_stays_at_the_commit_and_needs_the_name_only(hub: Hub, glossd: Glossd) -> None:
    glossd("pull", hub.repo, "--parts", "1:3")
    hub.requests.clear()
    assert glossd("pull", "tiny").code == 0
    assert not any("/main/" in path for _, path, _, _ in hub.requests)
    assert json.loads(glossd("show", "tiny", "--json").out)["held"] == ["0:6"]
    again = glossd("pull", "tiny")
    assert "all there" in again.err


def test_a_pulled_model_is_run_by_its_name(hub: Hub, glossd: Glossd, models_dir: Path) -> None:
    shutil.copy(Path("glossd/embedded/gloss-tiny/tokenizer.json"), hub.folder)
    glossd("pull", hub.repo, "--parts", "0:2")
    model = open_model("tiny", models_dir)
    assert model.checkpoint.held == [Span(0, 2)]
    shown = json.loads(glossd("show", "tiny", "--json").out)
    assert shown["model_id"] == model.checkpoint.model_id


def test_a_local_copy_is_a_source_too(hub: Hub, glossd: Glossd, tmp_path: Path) -> None:
    assert glossd("pull", "copy", "--from", str(hub.folder), "--models-dir", str(tmp_path / "m")).code == 0
    assert hub.requests == []
    assert "copy" in glossd("models", "--models-dir", str(tmp_path / "m")).out


def test_what_does_not_fit_is_refused_with_numbers_before_any_weight(
    hub: Hub, glossd: Glossd, models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Memory = namedtuple("Memory", "available")
    needed = json.loads((hub.folder / "config.json").read_text())["d_model"] * 96 * 4 + 170_000
    monkeypatch.setattr(psutil, "virtual_memory", lambda: Memory(needed))
    refused = glossd("pull", hub.repo)
    assert refused.code == 1
    assert "does not fit" in refused.err
    assert "194.6 kB are free; take --parts 0:2 or --quant nf4" in refused.err
    assert not models_dir.exists()
    assert glossd("pull", hub.repo, "--parts", "0:2").code == 0
    assert glossd("pull", hub.repo, "--force").code == 0


def test_a_small_disk_is_refused_even_by_force(hub: Hub, glossd: Glossd, monkeypatch: pytest.MonkeyPatch) -> None:
    Usage = namedtuple("Usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1000))
    refused = glossd("pull", hub.repo, "--force")
    assert refused.code == 1
    assert "1.00 kB are free" in refused.err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("pull", "nobody-knows"), 1, "write OWNER/NAME"),
        (("pull", "gloss-tiny"), 1, "part of glossd"),
        (("pull", "someone/tiny", "--parts", "3:99"), 2, "reaches beyond the model"),
        (("pull", "someone/tiny", "--parts", "three"), 2, "not a span"),
        (("pull", "someone/else"), 1, "no config.json"),
        (("pull", "x/..",), 1, "is not a model"),
        (("pull", "copy", "--from", "/nowhere"), 1, "no folder /nowhere"),
        (("rm", "gloss-tiny"), 1, "part of glossd"),
        (("rm", "../data"), 1, "no pulled model"),
        (("show", "nothing"), 1, "glossd pull"),
    ],
)  # fmt: skip
def test_refusals_are_one_line(hub: Hub, glossd: Glossd, arguments: tuple[str, ...], code: int, says: str) -> None:
    result = glossd(*arguments)
    assert result.code == code
    assert says in result.err
    assert result.err.count("\n") == 1


def test_a_gated_model_says_how_to_get_it(hub: Hub, glossd: Glossd, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gated = True
    refused = glossd("pull", hub.repo)
    assert "set HF_TOKEN" in refused.err
    monkeypatch.setenv("HF_TOKEN", "secret")
    hub.gated = False
    assert glossd("pull", hub.repo).code == 0
    assert ("Bearer secret") in {authorization for *_, authorization in hub.requests}


def test_the_error_has_its_own_code() -> None:
    assert FetchFailed("x").exit_code == 1
    assert FetchFailed.code == "fetch_failed"


def test_these_commands_load_neither_torch_nor_hivemind() -> None:
    code = (
        "import sys; import glossd.cli.models, glossd.pulling, glossd.library; "
        "sys.exit(any(m in sys.modules for m in ('torch', 'hivemind')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
