"""How much of the round trips a displaced patch pipeline hides.

Four spans in processes of their own over delayed links, each holding its device for 60 ms a block (see `held`), and a
coordinator apart; eight patches. One machine, network namespaces.

T is the time of a round: of a step when synchronous, of a visit of all patches in the pipeline, warm-up included.
Keys: masked_share ((T_sync(100) - T_pipe(100)) / (T_sync(100) - T_sync(1))), vs_sync_1ms (T_pipe(100) / T_sync(1)),
throughput_ratio_depth5 (rounds a second of five requests at once, at 100 ms over at 1 ms), round_ms and predicted_ms
(measured, and by `swarm.plan.walltime`), answer_s (whole answers), agreement (share of answer tokens equal to the
synchronous ones), accuracy_drop_points (share of exercises solved, in points, synchronous minus displaced, same rule).
"""

import statistics
from concurrent.futures import ThreadPoolExecutor

from glossd.events import Done
from scripts.benches.far import far_chain
from scripts.benches.harness import say, summary
from scripts.train.evaluate import prompts_of_all_tasks, solved
from swarm.plan.walltime import Chain, pipelined_s, synchronous_s
from tests.swarmlab.daemons import swarm

SPANS = ("0:2", "2:4", "4:6", "6:8")
PATCHES, HOLD_MS, DEPTH, REPEATS, PER_TASK = 8, 60.0, 5, 3, 20
RULE: dict[str, object] = {"commit": "threshold", "threshold": 0.995, "cache": "dual"}
LONG: dict[str, object] = {"prompt": "Once upon a time", "max_tokens": 48, "suppress_eos": True, **RULE}
DISPLACED: dict[str, object] = {"patches": PATCHES}


def round_s(done: Done) -> float:
    pipeline = done.pipeline
    rounds = done.timings.steps if pipeline is None else pipeline.loops + pipeline.synchronous
    return done.timings.decode_s / rounds


def measure(rtt_ms: float) -> tuple[dict[str, list[Done]], float]:
    """Answers one at a time, both ways; and rounds a second of DEPTH displaced requests at once."""
    found: dict[str, list[Done]] = {"sync": [], "pipe": []}
    with far_chain(SPANS, rtt_ms, HOLD_MS) as nodes, ThreadPoolExecutor(DEPTH) as pool:
        node = nodes[0]
        node.ask(LONG)
        for seed in range(REPEATS):
            body = LONG | {"seed": seed, "temperature": 0.3}
            found["sync"].append(node.ask(body))
            found["pipe"].append(node.ask(body | DISPLACED))
        bodies = [LONG | DISPLACED | {"seed": seed, "temperature": 0.3} for seed in range(DEPTH)]
        together = list(pool.map(node.ask, bodies))
    rate = sum(1 / round_s(done) for done in together)
    return found, rate


def quality() -> tuple[float, float]:
    """Points of accuracy lost against the synchronous decoder of the same rule, and the share of equal tokens."""
    asked = prompts_of_all_tasks(seed=55, per_task=PER_TASK)
    with swarm("0:8") as (node,):
        plain = [node.ask(body | RULE) for _, body in asked]
        displaced = [node.ask(body | RULE | DISPLACED) for _, body in asked]
    right = [statistics.mean(solved(asked, done).values()) for done in (plain, displaced)]
    pairs = [
        (a, b)
        for one, two in zip(plain, displaced, strict=True)
        for a, b in zip(one.token_ids, two.token_ids, strict=False)
    ]
    return 100 * (right[0] - right[1]), sum(a == b for a, b in pairs) / len(pairs)


def medians(found: dict[str, list[Done]]) -> dict[str, float]:
    return {name: statistics.median(map(round_s, done)) for name, done in found.items()}


def run() -> dict[str, object]:
    measured: dict[float, dict[str, list[Done]]] = {}
    rates: dict[float, float] = {}
    for rtt_ms in (1.0, 100.0):
        say(f"round trip {rtt_ms:g} ms")
        measured[rtt_ms], rates[rtt_ms] = measure(rtt_ms)
    near, far = medians(measured[1.0]), medians(measured[100.0])
    predicted = {}
    for rtt_ms in (1.0, 100.0):
        chain = Chain(len(SPANS), HOLD_MS / 1e3, rtt_ms / 1e3)
        times = {"sync": synchronous_s(chain), "pipe": pipelined_s(chain, PATCHES)}
        predicted[f"{rtt_ms:g}"] = {name: round(1e3 * seconds, 1) for name, seconds in times.items()}
    say("quality")
    lost, equal = quality()
    return {
        "where": "processes in namespaces, delayed links, held devices; quality in one process",
        "masked_share": round((far["sync"] - far["pipe"]) / (far["sync"] - near["sync"]), 3),
        "vs_sync_1ms": round(far["pipe"] / near["sync"], 3),
        "throughput_ratio_depth5": round(rates[100.0] / rates[1.0], 3),
        "round_ms": {
            f"{rtt:g}": {name: summary([1e3 * round_s(d) for d in done], 1) for name, done in found.items()}
            for rtt, found in measured.items()
        },
        "predicted_ms": predicted,
        "answer_s": {
            f"{rtt:g}": {name: summary([d.timings.decode_s for d in done], 2) for name, done in found.items()}
            for rtt, found in measured.items()
        },
        "rounds": {
            name: summary([float(d.timings.decode_s / round_s(d)) for d in done], 1)
            for name, done in measured[100.0].items()
        },
        "accuracy_drop_points": round(lost, 2),
        "agreement": round(equal, 4),
    }
