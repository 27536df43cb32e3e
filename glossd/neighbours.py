"""Other daemons on this machine, with which this one shares its processors."""

import psutil


def daemons_here() -> int:
    """Daemons that run now, this one among them; those of other users too where the system shows them."""
    lines = (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))
    return max(1, sum("glossd.start" in line for line in lines))
