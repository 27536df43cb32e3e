"""Counter-based noise: a draw depends on (seed, step, position, token id) and on nothing else.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), vectorised over positions and
tokens. Every driver, peer and replay therefore sees the same noise, in whatever order it asks.
"""

import numpy as np
import numpy.typing as npt

_MULTIPLIER_0, _MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)

TOKEN_STREAM, ORDER_STREAM = 0, 1


def _philox(counter: list[npt.NDArray[np.uint64]], key: tuple[int, int]) -> list[npt.NDArray[np.uint64]]:
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product_0, product_1 = c0 * _MULTIPLIER_0, c2 * _MULTIPLIER_1
        c0, c1, c2, c3 = (
            (product_1 >> _HALF) ^ c1 ^ np.uint64(k0),
            product_1 & _LOW,
            (product_0 >> _HALF) ^ c3 ^ np.uint64(k1),
            product_0 & _LOW,
        )
        k0, k1 = (k0 + _WEYL_0) & 0xFFFFFFFF, (k1 + _WEYL_1) & 0xFFFFFFFF
    return [c0, c1, c2, c3]


def uniform(
    seed: int,
    step: int,
    positions: npt.NDArray[np.int32],
    ids: npt.NDArray[np.int32],
    stream: int = TOKEN_STREAM,
) -> npt.NDArray[np.float64]:
    """Uniform draws in the open interval (0, 1) with 53 random bits.

    positions: int32 [P]; ids: int32 [P, K]. Returns float64 [P, K].
    """
    shape = ids.shape
    counter = [
        np.full(shape, step, dtype=np.uint64),
        np.broadcast_to(positions.astype(np.uint64)[:, None], shape).copy(),
        ids.astype(np.uint64),
        np.full(shape, stream, dtype=np.uint64),
    ]
    high, low, _, _ = _philox(counter, (seed & 0xFFFFFFFF, seed >> 32))
    bits = (high << np.uint64(21)) | (low >> np.uint64(11))
    return (bits.astype(np.float64) + 0.5) * 2.0**-53


def gumbel(
    seed: int,
    step: int,
    positions: npt.NDArray[np.int32],
    ids: npt.NDArray[np.int32],
    stream: int = TOKEN_STREAM,
) -> npt.NDArray[np.float64]:
    """Standard Gumbel draws, float64 [P, K]: in float32 the tail ends near 16.6 and lowers the temperature."""
    draws: npt.NDArray[np.float64] = -np.log(-np.log(uniform(seed, step, positions, ids, stream)))
    return draws
