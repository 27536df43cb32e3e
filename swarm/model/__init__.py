"""Masked-diffusion backbones as spans of parts: configuration, layers, weights, head and tokenizer.

Knows nothing of peers, bytes on a wire or plans; `host` and `glossd` call it.
"""

import os

# Intel's matrix library, which torch brings on x86, rounds by the number of lines and threads unless told not to.
# Strict reproducibility gives each line the same bits alone or joined, on one thread or many, at no cost that we could
# measure. The library reads this at the first product.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
# OpenMP's threads spin before they sleep, for many milliseconds unless told not to: what they wait for is then often a
# thread that they keep from its processor. It is read when torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")
