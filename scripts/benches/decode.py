"""Decoding as glossd does it against the reference procedure: whole canvas each step, one token a step, no cache.

One node, embedded model, held-out exercises, the two ways in turn (client on loopback). Keys: speedup_short and
speedup_long (answer tokens a second; long is a canvas of 256 masks, cached in blocks of 32), accuracy_drop_points
(share of exercises solved, in points, reference minus ours), dual_over_none (time of a step on a random model of 12
layers and width 1024, canvas 512, block 32, in this process).
"""

import statistics
import time

import numpy as np
import torch

from glossd.events import Done
from scripts.benches.harness import say, summary
from scripts.benches.spine import answers
from scripts.train.evaluate import Body, prompts_of_all_tasks, solved
from swarm.ids import Span
from swarm.model.batch import Cache
from swarm.model.config import ModelConfig
from swarm.model.forward import HeadWork, Job, run_jobs
from swarm.model.span import SpanModule
from tests.swarmlab.daemons import Daemon, swarm

PER_TASK, LONG_TOKENS = 25, 256
REFERENCE: Body = {"commit": "quota", "cache": "none"}
LONG: Body = {"max_tokens": LONG_TOKENS, "block_length": 32}


def tokens_per_s(done: list[Done]) -> float:
    return sum(len(d.token_ids) for d in done) / sum(d.timings.decode_s for d in done)


def in_turn(node: Daemon, bodies: list[Body], ours: Body, reference: Body) -> tuple[list[Done], list[Done]]:
    pairs = [answers(node, [body | ours, body | reference]) for body in bodies]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def step_times() -> tuple[list[float], list[float]]:
    """Seconds of a step without a cache and with one, in turn."""
    config = ModelConfig(
        family="llada", hidden_size=1024, n_layers=12, n_heads=16, n_kv_heads=16, intermediate_size=2816,
        vocab_size=4096, max_length=1024, norm_eps=1e-5, rope_theta=500000.0, mask_id=2, eos_id=0, tied_head=False,
    )  # fmt: skip
    torch.set_num_threads(2)
    torch.manual_seed(0)
    span = Span(0, config.n_parts)
    module = SpanModule(config, span).eval().requires_grad_(False)
    ids = torch.randint(3, 4096, (1, 512))
    active = torch.arange(256, 288)
    head = HeadWork(active.numpy().astype(np.int32), 0.0, 4096)
    cache = Cache(1, 512)
    run_jobs(module, span, [Job(ids, head, None, cache)])
    whole, block = Job(ids, head), Job(ids[:, 256:288], head, active, cache)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(8):
        for job, found in zip((whole, block), times, strict=True):
            began = time.perf_counter()
            run_jobs(module, span, [job])
            found.append(time.perf_counter() - began)
    return times


def run() -> dict[str, object]:
    asked = prompts_of_all_tasks(seed=77, per_task=PER_TASK)
    bodies = [body for _, body in asked]
    with swarm("0:8", threads=1) as (node,):
        say("short answers")
        answers(node, bodies[:2])
        ours, reference = in_turn(node, bodies, {}, REFERENCE)
        say("long canvases")
        long_bodies = [body | LONG for body in bodies if "chat" in body][::12]
        long_ours, long_reference = in_turn(node, long_bodies, {"cache": "dual"}, REFERENCE)
    say("a model of 12 layers and width 1024")
    none, dual = step_times()
    right = {name: solved(asked, done) for name, done in (("ours", ours), ("reference", reference))}
    shares = {name: statistics.mean(scores.values()) for name, scores in right.items()}
    return {
        "where": "one node, client on loopback; dual_over_none in one process",
        "speedup_short": round(tokens_per_s(ours) / tokens_per_s(reference), 2),
        "speedup_long": round(tokens_per_s(long_ours) / tokens_per_s(long_reference), 2),
        "accuracy_drop_points": round(100 * (shares["reference"] - shares["ours"]), 2),
        "solved": {name: {task: round(share, 3) for task, share in scores.items()} for name, scores in right.items()},
        "steps_short": {
            "ours": summary([d.timings.steps for d in ours], 1),
            "reference": summary([d.timings.steps for d in reference], 1),
        },
        "dual_over_none": round(statistics.median(dual) / statistics.median(none), 3),
        "step_ms": {"none": summary([1e3 * t for t in none], 1), "dual": summary([1e3 * t for t in dual], 1)},
    }  # fmt: skip
