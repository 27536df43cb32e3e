"""Read and write safetensors headers, of files and of byte ranges fetched from elsewhere. Touches no tensor data.

Stricter than the format asks, because a header comes from strangers and decides what is allocated: every entry is
checked against the size of the file before anything behind it is used. The walk over the JSON text makes one small
object at a time, so that a hostile header costs no more memory than its own bytes.
Format: an unsigned 64-bit length, that many bytes of JSON, then the data without holes.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from swarm.errors import ModelFileError

HEADER_LIMIT = 100_000_000
LENGTH_BYTES = 8
TENSOR_LIMIT = 65_536
ALIGNMENT = 64
ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1,
    "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip

_MAX_DIMS = 8
_BLANK = re.compile(r"[ \t\r\n]*")
_ENTRY = re.compile(r"\{[^{}]{1,1024}\}")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Bytes `start` up to `stop`, counted from the beginning of the file, hold `shape` items of `dtype`."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def size_bytes(self) -> int:
        return self.stop - self.start


def header_end(first: bytes, file_bytes: int, where: str) -> int:
    """Where the data begins, from the file's first 8 bytes. Raises ModelFileError."""
    if len(first) != LENGTH_BYTES or file_bytes < LENGTH_BYTES + 2:
        raise ModelFileError(f"{where} is too short for a safetensors file; fetch it again")
    length = int.from_bytes(first, "little")
    if length > HEADER_LIMIT:
        raise ModelFileError(f"{where}: its header claims {length} bytes, the limit is {HEADER_LIMIT}; fetch it again")
    if LENGTH_BYTES + length > file_bytes:
        raise ModelFileError(f"{where}: its header claims {length} bytes, the file has {file_bytes}; fetch it again")
    return LENGTH_BYTES + length


def parse_header(text: bytes, file_bytes: int, where: str) -> dict[str, TensorSpec]:
    """`text` is the JSON between length and data. The tensors in the order of their bytes. Raises ModelFileError."""
    try:
        entries = _entries(text.decode("utf-8"))
        tensors = {name: _spec(name, fields, LENGTH_BYTES + len(text)) for name, fields in entries.items()}
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{where}: its header is malformed ({error}); fetch it again") from None
    ordered = dict(sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)))
    end = LENGTH_BYTES + len(text)
    for name, spec in ordered.items():
        if spec.start != end:
            raise ModelFileError(f"{where}: tensor {name[:80]!r} overlaps or leaves a hole; fetch the file again")
        end = spec.stop
    if end != file_bytes:
        raise ModelFileError(f"{where} has {file_bytes} bytes where its header says {end}; fetch it again")
    return ordered


def read_header(path: Path) -> dict[str, TensorSpec]:
    """The tensors of a file in the order of their bytes. Raises ModelFileError."""
    try:
        with path.open("rb") as file:
            file_bytes = path.stat().st_size
            end = header_end(file.read(LENGTH_BYTES), file_bytes, str(path))
            text = file.read(end - LENGTH_BYTES)
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror}") from None
    return parse_header(text, file_bytes, str(path))


def write_header(tensors: Mapping[str, TensorSpec]) -> tuple[bytes, dict[str, TensorSpec]]:
    """The length and JSON of a new file that holds `tensors` one after the other, and where each will lie.

    The data begins at a multiple of 64 bytes, so that tensors whose sizes are multiples too can be mapped and used in
    place: kernels may sum in another order on memory that is not aligned.
    """
    offset = 0
    offsets: dict[str, tuple[int, int]] = {}
    for name, spec in tensors.items():
        offsets[name] = (offset, offset + spec.size_bytes)
        offset += spec.size_bytes
    fields = {
        name: {"dtype": spec.dtype, "shape": spec.shape, "data_offsets": offsets[name]}
        for name, spec in tensors.items()
    }
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-(LENGTH_BYTES + len(text)) % ALIGNMENT)
    begin = LENGTH_BYTES + len(text)
    placed = {
        name: TensorSpec(spec.dtype, spec.shape, begin + offsets[name][0], begin + offsets[name][1])
        for name, spec in tensors.items()
    }
    return len(text).to_bytes(LENGTH_BYTES, "little") + text, placed


def _entries(text: str) -> dict[str, str]:
    """Tensor name -> text of its entry. The metadata is walked over and dropped."""
    cursor = _Cursor(text)
    found: dict[str, str] = {}
    cursor.expect("{")
    more = not cursor.accept("}")
    while more:
        name = cursor.string()
        cursor.expect(":")
        if name == "__metadata__":
            _skip_metadata(cursor)
        elif name in found or len(found) == TENSOR_LIMIT:
            raise ValueError(f"{name[:80]!r} appears twice" if name in found else f"over {TENSOR_LIMIT} tensors")
        else:
            found[name] = cursor.entry()
        more = cursor.goes_on()
    if text[cursor.at :].strip(" "):
        raise ValueError("something follows its JSON")
    return found


def _skip_metadata(cursor: "_Cursor") -> None:
    cursor.expect("{")
    more = not cursor.accept("}")
    while more:
        cursor.string()
        cursor.expect(":")
        cursor.string()
        more = cursor.goes_on()


def _spec(name: str, entry: str, begin: int) -> TensorSpec:
    fields = json.loads(entry, object_pairs_hook=_unique)
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if len(fields) != 3 or not _counts(shape) or not _counts(offsets) or len(offsets) != 2 or len(shape) > _MAX_DIMS:
        raise ValueError(f"the entry of {name[:80]!r} needs dtype, shape and data_offsets")
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise ValueError(f"{name[:80]!r} has dtype {str(dtype)[:20]!r}")
    if offsets[1] - offsets[0] != math.prod(shape) * ITEM_BYTES[dtype]:
        raise ValueError(f"{name[:80]!r} is {dtype} {shape}, its bytes {offsets}")
    return TensorSpec(dtype, tuple(shape), begin + offsets[0], begin + offsets[1])


def _counts(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field appears twice")
    return fields


class _Cursor:
    """A place in JSON text; every step raises ValueError where the text is not as wanted."""

    def __init__(self, text: str) -> None:
        self.at = 0
        self._text = text
        self._decode = json.JSONDecoder().raw_decode

    def accept(self, mark: str) -> bool:
        """Step over `mark` and the blanks around it, if it is next."""
        found = self._text.startswith(mark, self.at)
        if found:
            self.at = self._after_blanks(self.at + 1)
        return found

    def expect(self, mark: str) -> None:
        if not self.accept(mark):
            raise ValueError(f"{mark!r} is missing at byte {self.at}")

    def goes_on(self) -> bool:
        """After a member of an object: whether another follows."""
        if self.accept("}"):
            return False
        self.expect(",")
        return True

    def string(self) -> str:
        if not self._text.startswith('"', self.at):
            raise ValueError(f"a string is missing at byte {self.at}")
        value, end = self._decode(self._text, self.at)
        self.at = self._after_blanks(end)
        return str(value)

    def entry(self) -> str:
        match = _ENTRY.match(self._text, self.at)
        if match is None:
            raise ValueError(f"a small object is missing at byte {self.at}")
        self.at = self._after_blanks(match.end())
        return match[0]

    def _after_blanks(self, at: int) -> int:
        match = _BLANK.match(self._text, at)
        return match.end() if match else at
