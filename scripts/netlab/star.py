"""Namespaces around a hub that routes between them: any two are a round trip apart, half of it on the link of each."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from scripts.netlab.spaces import Space, down, make

PREFIX = "gloss"


@contextmanager
def star(
    count: int,
    rtt_ms: float | Sequence[float],
    *,
    rate_mbit: float = 0.0,
    loss: float = 0.0,
    jitter_ms: float = 0.0,
    prefix: str = PREFIX,
) -> Iterator[list[Space]]:
    """`count` spaces at public-looking addresses. A sequence gives each its own share: two spaces with `a` and `b` are
    (a + b) / 2 apart. `loss` and `jitter_ms` hold for the way between two spaces, one way."""
    down(prefix)
    times = [rtt_ms] * count if isinstance(rtt_ms, int | float) else list(rtt_ms)
    links: list[subprocess.Popen[bytes]] = []
    try:
        hub = make(f"{prefix}-hub")
        hub.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
        spaces = []
        for index, own_ms in enumerate(times):
            space = make(f"{prefix}-{index}", f"44.0.{index}.2")
            router = f"44.0.{index}.1"
            shape = {"delay_ms": own_ms / 4, "rate_mbit": rate_mbit, "loss": loss / 2, "jitter_ms": jitter_ms / 2}
            given = {
                "spaces": [space.name, hub.name],
                "devices": [f"{prefix}{index}a"[-15:], f"{prefix}{index}b"[-15:]],
                "addresses": [space.address, router],
                "shape": shape,
                "seed": index,
            }
            links.append(_start(given))
            space.run("ip", "route", "add", "default", "via", router)
            spaces.append(space)
        yield spaces
    finally:
        down(prefix)
        for link in links:
            link.kill()
            link.wait()


def _start(given: dict[str, object]) -> "subprocess.Popen[bytes]":
    link = subprocess.Popen([sys.executable, "-m", "scripts.netlab.link", json.dumps(given)], stdout=subprocess.PIPE)
    if link.stdout is None or link.stdout.readline() != b"up\n":
        raise RuntimeError(f"the link of {given['spaces']} did not come up")
    return link
