"""What `scripts/bench` measures: one module a bench, each with `run() -> dict`."""
