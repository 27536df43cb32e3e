"""Where published checkpoints are read from: a seam of four methods, and its twin for a local folder.

`hub.HubSource` is the other one. A source hands out bytes; it knows neither tensors nor parts.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from swarm.errors import FetchFailed

READ_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileFacts:
    """`sha256` is of the whole file; None where the source does not know it without reading everything."""

    size_bytes: int
    sha256: str | None


class Source(Protocol):
    name: str
    """For messages: a repository or a folder."""
    revision: str
    """The commit that is read, or "" where there is none."""

    def has(self, file: str) -> bool:
        """Raises FetchFailed when nobody can tell."""
        ...

    def facts(self, file: str) -> FileFacts | None:
        """None when there is no such file. Raises FetchFailed."""
        ...

    def read(self, file: str, start: int, stop: int) -> Iterator[bytes]:
        """Exactly the bytes `start` up to `stop`, in order. Raises FetchFailed."""
        ...

    def close(self) -> None: ...


class FolderSource:
    """A checkpoint in a local folder, in the layout in which it was published."""

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self.revision = ""
        self._folder = folder

    def has(self, file: str) -> bool:
        return (self._folder / file).is_file()

    def facts(self, file: str) -> FileFacts | None:
        """Hashes the whole file."""
        path = self._folder / file
        try:
            if not path.is_file():
                return None
            with path.open("rb") as opened:
                return FileFacts(path.stat().st_size, hashlib.file_digest(opened, "sha256").hexdigest())
        except OSError as error:
            raise FetchFailed(f"cannot read {path}: {error.strerror}") from None

    def read(self, file: str, start: int, stop: int) -> Iterator[bytes]:
        path = self._folder / file
        try:
            with path.open("rb") as opened:
                opened.seek(start)
                while start < stop:
                    data = opened.read(min(READ_BYTES, stop - start))
                    if not data:
                        raise FetchFailed(f"{path} ended early; is something writing to it?")
                    start += len(data)
                    yield data
        except OSError as error:
            raise FetchFailed(f"cannot read {path}: {error.strerror}") from None

    def close(self) -> None:
        pass


def read_small(source: Source, file: str, limit: int) -> bytes | None:
    """A whole file of at most `limit` bytes, or None when it is not there. Raises FetchFailed."""
    facts = source.facts(file)
    if facts is None:
        return None
    if facts.size_bytes > limit:
        raise FetchFailed(f"{file} of {source.name} has {facts.size_bytes} bytes, over the limit of {limit}")
    data = b"".join(source.read(file, 0, facts.size_bytes))
    if facts.sha256 is not None and hashlib.sha256(data).hexdigest() != facts.sha256:
        raise FetchFailed(f"{file} of {source.name} differs from the sha256 that it announces; try again later")
    return data
