"""A daemon whose device is held: every forward takes HOLD_MS for the positions of a block of 48, and in
proportion for fewer or more, around the real, small compute. So a chain of these behaves like one of slow devices.

Not a bench: `pipeline` and `window` start it in the place of `glossd.daemon`.
"""

import os
import sys
import time
from collections.abc import Sequence

from torch import Tensor

import swarm.host.batcher
from glossd.daemon import main
from swarm.ids import Span
from swarm.mixture.rows import ScoreRows
from swarm.model.forward import Job, run_jobs
from swarm.model.span import SpanModule

BLOCK = 48
HOLD_S = float(os.environ.get("HOLD_MS", "0")) / 1e3


def held(module: SpanModule, span: Span, jobs: Sequence[Job]) -> list[Tensor | ScoreRows]:
    began = time.perf_counter()
    results = run_jobs(module, span, jobs)
    lines = sum(job.x.shape[0] * job.x.shape[1] for job in jobs)
    time.sleep(max(0.0, HOLD_S * lines / BLOCK - (time.perf_counter() - began)))
    return results


if __name__ == "__main__":
    swarm.host.batcher.run_jobs = held
    code = main()
    sys.stderr.flush()
    os._exit(code)
