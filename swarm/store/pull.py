"""Fetch part files into a shelf: several connections, a journal to go on from, hashes, and only then final names.

All or nothing a call: what a broken pull has fetched stays in `.partial` files, and the next one goes on from there.
"""

import fcntl
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

from swarm.errors import FetchFailed, ModelFileError
from swarm.store.parts import PartFile
from swarm.store.published import Shard
from swarm.store.shelf import Placed, Shelf, disk_errors, file_sha256
from swarm.store.source import Source

CONNECTIONS = 4
Progress = Callable[[int, int], None]
"""Called with the bytes that are there and the bytes wanted, from any thread."""


class _Stopped(Exception):
    """Another piece failed first."""


def pull_files(
    source: Source,
    shelf: Shelf,
    shards: dict[str, Shard],
    files: Sequence[PartFile],
    progress: Progress,
    connections: int = CONNECTIONS,
) -> None:
    """Bring `files` onto the shelf, which was described before. Raises FetchFailed, ModelFileError."""
    with _locked(shelf.folder), disk_errors(shelf.folder):
        partials = _prepared([_Partial(shelf, file) for file in files])
        _fetch_all(source, partials, progress, connections)
        hashes = {partial.final.name: file_sha256(partial.path) for partial in partials}
        _verify_shards(shelf, shards, partials)
        # A name in the manifest without its file is not held, so this order survives a crash in between.
        shelf.record(hashes)
        for partial in partials:
            partial.finish()


def remaining_bytes(shelf: Shelf, files: Sequence[PartFile]) -> int:
    """What `pull_files` would still have to fetch."""
    return sum(_Partial(shelf, file).remaining for file in files)


class _Partial:
    """A part file on its way: reserved in full, filled piece by piece."""

    def __init__(self, shelf: Shelf, file: PartFile) -> None:
        self.file = file
        self.final = shelf.part_path(file.part)
        self.path = self.final.with_name(f"{self.final.name}.partial")
        self._journal = self.final.with_name(f"{self.final.name}.journal")
        self._lock = threading.Lock()
        self.done = self._read_journal()

    @property
    def remaining(self) -> int:
        return sum(piece.stop - piece.start for i, piece in enumerate(self.file.pieces) if i not in self.done)

    def prepare(self) -> None:
        """Reserve the space at once: a full disk is known before anything is fetched. Raises OSError."""
        if self.done:
            return
        self.discard()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.posix_fallocate(descriptor, 0, self.file.size_bytes)
            _write_all(descriptor, self.file.header, 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._journal.write_text(f"{self.file.key}\n")

    def fetch(self, number: int, source: Source, stop: threading.Event, count: Callable[[int], None]) -> None:
        piece = self.file.pieces[number]
        at = piece.at
        descriptor = os.open(self.path, os.O_WRONLY)
        try:
            for data in source.read(piece.shard, piece.start, piece.stop):
                if stop.is_set():
                    raise _Stopped
                _write_all(descriptor, data, at)
                at += len(data)
                count(len(data))
            # The journal must not claim bytes that a power cut could take back.
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        with self._lock, self._journal.open("a") as journal:
            journal.write(f"{number}\n")

    def finish(self) -> None:
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self.path.replace(self.final)
        self._journal.unlink(missing_ok=True)

    def quarantine(self) -> None:
        self.path.replace(self.final.with_name(f"{self.final.name}.corrupt"))
        self._journal.unlink(missing_ok=True)

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self._journal.unlink(missing_ok=True)

    def _read_journal(self) -> frozenset[int]:
        try:
            if self.path.stat().st_size != self.file.size_bytes:
                return frozenset()
            lines = self._journal.read_text().split("\n")[:-1]  # a line without its end was cut by a crash
        except (OSError, UnicodeDecodeError):
            return frozenset()
        if not lines or lines[0] != self.file.key:
            return frozenset()
        numbers = {int(line) for line in lines[1:] if line.isascii() and line.isdigit()}
        return frozenset(number for number in numbers if number < len(self.file.pieces))


def _prepared(partials: list[_Partial]) -> list[_Partial]:
    fresh = [partial for partial in partials if not partial.done]
    try:
        for partial in partials:
            partial.prepare()
    except OSError:
        for partial in fresh:
            partial.discard()
        raise
    return partials


def _fetch_all(source: Source, partials: Sequence[_Partial], progress: Progress, connections: int) -> None:
    total = sum(piece.stop - piece.start for partial in partials for piece in partial.file.pieces)
    there = total - sum(partial.remaining for partial in partials)
    lock, stop = threading.Lock(), threading.Event()

    def count(size: int) -> None:
        nonlocal there
        with lock:
            there += size
            progress(there, total)

    progress(there, total)
    with ThreadPoolExecutor(max_workers=connections, thread_name_prefix="pull") as pool:
        jobs = [
            pool.submit(partial.fetch, number, source, stop, count)
            for partial in partials
            for number in range(len(partial.file.pieces))
            if number not in partial.done
        ]
        try:
            for job in as_completed(jobs):
                job.result()
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _verify_shards(shelf: Shelf, shards: dict[str, Shard], partials: Sequence[_Partial]) -> None:
    """Compare every published shard of which we now hold all bytes with its sha256. Raises ModelFileError."""
    new = {name: Placed(p.path, spec) for p in partials for name, spec in p.file.tensors.items()}
    there = shelf.tensors() | new
    touched = {piece.shard for partial in partials for piece in partial.file.pieces}
    for file in sorted(touched):
        shard = shards[file]
        if not there.keys() >= shard.tensors.keys() or _shard_sha256(shard, there) == shard.sha256:
            continue
        paths = {there[name].path for name in shard.tensors}
        for partial in partials:
            if partial.path in paths:
                partial.quarantine()
        for path in paths - {partial.path for partial in partials}:
            shelf.quarantine(path.name)
        raise ModelFileError(
            f"{file} does not have the sha256 that the hub announces; its parts are set aside as *.corrupt, pull again"
        )


def _shard_sha256(shard: Shard, there: dict[str, Placed]) -> str:
    digest = hashlib.sha256(shard.header)
    for name in shard.tensors:
        for data in _read_range(there[name]):
            digest.update(data)
    return digest.hexdigest()


def _read_range(placed: Placed) -> Iterator[bytes]:
    left = placed.spec.size_bytes
    with placed.path.open("rb") as file:
        file.seek(placed.spec.start)
        while left > 0:
            data = file.read(min(left, 1024 * 1024))
            if not data:
                return
            left -= len(data)
            yield data


def _write_all(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One pull a model at a time."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FetchFailed(f"another command is pulling {folder.name}; wait for it") from None
        yield
