"""Pulling from a hub: only the bytes that are wanted, the same bytes, whatever the hub does."""

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from swarm.errors import FetchFailed, ModelFileError
from swarm.ids import Span
from swarm.store.hub import HubSource
from swarm.store.parts import PartFile, files_for, held_parts, plan_file
from swarm.store.published import Published, read_published
from swarm.store.pull import pull_files, remaining_bytes
from swarm.store.shelf import Shelf
from swarm.store.source import FolderSource, Source
from tests.store.hub import COMMIT, Hub, serving
from tests.store.models import write_checkpoint

Names = list[tuple[str, ...]]


@pytest.fixture
def names(tmp_path: Path) -> Names:
    return write_checkpoint(tmp_path / "origin")


@pytest.fixture
def hub(tmp_path: Path, names: Names, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(tmp_path / "origin") as served:
        yield served


def files_of(published: Published, names: Names, span: Span) -> list[PartFile]:
    return [plan_file(published.shards, names, part) for part in files_for(names, span)]


def pull(source: Source, shelf: Shelf, names: Names, span: Span) -> None:
    published = read_published(source)
    shelf.describe(published, source.name, source.revision)
    held = held_parts(names, frozenset(shelf.tensors()))
    files = [file for file in files_of(published, names, span) if file.part not in held]
    pull_files(source, shelf, published.shards, files, lambda done, total: None)


def check_equal(shelf: Shelf, origin: Path, names: Names, span: Span) -> None:
    want = {name: array for path in origin.glob("*.safetensors") for name, array in load_file(path).items()}
    found = {name: array for path in shelf.folder.glob("part-*.safetensors") for name, array in load_file(path).items()}
    for part in span:
        for name in names[part]:
            assert found[name].tobytes() == want[name].tobytes(), name


def leftovers(shelf: Shelf) -> list[str]:
    return sorted(p.name for p in shelf.folder.rglob("*") if p.suffix in (".partial", ".journal", ".new"))


def test_a_pull_reads_headers_and_the_parts_asked_for_and_nothing_else(hub: Hub, names: Names, tmp_path: Path) -> None:
    shelf, source, span = Shelf(tmp_path / "tiny"), hub.source("secret"), Span(2, 4)
    published = read_published(source)
    shelf.describe(published, hub.repo, source.revision)
    described = hub.bytes_sent
    headers = sum(len(shard.header) for shard in published.shards.values())
    small = sum(p.stat().st_size for p in hub.folder.glob("*.json"))
    assert described == headers + small
    files = files_of(published, names, span)
    pull_files(source, shelf, published.shards, files, lambda done, total: None)
    check_equal(shelf, hub.folder, names, span)
    needed = sum(published.tensors[name][1].size_bytes for part in span for name in names[part])
    assert hub.bytes_sent - described == needed
    assert held_parts(names, frozenset(shelf.tensors())) == [2, 3]
    assert leftovers(shelf) == []
    assert shelf.origin().revision == COMMIT


def test_nodes_with_other_parts_and_whole_folders_agree_on_the_identity(hub: Hub, names: Names, tmp_path: Path) -> None:
    first, second, third = (Shelf(tmp_path / name / "tiny") for name in "abc")
    pull(hub.source(), first, names, Span(0, 2))
    pull(hub.source(), second, names, Span(3, 6))
    pull(FolderSource(hub.folder), third, names, Span(0, 6))
    assert first.identity() == second.identity() == third.identity()
    other = tmp_path / "other"
    write_checkpoint(other, seed=1)
    pull(FolderSource(other), Shelf(tmp_path / "d" / "tiny"), names, Span(0, 1))
    assert Shelf(tmp_path / "d" / "tiny").identity() != first.identity()


def test_a_second_pull_adds_parts_and_refuses_another_model(hub: Hub, names: Names, tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "tiny")
    pull(hub.source(), shelf, names, Span(0, 2))
    sent = hub.bytes_sent
    pull(hub.source(), shelf, names, Span(0, 6))
    check_equal(shelf, hub.folder, names, Span(0, 6))
    whole = sum(p.stat().st_size for p in hub.folder.glob("*.safetensors"))
    assert hub.bytes_sent - sent < whole
    write_checkpoint(tmp_path / "other", seed=1)
    with pytest.raises(FetchFailed, match="glossd rm tiny"):
        pull(FolderSource(tmp_path / "other"), shelf, names, Span(0, 1))


def test_a_shared_table_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    names = write_checkpoint(tmp_path / "tied", tied=True)
    shelf = Shelf(tmp_path / "tiny")
    with serving(tmp_path / "tied") as hub:
        pull(hub.source(), shelf, names, Span(5, 6))
    check_equal(shelf, tmp_path / "tied", names, Span(5, 6))
    assert held_parts(names, frozenset(shelf.tensors())) == [0, 5]
    assert sum("wte" in name for path in shelf.folder.glob("part-*") for name in load_file(path)) == 1


def test_dropped_connections_go_on_where_they_broke(hub: Hub, names: Names, tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "tiny")
    hub.drops, hub.drop_after, hub.busy = 4, 1000, 2
    pull(hub.source(), shelf, names, Span(0, 6))
    check_equal(shelf, hub.folder, names, Span(0, 6))
    assert hub.drops == 0


def test_retries_end_and_the_next_pull_goes_on(hub: Hub, names: Names, tmp_path: Path) -> None:
    shelf, source, span = Shelf(tmp_path / "tiny"), hub.source(), Span(0, 6)
    published = read_published(source)
    shelf.describe(published, hub.repo, source.revision)
    files = files_of(published, names, span)
    whole = remaining_bytes(shelf, files)
    pull_files(source, shelf, published.shards, files[:1], lambda done, total: None)
    rest = files[1:]
    hub.drop_after, hub.drops = 0, 10**9
    with pytest.raises(FetchFailed, match=r"6 attempts.*run the same command again"):
        pull_files(source, shelf, published.shards, rest, lambda done, total: None, connections=1)
    assert held_parts(names, frozenset(shelf.tensors())) == [0]
    hub.drops = 0
    stop_after(source, 3)
    with pytest.raises(KeyboardInterrupt):
        pull_files(source, shelf, published.shards, rest, lambda done, total: None, connections=1)
    left, sent = remaining_bytes(shelf, rest), hub.bytes_sent
    assert 0 < left < whole
    seen: list[tuple[int, int]] = []
    again = hub.source()
    pull_files(again, shelf, published.shards, rest, lambda done, total: seen.append((done, total)))
    assert hub.bytes_sent - sent == left
    assert seen[0][0] == seen[0][1] - left
    assert seen[-1][0] == seen[-1][1]
    check_equal(shelf, hub.folder, names, span)
    assert leftovers(shelf) == []


def stop_after(source: HubSource, reads: int) -> None:
    """The user presses Ctrl-C when that many reads are done."""
    original: Callable[[str, int, int], Iterator[bytes]] = source.read
    left = [reads]

    def read(file: str, start: int, stop: int) -> Iterator[bytes]:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return original(file, start, stop)

    source.read = read  # type: ignore[method-assign]


def test_a_journal_of_other_content_is_not_believed(hub: Hub, names: Names, tmp_path: Path) -> None:
    shelf, source = Shelf(tmp_path / "tiny"), hub.source()
    published = read_published(source)
    shelf.describe(published, hub.repo, source.revision)
    (file,) = files_of(published, names, Span(1, 2))
    partial = shelf.part_path(1).with_name("part-00001.safetensors.partial")
    partial.write_bytes(b"\0" * file.size_bytes)
    journal = partial.with_suffix(".journal")
    journal.write_text("0" * 64 + "\n" + "".join(f"{i}\n" for i in range(len(file.pieces))))
    assert remaining_bytes(shelf, [file]) > 0
    pull_files(source, shelf, published.shards, [file], lambda done, total: None)
    check_equal(shelf, hub.folder, names, Span(1, 2))


def test_a_line_that_a_crash_cut_off_does_not_count(hub: Hub, names: Names, tmp_path: Path) -> None:
    shelf, source = Shelf(tmp_path / "tiny"), hub.source()
    published = read_published(source)
    shelf.describe(published, hub.repo, source.revision)
    (file,) = files_of(published, names, Span(1, 2))
    shelf.part_path(1).with_name("part-00001.safetensors.partial").write_bytes(b"\0" * file.size_bytes)
    shelf.part_path(1).with_name("part-00001.safetensors.journal").write_text(f"{file.key}\n0")
    assert remaining_bytes(shelf, [file]) == sum(piece.stop - piece.start for piece in file.pieces)


def test_wrong_bytes_are_set_aside_and_never_held(hub: Hub, names: Names, tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "tiny")
    hub.flips = {"model-00001-of-00002.safetensors"}
    with pytest.raises(ModelFileError, match="sha256"):
        pull(hub.source(), shelf, names, Span(0, 6))
    assert held_parts(names, frozenset(shelf.tensors())) == []
    assert list(shelf.folder.glob("*.corrupt"))
    assert not list(shelf.folder.glob("part-*.safetensors"))
    hub.flips = set()
    pull(hub.source(), shelf, names, Span(0, 6))
    check_equal(shelf, hub.folder, names, Span(0, 6))


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({"gated": True}, "accept its licence at .*/someone/tiny and set HF_TOKEN"),
        ({"repo": "someone/else"}, "no config.json"),
        ({"ignores_ranges": True}, "answers 200 with no range"),
        ({"wrong_range": True}, "were asked for"),
        ({"sends_more": True}, "more bytes"),
        ({"tells_hashes": False}, "does not tell the sha256"),
        ({"busy": 10**9}, "6 attempts"),
    ],
)
def test_what_a_hub_can_do_wrong_gets_one_line(
    hub: Hub, names: Names, tmp_path: Path, fault: dict[str, object], says: str
) -> None:
    for name, value in fault.items():
        setattr(hub, name, value)
    with pytest.raises(FetchFailed, match=says) as raised:
        pull(hub.source(), Shelf(tmp_path / "tiny"), names, Span(0, 6))
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "tiny").exists()


