"""What int8 and nf4 change on the embedded model, against float32: on the same canvases, and in the answers.

Keys: canvases, positions; by quantisation kl_nats (mean of KL(float32 || quantised) over masked positions, and its 99th
percentile), top1_agreement (share of those positions with the same best token), answers_identical and answer_tokens
(shares of whole answers and of their tokens that are the same at temperature 0), bytes_over_float32 for one layer.
The canvases are prompts with the float32 answer of which all, half or a tenth of the positions are masked.
"""

import asyncio
from dataclasses import dataclass

import numpy as np
import torch

from glossd.models import Model, open_model
from glossd.resolve import resolve
from glossd.tasks import Message, Overrides
from glossd.tasks import Task as Ask
from scripts.benches.harness import say
from scripts.train.evaluate import prompts_of_all_tasks
from swarm.chain.drive import drive
from swarm.decode.decoder import Decoder
from swarm.decode.events import Work
from swarm.ids import Span
from swarm.mixture.rows import ScoreRows
from swarm.model.forward import HeadWork, run_span
from swarm.model.span import SpanModule
from swarm.model.weights import load_span, span_bytes
from swarm.store.sizes import QuantName

QUANTS: tuple[QuantName, ...] = ("int8", "nf4")
PER_TASK = 6
MASKED_SHARES = (1.0, 0.5, 0.1)


@dataclass(frozen=True)
class Lone:
    """A score source over one module in this process."""

    module: SpanModule
    n_tokens: int

    async def score(self, work: Work) -> ScoreRows:
        head = HeadWork(work.positions, work.cfg_scale, self.n_tokens)
        rows = run_span(self.module, self.module.span, torch.from_numpy(work.ids).long(), head)
        if not isinstance(rows, ScoreRows):
            raise TypeError("a span that ends in the head answers with score rows")
        return rows


def asks() -> list[Ask]:
    bodies = [body for _, body in prompts_of_all_tasks(seed=7, per_task=PER_TASK)]
    return [
        Ask(
            messages=(Message("user", str(body["chat"])),) if "chat" in body else (),
            template=None if "chat" in body else str(body["template"]),
            overrides=Overrides(temperature=0.0),
        )
        for body in bodies
    ]


async def decoded(model: Model, module: SpanModule, ask: Ask) -> np.ndarray:
    """The final canvas."""
    config, resolved = model.checkpoint.config, resolve(ask, model)
    decoder = Decoder(np.array(resolved.canvas, np.int32), resolved.settings, config.mask_id, config.eos_id)
    async for _ in drive(decoder, Lone(module, model.n_tokens), lambda: False):
        pass
    return np.array(decoder.canvas, np.int64)


@torch.inference_mode()
def log_probs(module: SpanModule, ids: np.ndarray, at: np.ndarray, n_tokens: int) -> torch.Tensor:
    """float64 [positions, n_tokens]."""
    if module.head is None:
        raise TypeError("the whole model has a head")
    hidden = module(torch.from_numpy(ids)[None])
    return torch.log_softmax(module.head(hidden[0, torch.from_numpy(at)])[:, :n_tokens].double(), dim=-1)


def masked_canvases(model: Model, asked: list[Ask], answers: list[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    """(ids, masked positions)."""
    mask, random = model.checkpoint.config.mask_id, np.random.default_rng(0)
    found = []
    for ask, answer in zip(asked, answers, strict=True):
        free = np.flatnonzero(np.array(resolve(ask, model).canvas) == mask)
        for share in MASKED_SHARES:
            at = np.sort(random.choice(free, max(1, round(share * len(free))), replace=False))
            ids = answer.copy()
            ids[at] = mask
            found.append((ids, at))
    return found


def run() -> dict[str, object]:
    torch.set_num_threads(1)
    model = open_model("gloss-tiny")
    checkpoint, whole = model.checkpoint, Span(0, model.checkpoint.config.n_parts)
    full = load_span(checkpoint, whole, torch.float32)
    say("decoding with float32")
    asked = asks()
    answers = [asyncio.run(decoded(model, full, ask)) for ask in asked]
    canvases = masked_canvases(model, asked, answers)
    want = [log_probs(full, ids, at, model.n_tokens) for ids, at in canvases]
    found: dict[str, object] = {}
    layer = span_bytes(checkpoint.config, Span(1, 2), torch.float32)
    for quant in QUANTS:
        say(f"decoding with {quant}")
        module = load_span(checkpoint, whole, torch.float32, quant=quant)
        have = [log_probs(module, ids, at, model.n_tokens) for ids, at in canvases]
        divergence = torch.cat([(w.exp() * (w - h)).sum(1) for w, h in zip(want, have, strict=True)])
        same = torch.cat([w.argmax(1) == h.argmax(1) for w, h in zip(want, have, strict=True)])
        others = [asyncio.run(decoded(model, module, ask)) for ask in asked]
        pairs = [
            (a == b)[np.array(resolve(ask, model).canvas) == checkpoint.config.mask_id]
            for ask, a, b in zip(asked, answers, others, strict=True)
        ]
        found[quant] = {
            "kl_nats": {"mean": round(float(divergence.mean()), 6), "p99": round(float(divergence.quantile(0.99)), 6)},
            "top1_agreement": round(float(same.double().mean()), 4),
            "answers_identical": round(float(np.mean([pair.all() for pair in pairs])), 4),
            "answer_tokens": round(float(np.concatenate(pairs).mean()), 4),
            "bytes_over_float32": round(span_bytes(checkpoint.config, Span(1, 2), torch.float32, quant) / layer, 4),
        }
    return {
        "where": "one process",
        "model": checkpoint.model_id,
        "canvases": len(canvases),
        "positions": sum(len(at) for _, at in canvases),
        **found,
    }
