"""Decoding as glossd does it against the reference procedure: whole canvas each step, one token a step, no cache.

One node, embedded model, held-out exercises, the two ways in turn (client on loopback). Keys, each a ratio of tokens a
second: speedup_short, with the model's recipe and answers that end at their end token, both ways; speedup_long, a
canvas of 256 masks of which both ways find every position, as LLaDA's published sampler does (what follows the answer
is end tokens), ours in cached blocks of 32; speedup_long_stopping, the same where both end at the end token;
speedup_forced, 256 tokens without end tokens, which is text that the model never learnt and is never sure of.
accuracy_drop_points and accuracy_drop_points_long: share of exercises solved, in points, reference minus ours.
dual_over_none: time of a step on a random model of 12 layers and width 1024, canvas 512, block 32, in this process.
"""

import statistics
import time

import numpy as np
import torch

from glossd.events import Done
from scripts.benches.harness import say, summary
from scripts.benches.spine import answers
from scripts.train.evaluate import Body, Exercise, prompts_of_all_tasks, solved
from swarm.ids import Span
from swarm.model.batch import Cache
from swarm.model.config import ModelConfig
from swarm.model.forward import HeadWork, Job, run_jobs
from swarm.model.span import SpanModule
from tests.swarmlab.daemons import Daemon, swarm

PER_TASK, LONG_TOKENS, LONG_EVERY = 25, 256, 40
REFERENCE: Body = {"commit": "quota", "cache": "none"}
LONG: Body = {"max_tokens": LONG_TOKENS, "block_length": 32}
CACHED: Body = {"cache": "dual"}
WHOLE: Body = {"stop_at_eos": False}
FORCED: Body = {"suppress_eos": True}


def seconds(done: list[Done]) -> float:
    return sum(d.timings.decode_s for d in done)


def tokens_per_s(done: list[Done]) -> float:
    return sum(len(d.token_ids) for d in done) / seconds(done)


def drop(asked: list[tuple[Exercise, Body]], ours: list[Done], reference: list[Done]) -> float:
    """Points of accuracy that our way loses, the mean over kinds of exercises."""
    kept, had = (statistics.mean(solved(asked, done).values()) for done in (ours, reference))
    return round(100 * (had - kept), 2)


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
        long = [one for one in asked if "chat" in one[1]][::LONG_EVERY]
        long_bodies = [body | LONG for _, body in long]
        whole_ours, whole_reference = in_turn(node, long_bodies, CACHED | WHOLE, REFERENCE | WHOLE)
        stop_ours, stop_reference = in_turn(node, long_bodies, CACHED, REFERENCE)
        forced_ours, forced_reference = in_turn(node, long_bodies[:2], CACHED | FORCED, REFERENCE | FORCED)
    say("a model of 12 layers and width 1024")
    none, dual = step_times()
    right = {name: solved(asked, done) for name, done in (("ours", ours), ("reference", reference))}
    return {
        "where": "one node, client on loopback; dual_over_none in one process",
        "speedup_short": round(tokens_per_s(ours) / tokens_per_s(reference), 2),
        "speedup_long": round(seconds(whole_reference) / seconds(whole_ours), 2),
        "speedup_long_stopping": round(tokens_per_s(stop_ours) / tokens_per_s(stop_reference), 2),
        "speedup_forced": round(tokens_per_s(forced_ours) / tokens_per_s(forced_reference), 2),
        "accuracy_drop_points": drop(asked, ours, reference),
        "accuracy_drop_points_long": drop(long, whole_ours, whole_reference),
        "solved": {name: {task: round(share, 3) for task, share in scores.items()} for name, scores in right.items()},
        "passes_long": {
            "ours": summary([d.timings.passes for d in whole_ours], 1),
            "reference": summary([d.timings.passes for d in whole_reference], 1),
        },
        "steps_short": {
            "ours": summary([d.timings.steps for d in ours], 1),
            "reference": summary([d.timings.steps for d in reference], 1),
        },
        "dual_over_none": round(statistics.median(dual) / statistics.median(none), 3),
        "step_ms": {"none": summary([1e3 * t for t in none], 1), "dual": summary([1e3 * t for t in dual], 1)},
    }  # fmt: skip
