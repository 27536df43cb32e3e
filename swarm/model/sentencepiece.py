"""Read a SentencePiece `tokenizer.model` (a protocol buffer) as the `tokenizers` library's byte-pair encoder.

Only what Llama's tokenizer uses: a BPE model with byte fallback and no normalisation of characters. Field numbers are
those of sentencepiece_model.proto. No protocol-buffer library: two levels of nesting need a loop of ten lines.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, normalizers
from tokenizers.models import BPE

from swarm.errors import ModelFileError

MAX_FILE, MAX_PIECE = 64 * 1024 * 1024, 256
SPACE = "\u2581"

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_BPE = 2


@dataclass(frozen=True, slots=True)
class Pieces:
    """`kinds` are SentencePiece's types of piece. `adds_space`: a text is encoded as if a space stood before it."""

    texts: tuple[str, ...]
    scores: tuple[float, ...]
    kinds: tuple[int, ...]
    adds_space: bool


def read_pieces(path: Path) -> Pieces:
    """Raises ModelFileError."""
    try:
        if path.stat().st_size > MAX_FILE:
            raise ValueError(f"larger than {MAX_FILE} bytes")
        return _parse(path.read_bytes())
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, IndexError, struct.error) as error:
        raise ModelFileError(
            f"{path} is no SentencePiece model that glossd can read: {error}; fetch it again"
        ) from None


def sentencepiece_coder(pieces: Pieces) -> Tokenizer:
    """The encoder without the space before a text, which the caller adds where a text begins."""
    ids = {text: i for i, text in enumerate(pieces.texts)}
    unknown = next((t for t, kind in zip(pieces.texts, pieces.kinds, strict=True) if kind == _UNKNOWN), None)
    coder = Tokenizer(BPE(ids, _merges(pieces, ids), unk_token=unknown, fuse_unk=True, byte_fallback=True))
    coder.normalizer = normalizers.Replace(" ", SPACE)
    coder.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    special = [t for t, kind in zip(pieces.texts, pieces.kinds, strict=True) if kind in (_UNKNOWN, _CONTROL)]
    coder.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special])
    return coder


def _merges(pieces: Pieces, ids: dict[str, int]) -> list[tuple[str, str]]:
    """SentencePiece joins the two neighbours whose union scores best; a merge list says the same in order of score."""
    found = []
    for text, score, kind in zip(pieces.texts, pieces.scores, pieces.kinds, strict=True):
        if kind in (_NORMAL, _USER_DEFINED):
            splits = ((text[:i], text[i:]) for i in range(1, len(text)))
            pairs = sorted((ids[a], ids[b], a, b) for a, b in splits if a in ids and b in ids)
            found += [(-score, a, b) for _, _, a, b in pairs]
    found.sort(key=lambda merge: merge[0])
    return [(a, b) for _, a, b in found]


def _parse(data: bytes) -> Pieces:
    texts, scores, kinds = [], [], []
    model, fallback, adds_space, charsmap = 1, False, True, b""
    for field, value in _fields(data):
        if field == 1:
            piece = dict(_fields(_bytes(value)))
            texts.append(_bytes(piece.get(1, b"")).decode())
            scores.append(struct.unpack("<f", _bytes(piece.get(2, b"\0\0\0\0")))[0])
            kinds.append(_number(piece.get(3, _NORMAL)))
        elif field == 2:
            trainer = dict(_fields(_bytes(value)))
            model, fallback = _number(trainer.get(3, 1)), bool(trainer.get(35, 0))
        elif field == 3:
            normalizer = dict(_fields(_bytes(value)))
            adds_space, charsmap = bool(normalizer.get(3, 1)), _bytes(normalizer.get(2, b""))
    if not texts or len(set(texts)) != len(texts):
        raise ValueError("its pieces are missing or repeated")
    if max(map(len, texts)) > MAX_PIECE:
        raise ValueError(f"it has a piece of more than {MAX_PIECE} characters")
    if model != _BPE or not fallback or _BYTE not in kinds:
        raise ValueError("it is not a byte-pair model with byte fallback; convert it to tokenizer.json")
    if charsmap:
        raise ValueError("it rewrites characters; convert it to tokenizer.json")
    return Pieces(tuple(texts), tuple(scores), tuple(kinds), adds_space)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of one message: a number for varints, bytes for everything else."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        field, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield field, value
            continue
        size = {1: 8, 5: 4}.get(wire)
        if wire == 2:
            size, at = _varint(data, at)
        if size is None or at + size > len(data):
            raise ValueError(f"field {field} is cut off or of an unknown form")
        yield field, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
    raise ValueError("a number does not end")


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number stands where text belongs")
    return value


def _number(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("text stands where a number belongs")
    return value
