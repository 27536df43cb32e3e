"""Weights on disk: published checkpoints, their headers and hashes, and pulling the parts a node hosts.

Knows nothing of torch, of peers or of model families: callers say which tensors a part needs.
"""
