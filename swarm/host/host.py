"""The hosted span as a service: decoded requests in, results out.

Local passes and passes from peers go through the same door, so that both compute the same bits.
"""

import time

import numpy as np
import torch

from swarm.errors import BadRequest, GlossError, Overloaded, PeerRefused
from swarm.host.batcher import Batcher
from swarm.host.sessions import Sessions
from swarm.host.threads import Threads
from swarm.ids import ModelId, PeerId, Span
from swarm.mixture.rows import ScoreRows
from swarm.model.batch import Cache
from swarm.model.forward import HeadWork, Job
from swarm.model.span import SpanModule
from swarm.wire.messages import DType, PassAnswer, PassRequest
from swarm.wire.tensors import Tensor

MAX_WAITING = 64
SESSION_BUDGET_BYTES = 2**30

_TORCH: dict[DType, torch.dtype] = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_NAMES = {dtype: name for name, dtype in _TORCH.items()}

Answer = tuple[PassAnswer, tuple[Tensor, ...]]


class SpanHost:
    """`n_tokens` is the tokenizer's size: ids from there on are never predicted. `joins` False ends batching."""

    def __init__(
        self,
        module: SpanModule,
        model: ModelId,
        n_tokens: int,
        session_budget_bytes: int = SESSION_BUDGET_BYTES,
        *,
        joins: bool = True,
        threads: Threads | None = None,
    ) -> None:
        self.span = module.span
        self.passes = 0
        self.sessions = Sessions(session_budget_bytes, time.monotonic)
        self._module = module
        self._model = model
        self._n_tokens = n_tokens
        self._batcher = Batcher(module, joins=joins, threads=threads)

    @property
    def hidden_kind(self) -> tuple[DType, int]:
        """Type and size of the hidden states that go in and out."""
        return _NAMES[self._module.dtype], self._module.config.hidden_size

    @property
    def throughput(self) -> float:
        """Parts times positions a second of the latest forwards, 0 before the first."""
        return self._batcher.throughput

    async def answer(self, request: PassRequest, tensors: dict[str, Tensor]) -> Answer:
        """Raises PeerRefused, Overloaded, BadRequest, CacheMiss or PassTimeout."""
        if request.model != self._model:
            raise PeerRefused(f"this node hosts model {self._model[:12]}, not {request.model[:12]}")
        if self._batcher.waiting >= MAX_WAITING:
            raise Overloaded(f"{MAX_WAITING} passes are waiting here")
        expires = time.monotonic() + request.budget_ms / 1000
        span = Span(request.start, request.stop)
        out, compute_us = await self._batcher.run(
            span, self._job(request, tensors), expires, (request.reply_to, request.session)
        )
        self.passes += 1
        parts = _from_rows(out) if isinstance(out, ScoreRows) else (_from_torch("hidden", out),)
        answer = PassAnswer(
            request=request.request,
            step=request.step,
            attempt=request.attempt,
            computed_us=[*request.computed_us, compute_us],
        )
        return answer, parts

    def release(self, coordinator: PeerId, session: str) -> None:
        """Drop the passes of a request that wait, and free what is kept for it."""
        self._batcher.drop((coordinator, session))
        self.sessions.release((coordinator, session))

    def _job(self, request: PassRequest, tensors: dict[str, Tensor]) -> Job:
        x = self._input(request, tensors)
        positions, active, cache = _indices(tensors, "positions"), _indices(tensors, "active"), None
        if request.route and self._module.config.head_part >= request.stop:
            positions = None  # they are for a later hop
        head = None if positions is None else HeadWork(positions, request.cfg_scale, self._n_tokens)
        if (active is not None) is not (request.epoch is not None and not request.epoch.primes):
            raise BadRequest("active positions go with an epoch that was primed before", "active")
        if request.epoch is not None:
            key = (request.reply_to, request.session, request.request, request.start, request.stop)
            if request.epoch.primes:
                cache = Cache(rows=x.shape[0], length=x.shape[1])
                self.sessions.open(key, request.epoch.number, cache, self._cache_bytes(request, cache))
            else:
                cache = self.sessions.get(key, request.epoch.number)
        return Job(x, head, None if active is None else torch.from_numpy(active.astype(np.int64)), cache)

    def _input(self, request: PassRequest, tensors: dict[str, Tensor]) -> torch.Tensor:
        name, dtype = ("ids", "integers") if request.start == 0 else ("hidden", _NAMES[self._module.dtype])
        found = tensors.get(name)
        fits = found is not None and (found.is_integer if name == "ids" else found.dtype == dtype)
        if found is None or not fits or len(found.shape) != (2 if name == "ids" else 3):
            raise BadRequest(f"parts {request.start}:{request.stop} need a tensor {name} of {dtype}", "tensors")
        if 0 in found.shape or found.shape[:2] != (request.rows, request.columns):
            raise BadRequest(f"{name} of shape {list(found.shape)} is not {request.rows}x{request.columns}", "tensors")
        return torch.from_numpy(found.as_int32().astype(np.int64)) if name == "ids" else _to_torch(found)

    def _cache_bytes(self, request: PassRequest, cache: Cache) -> int:
        config = self._module.config
        layers = sum(0 < part < config.head_part for part in range(request.start, request.stop))
        per_position = 2 * config.n_kv_heads * config.head_dim * self._module.dtype.itemsize
        return layers * cache.rows * cache.length * per_position

    def refuse_waiting(self, reason: GlossError) -> None:
        """End the passes that wait for their turn; the forward that runs goes on."""
        self._batcher.refuse_waiting(reason)

    def close(self) -> None:
        self._batcher.close()


def refusal_code(error: Exception) -> str:
    return error.code if isinstance(error, GlossError) else GlossError.code


def _indices(tensors: dict[str, Tensor], name: str) -> "np.ndarray[tuple[int, ...], np.dtype[np.int32]] | None":
    found = tensors.get(name)
    if found is None:
        return None
    if not found.is_integer or len(found.shape) != 1:
        raise BadRequest(f"{name} must be a row of integers", name)
    return found.as_int32()


def _to_torch(tensor: Tensor) -> torch.Tensor:
    return torch.frombuffer(bytearray(tensor.data), dtype=_TORCH[tensor.dtype]).reshape(tensor.shape)


def _from_torch(name: str, tensor: torch.Tensor) -> Tensor:
    bits = tensor.cpu().contiguous().view(torch.uint8).numpy()
    return Tensor.raw(name, _NAMES[tensor.dtype], tuple(tensor.shape), bits.reshape(-1).data)


def _from_rows(rows: ScoreRows) -> tuple[Tensor, ...]:
    return (
        Tensor.integers("ids", rows.ids),
        Tensor.of("log_probs", rows.log_probs),
        Tensor.of("log_tail", rows.log_tail),
    )
