"""What this node hosts: which spans it could, which it should, and the weights in memory.

Chooses by `swarm.plan.placement`, loads, measures, and lets go. Knows no network; `glossd.membership` tells others.
"""

import asyncio
import time
from collections.abc import Sequence
from functools import cached_property

import psutil
import torch

from glossd.api.schemas import Caches
from glossd.config import Settings
from glossd.models import Model
from glossd.neighbours import daemons_here
from glossd.observe import Log
from swarm.errors import ModelFileError, StartError
from swarm.host.host import SpanHost
from swarm.host.spans import HostedSpans
from swarm.host.threads import choose_threads, cores, in_passing_thread
from swarm.host.throughput import POSITIONS, measure_throughput
from swarm.ids import ModelId, Span
from swarm.model.span import SpanModule
from swarm.model.weights import DTYPES, load_span, span_bytes
from swarm.plan.placement import Hosted, better_span, choose_span, windows
from swarm.store.sizes import QuantName

log = Log("glossd.hosting")

MEMORY_SHARE = 0.5
"""Share of the free memory that `--layers auto` fills at most, unless a limit was set."""


class Hosting:
    """`span` is what this node serves and announces; `spans` the door to it."""

    def __init__(self, settings: Settings, model: Model, dtype: str, quant: QuantName) -> None:
        self.span: Span | None = None
        self.spans = HostedSpans()
        self._settings = settings
        self._model = model
        self._dtype = dtype
        self._quant = quant
        self._first_throughput = 0.0
        self._budget_bytes = settings.memory_mb * 2**20 or int(psutil.virtual_memory().available * MEMORY_SHARE)

    @property
    def moves(self) -> bool:
        """Whether this node chooses its span by itself."""
        return self._settings.layers == "auto"

    @property
    def throughput(self) -> float:
        """Parts times positions a second: what work for others and for itself showed, before that a trial's."""
        served = next((host.throughput for host in self.spans), 0.0)
        return served or self._first_throughput

    @property
    def caches(self) -> Caches:
        held = [host.sessions for host in self.spans]
        return Caches(
            sessions=sum(map(len, held)),
            size_bytes=sum(sessions.size_bytes for sessions in held),
            limit_bytes=sum(sessions.budget_bytes for sessions in held),
        )

    def choose(self, others: Sequence[Hosted]) -> Span | None:
        """The span to start with, None for none. Raises StartError when not one part fits."""
        if self._settings.layers == "none":
            return None
        if not self.moves:
            return Span.parse(self._settings.layers)
        if not self._model.checkpoint.held:
            raise ModelFileError(f"no part of {self._model.name} was pulled; run `glossd pull {self._model.name}`")
        candidates = self._candidates(self._budget_bytes)
        if not candidates:
            raise StartError(
                f"not one part of {self._model.name} fits in {self._budget_bytes >> 20} MB; free some memory, raise "
                "--memory, use --quant, or host nothing with --layers none"
            )
        return choose_span(others, candidates, self._work)

    def better(self, others: Sequence[Hosted]) -> Span | None:
        """Where to move: to what helps, and fits beside the present span for as long as both are in memory."""
        if self.span is None or not self.moves:
            return None
        room = min(self._budget_bytes, psutil.virtual_memory().available * 3 // 4)
        return better_span(Hosted(self.span, self.throughput), others, self._candidates(room), self._work)

    def is_still_better(self, target: Span, others: Sequence[Hosted]) -> bool:
        if self.span is None:
            return False
        return better_span(Hosted(self.span, self.throughput), others, [target], self._work) is not None

    async def load(self, span: Span) -> SpanHost:
        """Weights in memory and passes served, beside what is served already. Raises StartError."""
        began = time.monotonic()
        config, n_tokens = self._model.checkpoint.config, self._model.n_tokens
        threads = choose_threads(config, self._settings.threads, cores(), daemons_here())
        module = await asyncio.wrap_future(in_passing_thread(lambda: self._load(span), threads.most))
        throughput = await asyncio.wrap_future(
            in_passing_thread(lambda: measure_throughput(module, n_tokens), threads.of_forward(POSITIONS))
        )
        host = SpanHost(
            module,
            ModelId(self._model.checkpoint.model_id),
            n_tokens,
            self._settings.cache_mb * 2**20,
            joins=not self._settings.deterministic,
            threads=threads,
        )
        self.spans.add(host)
        self._first_throughput = throughput
        seconds = time.monotonic() - began
        log.info("hosting", model=self._model.name, parts=span, seconds=seconds, throughput=throughput)
        return host

    @cached_property
    def _sizes(self) -> list[int]:
        checkpoint = self._model.checkpoint
        return [
            span_bytes(checkpoint.config, Span(part, part + 1), DTYPES[self._dtype], self._quant)
            for part in range(checkpoint.config.n_parts)
        ]

    @cached_property
    def _work(self) -> list[float]:
        """Products of matrices cost what they weigh; looking up an embedding costs next to nothing."""
        config = self._model.checkpoint.config
        weights = [float(span_bytes(config, Span(part, part + 1), torch.float32)) for part in range(config.n_parts)]
        weights[0] = config.hidden_size * 4.0
        return weights

    def _candidates(self, budget_bytes: int) -> list[Span]:
        return windows(self._sizes, budget_bytes, self._model.checkpoint.held)

    def _load(self, span: Span) -> SpanModule:
        return load_span(
            self._model.checkpoint,
            span,
            DTYPES[self._dtype],
            quant=self._quant,
            device_map=self._settings.device_map,
        )
