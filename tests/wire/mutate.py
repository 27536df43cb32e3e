"""Damage for decoders: valid bytes with some of them changed, cut or added. A hundred from each seed, so that ten
thousand take seconds."""

import random
from collections.abc import Iterator

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

seeds = st.integers(0, 2**32 - 1)
hundred_seeds = settings(
    max_examples=100, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)


def hundred_damaged(valid: bytes, seed: int) -> Iterator[bytes]:
    rng = random.Random(seed)
    for _ in range(100):
        data = bytearray(valid)
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            place = rng.randrange(len(data))
            data[place] = rng.choice((data[place] ^ 1 << rng.randrange(8), rng.randrange(256), *b'0"}\xff'))
        if rng.random() < 0.2:
            del data[rng.randrange(len(data)) :]
        if rng.random() < 0.2:
            data += rng.choice((b"\0", b"}", rng.randbytes(40)))
        yield bytes(data)
