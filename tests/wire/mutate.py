"""Damage for decoders: valid bytes with some of them changed, cut or added."""

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

ten_thousand = settings(
    max_examples=10_000,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)

_EDITS = st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=3)
_CUT = st.sampled_from([None, None, None, 1, 2, 7, 31, 200])
_MORE = st.sampled_from([b"", b"", b"", b"\0", b"}", b"\xff" * 40])

damages = st.tuples(_EDITS, _CUT, _MORE)


def damaged(valid: bytes, damage: tuple[list[tuple[int, int]], int | None, bytes]) -> bytes:
    edits, cut, more = damage
    data = bytearray(valid)
    for place, byte in edits:
        data[place % len(data)] = byte
    return bytes(data[:-cut] if cut else data) + more