def test_the_token_goes_to_the_hub(hub: Hub, names: Names, tmp_path: Path) -> None:
    pull(hub.source("secret"), Shelf(tmp_path / "tiny"), names, Span(1, 2))
    assert {authorization for _, path, _, authorization in hub.requests if "/resolve/" in path} == {"Bearer secret"}


def test_nobody_listens(tmp_path: Path, names: Names) -> None:
    source = HubSource("someone/tiny", "main", "http://127.0.0.1:9", None, pause=lambda seconds: None)
    with closing(source), pytest.raises(FetchFailed, match=r"from http://127.0.0.1:9 in 6 attempts"):
        pull(source, Shelf(tmp_path / "tiny"), names, Span(0, 1))


def test_a_disk_that_is_full_from_the_start_keeps_nothing(
    hub: Hub, names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    shelf = Shelf(tmp_path / "tiny")
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(FetchFailed, match=r"disk .* is full"):
        pull(hub.source(), shelf, names, Span(0, 6))
    assert leftovers(shelf) == []
    assert not list(shelf.folder.glob("part-*"))


def test_a_disk_that_fills_up_leaves_no_final_name_and_goes_on_later(
    hub: Hub, names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = os.pwrite, [9]

    def filling(descriptor: int, data: memoryview, at: int) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data, at)

    shelf = Shelf(tmp_path / "tiny")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", filling)
        with pytest.raises(FetchFailed, match=r"disk .* is full"):
            pull(hub.source(), shelf, names, Span(0, 6))
    assert not list(shelf.folder.glob("part-*.safetensors"))
    pull(hub.source(), shelf, names, Span(0, 6))
    check_equal(shelf, hub.folder, names, Span(0, 6))


@pytest.mark.parametrize(
    "file", ["../up.safetensors", "/etc/a.safetensors", "a/b.safetensors", "x.bin", ".safetensors"]
)
def test_an_index_cannot_point_outside(hub: Hub, names: Names, file: str) -> None:
    index = hub.folder / "model.safetensors.index.json"
    raw = json.loads(index.read_text())
    raw["weight_map"][names[0][0]] = file
    index.write_text(json.dumps(raw))
    with pytest.raises(ModelFileError, match=r"no plain .safetensors name"):
        read_published(hub.source())


def test_an_index_that_contradicts_its_shards_is_refused(hub: Hub, names: Names) -> None:
    index = hub.folder / "model.safetensors.index.json"
    raw = json.loads(index.read_text())
    raw["weight_map"]["stranger"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(raw))
    with pytest.raises(ModelFileError, match="'stranger'"):
        read_published(hub.source())


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02.")
    with pytest.raises(ModelFileError, match="pickled weights"):
        read_published(FolderSource(tmp_path))


def test_two_pulls_of_one_model_do_not_mix(hub: Hub, names: Names, tmp_path: Path) -> None:
    shelf, source = Shelf(tmp_path / "tiny"), hub.source()
    published = read_published(source)
    shelf.describe(published, hub.repo, source.revision)
    file = plan_file(published.shards, names, 1)
    refused: list[str] = []

    def during(done: int, total: int) -> None:
        with pytest.raises(FetchFailed, match="another command") as raised:
            pull_files(source, shelf, published.shards, [file], lambda done, total: None)
        refused.append(str(raised.value))

    pull_files(source, shelf, published.shards, [file], during)
    assert refused


def test_a_checkpoint_that_lacks_a_tensor_says_which(tmp_path: Path) -> None:
    names = write_checkpoint(tmp_path / "origin", shards=1)
    published = read_published(FolderSource(tmp_path / "origin"))
    names[1] = (*names[1], "model.missing.weight")
    with pytest.raises(ModelFileError, match=r"lacks tensor model.missing.weight, which part 1 needs"):
        plan_file(published.shards, names, 1)
