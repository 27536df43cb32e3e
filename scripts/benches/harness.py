"""Shared by all benches: medians with spread, the machine's description, progress on standard error."""

import os
import platform
import statistics
import sys
from collections.abc import Sequence

import psutil


def summary(values: Sequence[float], digits: int = 5) -> dict[str, float]:
    """Median and the 10th and 90th percentiles."""
    ordered = sorted(values)
    if len(ordered) == 1:
        ordered = ordered * 2
    deciles = statistics.quantiles(ordered, n=10, method="inclusive")
    return {
        "median": round(statistics.median(ordered), digits),
        "p10": round(deciles[0], digits),
        "p90": round(deciles[-1], digits),
        "n": len(values),
    }


def environment() -> dict[str, object]:
    return {
        "cpus": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "load_1min": round(psutil.getloadavg()[0], 2),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
