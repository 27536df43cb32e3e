"""Masked-diffusion backbones as spans of parts: configuration, layers, weights, head and tokenizer.

Knows nothing of peers, bytes on a wire or plans; `host` and `glossd` call it.
"""
