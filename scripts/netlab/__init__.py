"""A network on one machine: namespaces joined by links of chosen delay, rate and loss. Needs root, iproute2 and TUN.

    with star(4, rtt_ms=100) as spaces:           # any two of the four are 100 ms apart
        spaces[0].popen(["python", "-m", "glossd.daemon", ...])

Everything is named with a prefix, so that `down(prefix)` also clears what a crash left behind. Packets pass through a
process per link (`link`), so nothing of the kernel's traffic shaping is needed.
"""

from scripts.netlab.spaces import Space, down, why_not
from scripts.netlab.star import star

__all__ = ["Space", "down", "star", "why_not"]
