"""Train the embedded model from a seed, on CPU processes of one thread each.

    python -m scripts.train.train --out runs/tiny --steps 2300
    python -m scripts.train.train --out runs/tiny --steps 2300 --resume

Muon on the matrices of the layers, AdamW on the rest, a linear decay over the last part, an exponential moving average
of the weights as the result. The batch of a step depends on (seed, step, process) only, so a resumed run goes on as the
unbroken one would.
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch.nn.attention import SDPBackend, sdpa_kernel

from scripts.train import tokenizer as tiny_tokenizer
from scripts.train.batches import FINAL_STEP, SHARES, Batch, Batches
from swarm.ids import Span
from swarm.model.config import ModelConfig
from swarm.model.span import SpanModule

VOCAB_ROWS = 512
MUON_RATE, ADAM_RATE = 0.007, 1e-3
DECAY_FROM, WARMUP_STEPS = 1400, 100
EMA, FINAL_EMA = 0.998, 0.98


def shape(mask_id: int, eos_id: int) -> ModelConfig:
    return ModelConfig(
        family="llada", hidden_size=192, n_layers=6, n_heads=6, n_kv_heads=6, intermediate_size=512,
        vocab_size=VOCAB_ROWS, max_length=512, norm_eps=1e-5, rope_theta=10000.0, mask_id=mask_id, eos_id=eos_id,
        tied_head=False,
    )  # fmt: skip


def initialise(model: SpanModule, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    depth = model.config.n_layers
    for name, weight in model.named_parameters():
        if weight.ndim == 2:
            deviation = 0.02 / (2 * depth) ** 0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02
            torch.nn.init.normal_(weight, std=deviation, generator=generator)


def rate(step: int, steps: int) -> float:
    """Share of the full learning rate: a short warm-up, a linear decay from DECAY_FROM to FINAL_STEP, then a last
    gentle slope to the end, in which the model unlearns the bias of the late phase's emphasis."""
    if step >= FINAL_STEP:
        return 0.2 * (steps - step) / (steps - FINAL_STEP)
    warm = min(1.0, (step + 1) / WARMUP_STEPS)
    return warm * min(1.0, (FINAL_STEP - step) / (FINAL_STEP - DECAY_FROM))


def loss_of(model: SpanModule, batch: Batch, bf16: bool) -> torch.Tensor:
    ids, targets, weights = (torch.from_numpy(a) for a in (batch.ids, batch.targets, batch.weights))
    assert model.head is not None
    # The flash kernel's backward is several times slower than plain products at these lengths on a CPU.
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16), sdpa_kernel(SDPBackend.MATH):
        hidden = model(ids)
        wanted = weights > 0
        logits = model.head(hidden[wanted])
    losses = F.cross_entropy(logits.float(), targets[wanted], reduction="none")
    return (losses * weights[wanted]).sum() / weights.sum()


class Checkpoint:
    """Everything that a resumed run needs, in safetensors files written whole or not at all."""

    def __init__(self, out: Path) -> None:
        self.path, self.meta = out / "state.safetensors", out / "state.json"

    def save(self, step: int, tensors: dict[str, torch.Tensor]) -> None:
        for path, write in (
            (self.path, lambda p: save_file(tensors, p)),
            (self.meta, lambda p: p.write_text(json.dumps({"step": step}))),
        ):
            fresh = path.with_suffix(".new")
            write(fresh)
            os.replace(fresh, path)

    def load(self) -> tuple[int, dict[str, torch.Tensor]]:
        return json.loads(self.meta.read_text())["step"], load_file(self.path)


def optimizer_tensors(name: str, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return {
        f"{name}.{i}.{key}": value
        for i, group in optimizer.state_dict()["state"].items()
        for key, value in group.items()
        if isinstance(value, torch.Tensor)
    }


def restore_optimizer(name: str, optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith(name + "."):
            _, index, field = key.split(".")
            state.setdefault(int(index), {})[field] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def worker(process: int, args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    os.nice(args.nice)
    dist.init_process_group(
        "gloo", init_method=f"file://{args.out}/rendezvous", rank=process, world_size=args.processes
    )
    tokenizer = tiny_tokenizer.write(args.out)
    batches = Batches(tokenizer)
    config = shape(batches.special[tiny_tokenizer.MASK], batches.special[tiny_tokenizer.EOS])
    model = SpanModule(config, Span(0, config.n_parts))
    initialise(model, args.seed)
    parameters = dict(model.named_parameters())
    matrices = [p for n, p in parameters.items() if p.ndim == 2 and "table" not in n and "out.weight" not in n]
    others = [p for p in parameters.values() if not any(p is m for m in matrices)]
    muon = torch.optim.Muon(matrices, lr=args.muon, weight_decay=0.0, momentum=0.95)
    adam = torch.optim.AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    averaged = {name: p.detach().clone() for name, p in parameters.items()}
    checkpoint, first = Checkpoint(args.out), 0
    if args.resume:
        first, tensors = checkpoint.load()
        for name, p in parameters.items():
            p.data.copy_(tensors["model." + name])
            averaged[name].copy_(tensors["averaged." + name])
        restore_optimizer("muon", muon, tensors)
        restore_optimizer("adam", adam, tensors)
    started, seen = time.perf_counter(), 0
    running = dict.fromkeys(SHARES, 0.0)
    for step in range(first, args.steps):
        rng = np.random.default_rng([args.seed, step, process])
        for batch in batches.step(rng, step):
            loss = loss_of(model, batch, args.bf16) / len(SHARES)
            loss.backward()  # type: ignore[no-untyped-call]
            seen += batch.ids.size
            running[batch.task] = 0.95 * running[batch.task] + 0.05 * loss.item() * len(SHARES)
        gradient = torch.cat([p.grad.flatten() for p in parameters.values() if p.grad is not None])
        dist.all_reduce(gradient)
        gradient /= args.processes
        offset = 0
        for p in parameters.values():
            p.grad = gradient[offset : offset + p.numel()].view_as(p)
            offset += p.numel()
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        for optimizer, base in ((muon, args.muon), (adam, ADAM_RATE)):
            for group in optimizer.param_groups:
                group["lr"] = base * rate(step, args.steps)
            optimizer.step()
            optimizer.zero_grad()
        keep = min(EMA if step < FINAL_STEP else FINAL_EMA, (step + 1) / (step + 10))
        for name, p in parameters.items():
            averaged[name].lerp_(p.detach(), 1 - keep)
        if process == 0 and (step + 1) % args.every == 0:
            spent = time.perf_counter() - started
            losses = " ".join(f"{task}={value:.4f}" for task, value in running.items())
            print(
                f"step={step + 1} tokens_per_s={args.processes * seen / spent:.0f} spent_s={spent:.0f} {losses}",
                flush=True,
            )
        if process == 0 and ((step + 1) % (5 * args.every) == 0 or step + 1 == args.steps):
            checkpoint.save(
                step + 1,
                {f"model.{n}": p.detach().contiguous() for n, p in parameters.items()}
                | {f"averaged.{n}": p for n, p in averaged.items()}
                | optimizer_tensors("muon", muon)
                | optimizer_tensors("adam", adam),
            )
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=lambda p: Path(p).resolve(), required=True)
    parser.add_argument("--steps", type=int, default=2300)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--muon", type=float, default=MUON_RATE)
    parser.add_argument("--nice", type=int, default=10)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--bf16", action="store_true", help="matrix products in bfloat16 (CPUs with avx512_bf16)")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "rendezvous").unlink(missing_ok=True)
    mp.spawn(worker, args=(args,), nprocs=args.processes)


if __name__ == "__main__":
    main()
