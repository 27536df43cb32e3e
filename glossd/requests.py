"""Requests from admission to their last event: a bounded queue, deadlines, cancellation, and the events for clients."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict

import numpy as np

from glossd import events
from glossd.api.errors import error_event
from glossd.canvas import CanvasText
from glossd.models import Model
from glossd.observe import Log, Metrics
from glossd.resolve import resolve
from glossd.tasks import Resolved, Task
from swarm.chain.drive import drive
from swarm.chain.pipeline import Travel, drive_patches
from swarm.chain.source import ChainSource
from swarm.decode.decoder import Decoder
from swarm.decode.events import Finished, Stepped
from swarm.decode.patches import PatchDecoder
from swarm.errors import DeadlineExceeded, GlossError, Halted, Overloaded
from swarm.ids import PeerId, RequestId

log = Log("glossd.requests")

MAX_UNREAD = 256
"""Events a client may leave unread before its request waits for it."""

NewSource = Callable[[RequestId], ChainSource]


class Running:
    """One admitted request. Iterate `events()` once; `cancel()` frees its work."""

    def __init__(self, resolved: Resolved, deadline_s: float) -> None:
        self.id: str = uuid.uuid4().hex[:16]
        self.resolved = resolved
        self.deadline_s = deadline_s
        self.admitted = time.monotonic()
        self.task: asyncio.Task[None] | None = None
        self._queue: asyncio.Queue[events.RequestEvent] = asyncio.Queue(MAX_UNREAD)

    async def put(self, event: events.RequestEvent) -> None:
        await self._queue.put(event)

    def put_last(self, event: events.RequestEvent) -> None:
        """Without waiting; a client that has left MAX_UNREAD events unread does not get it."""
        with contextlib.suppress(asyncio.QueueFull):
            self._queue.put_nowait(event)

    async def events(self) -> AsyncIterator[events.RequestEvent]:
        while True:
            event = await self._queue.get()
            yield event
            if isinstance(event, events.Terminal):
                return

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


class Requests:
    """`new_source` gives a request its score source; `halted` is polled before every step."""

    def __init__(
        self,
        model: Model,
        me: PeerId,
        new_source: NewSource,
        metrics: Metrics,
        max_running: int,
        queue_limit: int,
        halted: Callable[[], bool] = lambda: False,
    ) -> None:
        self.queue_limit = queue_limit
        self.ended: dict[str, int] = {}
        self._model = model
        self._me = me
        self._new_source = new_source
        self._metrics = metrics
        self._halted = halted
        self._slots = asyncio.Semaphore(max_running)
        self._tasks: set[asyncio.Task[None]] = set()
        self.running = 0
        self.closing = False

    @property
    def waiting(self) -> int:
        return len(self._tasks) - self.running

    async def submit(self, task: Task) -> Running:
        """Raises BadRequest or Overloaded."""
        self._check_room()
        # In a thread: a long prompt takes its time, and so does a chat template with roles not seen before.
        resolved = await asyncio.to_thread(resolve, task, self._model)
        self._check_room()
        running = Running(resolved, task.deadline_s)
        running.task = asyncio.create_task(self._run(running), name=f"request {running.id}")
        self._tasks.add(running.task)
        running.task.add_done_callback(self._tasks.discard)
        return running

    def _check_room(self) -> None:
        if self.closing:
            raise _leaving()
        if self._slots.locked() and self.waiting >= self.queue_limit:
            raise Overloaded(f"{self.waiting} requests are waiting already; try again in a moment")

    async def drain(self, seconds: float) -> None:
        """Admit nothing more, let what runs finish for `seconds`, then end the rest, whose clients are told so."""
        self.closing = True
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _run(self, running: Running) -> None:
        outcome = "cancelled"
        try:
            outcome = await self._guarded(running)
        finally:
            self._metrics.requests.labels(outcome).inc()
            self.ended[outcome] = self.ended.get(outcome, 0) + 1
            seconds = time.monotonic() - running.admitted
            log.info("request ended", request=running.id, outcome=outcome, seconds=seconds)

    async def _guarded(self, running: Running) -> str:
        try:
            async with asyncio.timeout(running.deadline_s):
                async with self._slots:
                    self.running += 1
                    try:
                        await self._decode(running)
                    finally:
                        self.running -= 1
            return "done"
        except asyncio.CancelledError:
            if self.closing:
                running.put_last(error_event(_leaving()))
            raise
        except TimeoutError:
            error: GlossError = DeadlineExceeded(f"the request did not end within its {running.deadline_s:g} s")
        except Halted as halted:
            await running.put(events.HaltedEvent(message=str(halted)))
            return halted.code
        except GlossError as failed:
            error = failed
        except Exception as bug:
            log.exception("request failed", request=running.id)
            error = GlossError(f"internal error ({type(bug).__name__}); the daemon's log has the details")
        # A client that reads nothing must not keep a failed request alive.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(running.deadline_s):
                await running.put(error_event(error))
        return error.code

    async def _decode(self, running: Running) -> None:
        config, resolved = self._model.checkpoint.config, running.resolved
        start = np.array(resolved.canvas, np.int32), resolved.settings, config.mask_id, config.eos_id
        kind = PatchDecoder if resolved.settings.is_displaced else Decoder
        decoder = kind(*start, int(config.logit_shift))
        text = CanvasText(resolved, self._model.tokenizer.decode, config.mask_id, config.eos_id)
        source = self._new_source(RequestId(running.id))
        began = time.monotonic()
        await running.put(self._plan(running, decoder, text, source))
        found = 0
        travel = Travel()
        if isinstance(decoder, PatchDecoder):
            steps = drive_patches(decoder, source, self._halted, travel)
        else:
            steps = drive(decoder, source, self._halted)
        try:
            async for event in steps:
                seconds = max(time.monotonic() - began, 1e-9)
                if isinstance(event, Stepped):
                    found += len(event.committed)
                    self._metrics.steps.inc()
                    self._metrics.tokens.inc(len(event.committed))
                    await running.put(self._step(event, decoder, text, source, found / seconds))
                finished = isinstance(event, Finished)
                if new := text.grown(decoder.canvas, finished=finished):
                    await running.put(events.Text(text=new))
                if isinstance(event, Finished):
                    done = self._done(running, event, decoder, text, source, began)
                    await running.put(done.model_copy(update={"pipeline": _pipeline(decoder, travel)}))
        finally:
            source.close()

    def _plan(self, running: Running, decoder: Decoder, text: CanvasText, source: ChainSource) -> events.Plan:
        return events.Plan(
            id=running.id,
            model=self._model.name,
            chain=self._hops(source),
            prompt_tokens=running.resolved.prompt_tokens,
            masks=running.resolved.masks,
            blocks=len(decoder.blocks),
            settings=asdict(running.resolved.settings),
            canvas=text.cells(decoder.canvas),
        )

    def _step(
        self, event: Stepped, decoder: Decoder, text: CanvasText, source: ChainSource, tokens_per_s: float
    ) -> events.Step:
        return events.Step(
            step=event.step,
            block=event.block,
            committed=text.committed(event),
            masks_left=event.masks_left,
            passes=source.counts.passes,
            tokens_per_s=round(tokens_per_s, 2),
            chain=self._hops(source),
            canvas=text.cells(decoder.canvas, event),
        )

    def _done(
        self,
        running: Running,
        event: Finished,
        decoder: Decoder,
        text: CanvasText,
        source: ChainSource,
        began: float,
    ) -> events.Done:
        ids = text.new_tokens(decoder.canvas)
        prompt = running.resolved.prompt_tokens
        seconds = time.monotonic() - began
        return events.Done(
            id=running.id,
            text=text.text,
            reason="stop" if event.reason == "stop" else "length",
            gaps=text.gaps(decoder.canvas),
            token_ids=tuple(ids),
            usage=events.Usage(prompt_tokens=prompt, completion_tokens=len(ids), total_tokens=prompt + len(ids)),
            timings=events.Timings(
                queued_s=began - running.admitted,
                decode_s=seconds,
                steps=event.steps,
                passes=source.counts.passes,
                replays=source.counts.replays,
                hedges=source.counts.hedges,
                tokens_per_s=len(ids) / max(seconds, 1e-9),
            ),
            peers=tuple(sorted(source.counts.peers)),
        )

    def _hops(self, source: ChainSource) -> tuple[events.Hop, ...]:
        return tuple(events.Hop(peer=hop.peer, span=str(hop.span), local=hop.peer == self._me) for hop in source.chain)


def _pipeline(decoder: Decoder, travel: Travel) -> events.Pipeline | None:
    if not isinstance(decoder, PatchDecoder):
        return None
    seen = decoder.telemetry
    return events.Pipeline(
        loops=seen.loops,
        synchronous=seen.synchronous,
        displaced=seen.displaced,
        lost=seen.lost,
        staleness=seen.staleness,
        agreement=float(np.mean(seen.agreement)) if seen.agreement else None,
        drift=float(np.mean(seen.drift)) if seen.drift else None,
        travel_s=travel.total_s,
        masked_s=travel.masked_s,
    )


def _leaving() -> Overloaded:
    return Overloaded("this node is leaving; ask another one")
