"""Which bytes of a published checkpoint make up the file of a part. Pure.

A tensor is at home in the first part that needs it, so that a table shared by embedding and head is fetched and kept
once; whoever wants the head alone gets the embedding's file too.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from swarm.errors import ModelFileError
from swarm.ids import Span
from swarm.store.published import Shard
from swarm.store.safetensors_file import TensorSpec, write_header

PIECE_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes `start` up to `stop` of `shard` go to offset `at` of the part's file."""

    shard: str
    start: int
    stop: int
    at: int


@dataclass(frozen=True, slots=True)
class PartFile:
    """`header` is written first, the pieces fill the rest. `key` names this content: another key, another file."""

    part: int
    header: bytes
    tensors: dict[str, TensorSpec]
    pieces: tuple[Piece, ...]
    key: str

    @property
    def size_bytes(self) -> int:
        return max((spec.stop for spec in self.tensors.values()), default=len(self.header))


def homes(names: Sequence[Sequence[str]]) -> dict[str, int]:
    """`names[part]` are the tensors that a part needs. Tensor -> the part whose file holds it."""
    found: dict[str, int] = {}
    for part, tensors in enumerate(names):
        for tensor in tensors:
            found.setdefault(tensor, part)
    return found


def files_for(names: Sequence[Sequence[str]], span: Span) -> list[int]:
    """The parts whose files a node needs to host `span`."""
    home = homes(names)
    return sorted({home[tensor] for part in span for tensor in names[part]})


def held_parts(names: Sequence[Sequence[str]], held: frozenset[str]) -> list[int]:
    """The parts all of whose tensors are held."""
    return [part for part, tensors in enumerate(names) if held.issuperset(tensors)]


def plan_file(shards: dict[str, Shard], names: Sequence[Sequence[str]], part: int) -> PartFile:
    """Raises ModelFileError when the checkpoint lacks a tensor."""
    home = homes(names)
    where = {name: (file, spec) for file, shard in shards.items() for name, spec in shard.tensors.items()}
    missing = [name for name in names[part] if name not in where]
    if missing:
        raise ModelFileError(f"the checkpoint lacks tensor {missing[0]}, which part {part} needs")
    mine = sorted((where[name][0], where[name][1].start, name) for name in names[part] if home[name] == part)
    header, placed = write_header({name: where[name][1] for _, _, name in mine})
    pieces = [Piece(file, where[name][1].start, where[name][1].stop, placed[name].start) for file, _, name in mine]
    key = hashlib.sha256(header)
    for file in sorted({piece.shard for piece in pieces}):
        key.update(f"{file}\0{shards[file].sha256}\n".encode())
    return PartFile(part, header, placed, tuple(_cut(_joined(pieces))), key.hexdigest())


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Neighbours in the shard are neighbours in the file: one request instead of many."""
    joined: list[Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if last is not None and (last.shard, last.stop) == (piece.shard, piece.start):
            joined[-1] = Piece(last.shard, last.start, piece.stop, last.at)
        elif piece.stop > piece.start:
            joined.append(piece)
    return joined


def _cut(pieces: Sequence[Piece]) -> list[Piece]:
    """Long runs are cut, so that connections share the work and little is lost when one breaks."""
    return [
        Piece(piece.shard, start, min(start + PIECE_BYTES, piece.stop), piece.at + start - piece.start)
        for piece in pieces
        for start in range(piece.start, piece.stop, PIECE_BYTES)
    ]


def runs(parts: Iterable[int]) -> list[Span]:
    """Ascending part numbers as spans."""
    found: list[Span] = []
    for part in parts:
        if found and found[-1].stop == part:
            found[-1] = Span(found[-1].start, part + 1)
        else:
            found.append(Span(part, part + 1))
    return found
