"""A chain over delayed links: one daemon a namespace, a coordinator that hosts nothing first. Not a bench itself."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from scripts.netlab import Lab, public_nodes
from tests.swarmlab.daemons import Daemon


@contextmanager
def far_chain(
    spans: Sequence[str], rtt_ms: float, hold_ms: float, *, loss: float = 0.0, jitter_ms: float = 0.0, **flags: object
) -> Iterator[list[Daemon]]:
    """The coordinator and a held daemon for each of `spans`, any two of them `rtt_ms` apart.

    `loss` and `jitter_ms` hold for the way between two of them, one way.
    """
    os.environ["HOLD_MS"] = str(hold_ms)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="glossd-far-")))
        nodes = public_nodes(len(spans) + 1, rtt_ms, loss=loss / 2, jitter_ms=jitter_ms)
        lab = stack.enter_context(Lab.made(nodes))
        daemons: list[Daemon] = []
        for index, (node, layers) in enumerate(zip(nodes, ["none", *spans], strict=True)):
            own = {"layers": layers, "host": lab.address(node.name), "threads": 1, "hop_timeout_s": 30.0, **flags}
            if daemons:
                own["join"] = [daemons[0].join_address]
            daemon = Daemon(folder / f"node{index}", own, enter=lab.enter(node.name), module="scripts.benches.held")
            stack.callback(daemon.end)
            daemons.append(daemon.launch())
            if index == 0:
                daemon.wait_ready()
        for daemon in daemons:
            daemon.wait_ready()
        daemons[0].wait_covered(peers=len(spans))
        yield daemons
