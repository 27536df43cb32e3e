"""The hosted span as a service: decoded requests in, answers out. One forward at a time on one compute thread.

Local passes and passes from peers go through the same door, so that both compute the same bits.
"""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from swarm.errors import BadRequest, GlossError, Overloaded, PassTimeout, PeerRefused
from swarm.ids import ModelId, Span
from swarm.mixture.rows import ScoreRows
from swarm.model.forward import HeadWork, run_span
from swarm.model.span import SpanModule
from swarm.wire.messages import DType, PassAnswer, PassRequest
from swarm.wire.tensors import Tensor

MAX_WAITING = 64

_TORCH: dict[DType, torch.dtype] = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_NAMES = {dtype: name for name, dtype in _TORCH.items()}

Answer = tuple[PassAnswer, tuple[Tensor, ...]]


class SpanHost:
    """`n_tokens` is the tokenizer's size: ids from there on are never predicted."""

    def __init__(self, module: SpanModule, model: ModelId, n_tokens: int) -> None:
        self.span = module.span
        self.draining = False
        self.passes = 0
        self._module = module
        self._model = model
        self._n_tokens = n_tokens
        self._waiting = 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")

    async def answer(self, request: PassRequest, tensors: dict[str, Tensor]) -> Answer:
        """Raises PeerRefused, Overloaded, BadRequest or PassTimeout."""
        if request.model != self._model:
            raise PeerRefused(f"this node hosts model {self._model[:12]}, not {request.model[:12]}")
        if self.draining:
            raise PeerRefused("this node is leaving")
        if self._waiting >= MAX_WAITING:
            raise Overloaded(f"{MAX_WAITING} passes are waiting here")
        expires = time.monotonic() + request.budget_ms / 1000
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, self._compute, request, tensors, expires
            )
        finally:
            self._waiting -= 1

    def _compute(self, request: PassRequest, tensors: dict[str, Tensor], expires: float) -> Answer:
        if time.monotonic() > expires:
            raise PassTimeout("the pass waited here past its deadline")
        span = Span(request.start, request.stop)
        x, head = self._input(request, tensors)
        began = time.perf_counter()
        out = run_span(self._module, span, x, head)
        compute_us = int((time.perf_counter() - began) * 1e6)
        self.passes += 1
        parts = _from_rows(out) if isinstance(out, ScoreRows) else (_from_torch("hidden", out),)
        head_message = PassAnswer(
            request=request.request,
            step=request.step,
            attempt=request.attempt,
            compute_us=compute_us,
            tensors=[],  # the encoder lists them
        )
        return head_message, parts

    def _input(self, request: PassRequest, tensors: dict[str, Tensor]) -> tuple[torch.Tensor, HeadWork | None]:
        name, dtypes = ("ids", ("int32",)) if request.start == 0 else ("hidden", (_NAMES[self._module.dtype],))
        found = tensors.get(name)
        if found is None or found.dtype not in dtypes:
            raise BadRequest(f"parts {request.start}:{request.stop} need a tensor {name} of {dtypes[0]}", "tensors")
        x = torch.from_numpy(found.array().astype(np.int64)) if name == "ids" else _to_torch(found)
        positions = tensors.get("positions")
        if positions is None:
            return x, None
        if positions.dtype != "int32":
            raise BadRequest("positions must be int32", "positions")
        return x, HeadWork(positions.array(), request.cfg_scale, self._n_tokens)

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)


def refusal_code(error: Exception) -> str:
    return error.code if isinstance(error, GlossError) else GlossError.code


def _to_torch(tensor: Tensor) -> torch.Tensor:
    if any(size == 0 for size in tensor.shape):
        raise BadRequest(f"{tensor.name} of shape {list(tensor.shape)} is empty", "tensors")
    return torch.frombuffer(bytearray(tensor.data), dtype=_TORCH[tensor.dtype]).reshape(tensor.shape)


def _from_torch(name: str, tensor: torch.Tensor) -> Tensor:
    bits = tensor.contiguous().view(torch.uint8).numpy()
    return Tensor.raw(name, _NAMES[tensor.dtype], tuple(tensor.shape), bits.reshape(-1).data)


def _from_rows(rows: ScoreRows) -> tuple[Tensor, ...]:
    return Tensor.of("ids", rows.ids), Tensor.of("log_probs", rows.log_probs), Tensor.of("log_tail", rows.log_tail)
