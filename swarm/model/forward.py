"""Run a span of a model for one or many requests at once: what a host does with the passes that wait."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swarm.errors import BadRequest
from swarm.ids import Span
from swarm.mixture.rows import ScoreRows
from swarm.model.batch import Cache, Segment
from swarm.model.config import ModelConfig
from swarm.model.head import guide, score_rows
from swarm.model.span import SpanModule


@dataclass(frozen=True, slots=True, eq=False)
class HeadWork:
    """positions: int32 [P], ascending; `cfg_scale` composes two canvas rows into one set of score rows.

    `n_tokens` is the tokenizer's size, the same in all work that runs together.
    """

    positions: npt.NDArray[np.int32]
    cfg_scale: float
    n_tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One pass over a span.

    x: int64 ids [rows, count] at part 0, else hidden states [rows, count, hidden].
    `active` are the canvas positions of the columns, int64 [count], ascending; None: the whole canvas from 0 on.
    `cache` is filled by a job over a whole canvas and used by one with `active`. `head` goes with the head part.
    """

    x: Tensor
    head: HeadWork | None = None
    active: Tensor | None = None
    cache: Cache | None = None

    @property
    def positions(self) -> Tensor:
        return torch.arange(self.x.shape[1]) if self.active is None else self.active


def run_span(module: SpanModule, span: Span, x: Tensor, head: HeadWork | None) -> Tensor | ScoreRows:
    """One canvas, no cache: hidden states [rows, length, hidden], or score rows when the span ends in the head."""
    job = Job(x, head)
    check_job(module, span, job)
    return run_jobs(module, span, [job])[0]


@torch.inference_mode()
def run_jobs(module: SpanModule, span: Span, jobs: Sequence[Job]) -> list[Tensor | ScoreRows]:
    """Run checked jobs in one forward: their lines are joined for the linear layers, apart for attention."""
    order = sorted(range(len(jobs)), key=lambda at: (jobs[at].cache is None, jobs[at].x.shape[1]))
    sorted_jobs = [jobs[at] for at in order]
    lines = [job.x.flatten(0, 1) for job in sorted_jobs]
    joined = lines[0] if len(lines) == 1 else torch.cat(lines)
    out = module.run_batch(joined.to(module.device), span, list(_segments(sorted_jobs)))
    hidden = torch.split(out, [len(line) for line in lines])
    results: list[Tensor | ScoreRows]
    if module.config.head_part in span:
        results = list(_score(module, hidden, sorted_jobs))
    else:
        results = [h.view(*job.x.shape[:2], -1) for h, job in zip(hidden, sorted_jobs, strict=True)]
    return [result for _, result in sorted(zip(order, results, strict=True), key=lambda pair: pair[0])]


def _segments(jobs: Sequence[Job]) -> list[Segment]:
    """One segment a job, but neighbours that are whole canvases of one length are rows of the same: attention is
    computed row by row in any case, and one call for all costs less than one for each."""
    made: list[Segment] = []
    for job in jobs:
        last = made[-1] if made else None
        if last is not None and last.cache is None and job.cache is None and last.count == job.x.shape[1]:
            made[-1] = Segment(last.rows + len(job.x), last.positions)
        else:
            made.append(Segment(len(job.x), job.positions, job.cache, primes=job.active is None))
    return made


def _score(module: SpanModule, hidden: Sequence[Tensor], jobs: Sequence[Job]) -> list[ScoreRows]:
    """Norm and head run on the wanted positions only, those of all jobs together."""
    wanted, heads = [], []
    for lines, job in zip(hidden, jobs, strict=True):
        if job.head is None or module.head is None:
            raise BadRequest("positions to score go with the head, and only with it", "tensors")
        at = read_at(module.config, job.head.positions)
        if job.active is not None:
            at = torch.searchsorted(job.active, at)
        wanted.append(lines.view(*job.x.shape[:2], -1)[:, at.to(lines.device)].flatten(0, 1))
        heads.append(job.head)
    if module.head is None:
        raise BadRequest(f"this node holds {module.span}, which has no head")
    logits = torch.split(module.head(torch.cat(wanted)).cpu(), [len(w) for w in wanted])
    composed = [
        _composed(rows.view(len(job.x), -1, rows.shape[-1]), head.cfg_scale)
        for rows, head, job in zip(logits, heads, jobs, strict=True)
    ]
    positions = np.concatenate([head.positions for head in heads])
    (n_tokens,) = {head.n_tokens for head in heads}
    rows = score_rows(torch.cat(composed), positions, module.config.mask_id, n_tokens)
    return rows.split([len(one) for one in composed])


def _composed(logits: Tensor, cfg_scale: float) -> Tensor:
    return logits[0] if len(logits) == 1 else guide(logits[0], logits[1], cfg_scale)


def read_at(config: ModelConfig, positions: npt.NDArray[np.int32]) -> Tensor:
    """Where the head reads the predictions for `positions`, int64 [P]."""
    at = torch.from_numpy(positions.astype(np.int64))
    return (at - 1).clamp(min=0) if config.logit_shift else at


def check_job(module: SpanModule, span: Span, job: Job) -> None:
    """Raises BadRequest on whatever does not fit the model, the span or each other."""
    config, x = module.config, job.x
    if span.start < module.span.start or span.stop > module.span.stop:
        raise BadRequest(f"parts {span} are not hosted here; this node holds {module.span}", "start")
    if x.ndim != (2 if span.start == 0 else 3) or not 1 <= x.shape[0] <= 2:
        raise BadRequest(f"input of shape {list(x.shape)} does not fit parts {span}", "tensors")
    if not 1 <= x.shape[1] <= config.max_length:
        raise BadRequest(f"{x.shape[1]} positions exceed the model's {config.max_length}", "tensors")
    if span.start == 0 and not (int(x.min()) >= 0 and int(x.max()) < config.vocab_size):
        raise BadRequest(f"token ids must lie from 0 to {config.vocab_size - 1}", "tensors")
    if span.start > 0 and x.shape[2] != config.hidden_size:
        raise BadRequest(f"hidden states have size {x.shape[2]}, the model {config.hidden_size}", "tensors")
    if (config.head_part in span) is not (job.head is not None):
        raise BadRequest("positions to score go with the head, and only with it", "tensors")
    length = x.shape[1]
    if job.active is not None:
        if job.cache is None:
            raise BadRequest("a pass over some positions needs the cache of the others", "active")
        length = job.cache.length
        if not (len(job.active) == x.shape[1] and _ascends(job.active.numpy(), length)):
            raise BadRequest("active positions must ascend within the canvas, one for each column", "active")
        if job.cache.rows != x.shape[0]:
            raise BadRequest(f"the cache holds {job.cache.rows} canvas rows, the pass {x.shape[0]}", "tensors")
    if job.head is not None:
        if not _ascends(job.head.positions, length):
            raise BadRequest("positions must ascend within the canvas", "positions")
        if job.active is not None and not torch.isin(read_at(config, job.head.positions), job.active).all():
            raise BadRequest("positions to score must be among the active ones", "positions")


def _ascends(positions: npt.NDArray[np.integer], length: int) -> bool:
    return (
        positions.ndim == 1
        and 1 <= len(positions) <= length
        and int(positions[0]) >= 0
        and int(positions[-1]) < length
        and bool((np.diff(positions) > 0).all())
    )
