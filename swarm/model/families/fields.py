"""Read the fields of a published `config.json`, each by name and within limits.

A field that the arithmetic needs is never defaulted. A field that nobody reads is refused when its name speaks of the
arithmetic and it is switched on: better no answer than the answers of another model. Called by the family modules.
"""

import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from swarm.errors import ModelFileError

MAX_HIDDEN, MAX_HEADS, MAX_HEAD_DIM, MAX_LAYERS = 65536, 1024, 1024, 1024
MAX_INTERMEDIATE, MAX_VOCAB, MAX_LENGTH = 2**19, 2**21, 2**21

_ARITHMETIC = re.compile(
    r"act|alibi|attention|attn|bias|block|clip|embed|expert|ffn|head|hidden|intermediate|layer|length|mlp|moe|"
    r"multiplier|norm|position|qkv|quant|residual|rope|rotary|router|scal|softcap|window"
)
_OFF: tuple[object, ...] = (None, False, 0, "", [], {})
_HARMLESS = frozenset(
    (
        "_attn_implementation",
        "attn_implementation",
        "_flash_attn_2_enabled",
        "max_length",
        "output_attentions",
        "output_hidden_states",
    )
)


class Fields:
    """One config.json. Every method raises ModelFileError with a line that names the field."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._raw = raw
        self._read: set[str] = {"model_type", "architectures"}

    def has(self, field: str) -> bool:
        """Whether the field is there and not null."""
        return self._raw.get(field) is not None

    def size(self, field: str, limit: int) -> int:
        value = self._take(field)
        if type(value) is not int or not 1 <= value <= limit:
            raise ModelFileError(f"config.json: {field} is {shown(value)}; it must be a whole number from 1 to {limit}")
        return value

    def positive(self, field: str) -> float:
        return positive(field, self._take(field))

    def token(self, field: str, rows: int) -> int:
        """A token id. Of a list of ids, which some checkpoints give for the end token, the first."""
        value = self._take(field)
        if isinstance(value, list) and value:
            value = value[0]
        if type(value) is not int or not 0 <= value < rows:
            raise ModelFileError(f"config.json: {field} is {shown(value)}; it must be a token id from 0 to {rows - 1}")
        return value

    def flag(self, field: str) -> bool:
        """A switch that may be left out, for no."""
        value = self._take(field)
        if not (value is None or isinstance(value, bool)):
            raise ModelFileError(f"config.json: {field} is {shown(value)}; it must be true or false")
        return value is True

    def optional(self, field: str) -> object:
        return self._take(field)

    def must_be(self, wanted: Mapping[str, object]) -> None:
        """Where one of these fields is there, it has this value: glossd computes nothing else."""
        for field, want in wanted.items():
            value = self._take(field)
            if field in self._raw and (value != want or isinstance(value, bool) is not isinstance(want, bool)):
                raise ModelFileError(f"config.json: {field} is {shown(value)}; glossd runs such models with {want!r}")

    def agree(self, same: Mapping[str, tuple[str, object]]) -> None:
        """Other names of fields: absent, or equal to what the first name says."""
        for field, (first, want) in same.items():
            value = self._take(field)
            if value is not None and value != want:
                raise ModelFileError(
                    f"config.json: {field} is {shown(value)} but {first} says {want!r}; keep one of them"
                )

    def ignore(self, fields: Iterable[str]) -> None:
        """Fields that have no say in a forward pass."""
        self._read.update(fields)

    def end(self) -> None:
        """Refuse what nobody read and what may change the arithmetic."""
        for field in sorted(self._raw.keys() - self._read - _HARMLESS):
            on = self._raw[field] not in _OFF
            if on and _ARITHMETIC.search(field) and not field.endswith("dropout"):
                raise ModelFileError(
                    f"config.json: {field} is {shown(self._raw[field])}, which glossd does not know in models of type "
                    f"{self._raw.get('model_type')}; it cannot run this checkpoint faithfully"
                )

    def _take(self, field: str) -> Any:
        self._read.add(field)
        return self._raw.get(field)


def positive(field: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= sys.float_info.max:
        raise ModelFileError(f"config.json: {field} is {shown(value)}; it must be a positive number")
    return float(value)


def check_heads(hidden: tuple[str, int], heads: tuple[str, int], kv_heads: tuple[str, int]) -> None:
    """Each argument is a field's name and value."""
    for (name, value), (divisor_name, divisor) in ((hidden, heads), (heads, kv_heads)):
        if value % divisor:
            raise ModelFileError(f"config.json: {name} {value} is not a multiple of {divisor_name} {divisor}")
    size = hidden[1] // heads[1]
    if size % 2 or size > MAX_HEAD_DIM:
        raise ModelFileError(
            f"config.json: {hidden[0]} {hidden[1]} over {heads[0]} {heads[1]} gives heads of {size}; "
            f"they must be even and at most {MAX_HEAD_DIM}"
        )


def check_mask(mask_id: int, others: Mapping[str, object]) -> None:
    """No other named token may be the mask: it would be taken for an open position."""
    for field, value in others.items():
        if value == mask_id and value is not None:
            raise ModelFileError(f"config.json: mask_token_id and {field} are both {mask_id}; they must differ")


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
