"""The spine: the same 20 prompts at temperature 0 and 0.8 on 1, 2 and 3 processes (processes on loopback).

Keys: processes, tokens_identical, seconds_per_step, ready_s, scores_identical (task scores through three nodes against
the lone process) and the scores themselves.
"""

from glossd.events import Done
from scripts.benches.harness import say, summary
from scripts.train.evaluate import prompts_of_all_tasks, solved
from tests.swarmlab.daemons import Daemon, swarm

SPLITS = {1: ("0:8",), 2: ("0:4", "4:8"), 3: ("0:3", "3:6", "6:8")}
PER_TASK = 20


def answers(daemon: Daemon, bodies: list[dict[str, object]]) -> list[Done]:
    found = []
    for body in bodies:
        *_, last = daemon.client.events(body)
        if not isinstance(last, Done):
            raise RuntimeError(f"{body}: {last}")
        found.append(last)
    return found


def run() -> dict[str, object]:
    exercises = prompts_of_all_tasks(seed=99, per_task=PER_TASK)
    bodies = [body for _, body in exercises]
    twenty = [b for b in bodies if "chat" in b][:: max(1, len(bodies) // 24)][:20]
    compared = [b | {"temperature": t, "seed": i} for t in (0.0, 0.8) for i, b in enumerate(twenty)]
    tokens: dict[int, list[tuple[int, ...]]] = {}
    scores: dict[int, dict[str, float]] = {}
    steps, ready = {}, {}
    for processes, split in SPLITS.items():
        say(f"{processes} process(es)")
        with swarm(*split) as nodes:
            answers(nodes[0], bodies[:3])
            done = answers(nodes[0], compared)
            tokens[processes] = [d.token_ids for d in done]
            steps[processes] = summary([d.timings.decode_s / d.timings.steps for d in done])
            ready[processes] = summary([node.ready_s for node in nodes], 2)
            if processes != 2:
                scores[processes] = solved(exercises, answers(nodes[0], bodies))
    return {
        "where": "processes on loopback",
        "prompts": len(compared),
        "processes": list(SPLITS),
        "tokens_identical": all(tokens[p] == tokens[1] for p in SPLITS),
        "seconds_per_step": steps,
        "ready_s": ready,
        "scores_identical": scores[1] == scores[3],
        "scores": scores[3],
    }
