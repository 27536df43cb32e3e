"""Requests keep their promises to clients whatever the score source does."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glossd.canvas import CanvasText
from glossd.events import Done, Error, HaltedEvent, Plan, RequestEvent, Step, Terminal, Text
from glossd.models import Model, open_model
from glossd.observe import Metrics
from glossd.requests import Requests
from glossd.resolve import resolve
from glossd.tasks import Message, Overrides, Task
from swarm.chain.source import PassCounts
from swarm.decode.events import Work
from swarm.errors import BadRequest, CoverageLost, Overloaded
from swarm.ids import PeerId, Span
from swarm.mixture.rows import ScoreRows
from swarm.plan.routes import Hop

ME = PeerId("me")
CHAT = Task(messages=(Message("user", "What is 1 + 1?"),), max_tokens=12)


@pytest.fixture(scope="module")
def model() -> Model:
    return open_model("gloss-tiny")


def random_rows(work: Work, n_tokens: int, mask_id: int) -> ScoreRows:
    """Scores of a model that knows nothing, but always the same for the same canvas."""
    rng = np.random.default_rng(work.ids.ravel())
    allowed = np.array([t for t in range(n_tokens) if t != mask_id])
    scores = rng.normal(size=(len(work.positions), len(allowed))) * 3
    log_probs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    order = np.argsort(-log_probs, axis=1, kind="stable")[:, :256]
    best = np.take_along_axis(log_probs, order, 1)
    tail = np.log(np.maximum(1 - np.exp(best).sum(1), 1e-12))
    return ScoreRows(work.positions, allowed[order].astype(np.int32), best.astype(np.float32), tail.astype(np.float32))


class FakeSource:
    def __init__(self, model: Model, before: Callable[[Work], Any] | None = None) -> None:
        self.counts = PassCounts()
        self.chain = (Hop(ME, Span(0, 8)),)
        self._model = model
        self._before = before

    def close(self) -> None:
        self.closed = True

    async def score(self, work: Work) -> ScoreRows:
        await asyncio.sleep(0)
        if self._before is not None and (waiting := self._before(work)) is not None:
            await waiting
        self.counts.passes += 1
        return random_rows(work, self._model.n_tokens, self._model.checkpoint.config.mask_id)


def requests_with(model: Model, before: Callable[[Work], Any] | None = None, **limits: Any) -> Requests:
    source = lambda request: FakeSource(model, before)  # noqa: E731
    return Requests(model, ME, source, Metrics(), **({"max_running": 2, "queue_limit": 2} | limits))  # type: ignore[arg-type]


async def all_of(events: AsyncIterator[RequestEvent]) -> list[RequestEvent]:
    async with asyncio.timeout(20):
        return [event async for event in events]


TASKS = {
    "chat": CHAT,
    "raw": Task(prompt="Sort: 3 1", max_tokens=9),
    "template": Task(template="a{{mask:3}}\n{{mask:2}}é!"),
    "blocks": Task(prompt="x", max_tokens=20, overrides=Overrides(block_length=6, commit="quota")),
    "warm": Task(prompt="x", max_tokens=20, overrides=Overrides(temperature=1.0, seed=5, commit="quota")),
}


@pytest.mark.parametrize("name", TASKS)
async def test_events_come_in_order_and_texts_add_up(model: Model, name: str) -> None:
    events = await all_of((await requests_with(model).submit(TASKS[name])).events())
    assert isinstance(events[0], Plan)
    done = events[-1]
    assert isinstance(done, Done)
    assert sum(isinstance(e, Terminal) for e in events) == 1
    assert "".join(e.text for e in events if isinstance(e, Text)) == done.text
    steps = [e for e in events if isinstance(e, Step)]
    assert [e.step for e in steps] == list(range(len(steps)))
    assert all(later.masks_left < earlier.masks_left for earlier, later in itertools.pairwise(steps))
    for earlier, later in itertools.pairwise(steps):
        kept = [(a, b) for a, b in zip(earlier.canvas, later.canvas, strict=True) if a.state == "committed"]
        assert all(a == b for a, b in kept)
    assert done.usage.completion_tokens == len(done.token_ids)


async def test_a_template_keeps_its_words_and_fills_its_gaps(model: Model) -> None:
    *_, done = await all_of((await requests_with(model).submit(TASKS["template"])).events())
    assert isinstance(done, Done)
    assert len(done.gaps) == 2
    assert done.text == f"a{done.gaps[0]}\n{done.gaps[1]}é!"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 400), min_size=1, max_size=24), st.randoms(use_true_random=False))
def test_streamed_text_is_append_only_and_never_splits_a_character(ids: list[int], random: Any) -> None:
    model = open_model("gloss-tiny")
    config = model.checkpoint.config
    ids = [i for i in ids if i not in (config.mask_id,)] or [5]
    resolved = resolve(Task(prompt="", max_tokens=len(ids)), model)
    text = CanvasText(resolved, model.tokenizer.decode, config.mask_id, config.eos_id)
    canvas = np.array(resolved.canvas, np.int32)
    places = list(range(resolved.answer_from, len(canvas)))
    order = random.sample(places, len(places))
    sent = ""
    for place in order:
        canvas[place] = ids[place - resolved.answer_from]
        piece = text.grown(canvas, finished=False)
        assert not piece.endswith("\ufffd")
        sent += piece
    sent += text.grown(canvas, finished=True)
    until_end = ids[: ids.index(config.eos_id)] if config.eos_id in ids else ids
    assert sent == text.text == model.tokenizer.decode(until_end)


async def test_the_queue_is_bounded(model: Model) -> None:
    gate = asyncio.Event()
    requests = requests_with(model, lambda work: gate.wait())
    running = [await requests.submit(CHAT) for _ in range(2)]
    await asyncio.sleep(0.01)
    running += [await requests.submit(CHAT) for _ in range(2)]
    with pytest.raises(Overloaded, match="2 requests are waiting"):
        await requests.submit(CHAT)
    gate.set()
    for one in running:
        assert isinstance((await all_of(one.events()))[-1], Done)


async def test_a_cancelled_request_frees_its_slot_at_once(model: Model) -> None:
    steps = []
    requests = requests_with(model, lambda work: steps.append(work) or asyncio.Event().wait(), max_running=1)
    one = await requests.submit(CHAT)
    await asyncio.sleep(0.01)
    assert (requests.running, len(steps)) == (1, 1)
    one.cancel()
    await asyncio.sleep(0.01)
    assert (requests.running, requests.waiting) == (0, 0)
    assert requests.ended == {"cancelled": 1}


async def test_the_deadline_counts_the_queue(model: Model) -> None:
    requests = requests_with(model, lambda work: asyncio.Event().wait(), max_running=1)
    first = await requests.submit(CHAT)
    late = await requests.submit(Task(prompt="x", deadline_s=0.05))
    (error,) = await all_of(late.events())
    assert isinstance(error, Error)
    assert (error.code, error.http_status) == ("deadline", 504)
    first.cancel()
    await requests.drain(1.0)


async def test_failures_become_one_error_event(model: Model) -> None:
    def lose(work: Work) -> None:
        raise CoverageLost("nobody serves 3", (3,))

    def break_down(work: Work) -> None:
        raise KeyError("a defect")

    lost = (await all_of((await requests_with(model, lose).submit(CHAT)).events()))[-1]
    assert isinstance(lost, Error)
    assert (lost.code, lost.parts, lost.exit_code) == ("coverage_lost", (3,), 4)
    broken = (await all_of((await requests_with(model, break_down).submit(CHAT)).events()))[-1]
    assert isinstance(broken, Error)
    assert (broken.code, broken.http_status) == ("failed", 500)
    assert "a defect" not in broken.message


async def test_a_halt_is_an_event_of_its_own(model: Model) -> None:
    halted = requests_with(model, halted=lambda: True)
    assert isinstance((await all_of((await halted.submit(CHAT)).events()))[-1], HaltedEvent)


async def test_leaving_lets_running_requests_finish_and_admits_no_more(model: Model) -> None:
    requests = requests_with(model)
    one = await requests.submit(CHAT)
    reading = asyncio.create_task(all_of(one.events()))
    await requests.drain(5.0)
    assert isinstance((await reading)[-1], Done)
    with pytest.raises(Overloaded, match="leaving"):
        await requests.submit(CHAT)


async def test_a_request_that_outlasts_the_drain_time_is_told_so(model: Model) -> None:
    requests = requests_with(model, lambda work: asyncio.Event().wait())
    one = await requests.submit(CHAT)
    await asyncio.sleep(0.01)
    await requests.drain(0.01)
    *_, error = await all_of(one.events())
    assert isinstance(error, Error)
    assert (error.code, error.http_status) == ("overloaded", 503)
    assert "leaving" in error.message


@pytest.mark.parametrize(
    ("task", "field"),
    [
        (Task(prompt="x" * 600), "prompt"),
        (Task(messages=(Message("user", "y" * 600),)), "messages"),
        (Task(prompt="x", max_tokens=600), "max_tokens"),
        (Task(prompt="x", max_tokens=0), "max_tokens"),
        (Task(template="no gap"), "template"),
        (Task(template="{{mask:0}}"), "template"),
        (Task(template="{{mask:9999}}"), "template"),
        (Task(template="{{mask:x}} {{mask:2}}"), "template"),
        (Task(prompt="x", overrides=Overrides(commit="all")), "commit"),
        (Task(prompt="x", overrides=Overrides(temperature=-1.0)), "temperature"),
    ],
)
def test_impossible_tasks_name_the_field(model: Model, task: Task, field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        resolve(task, model)
    assert refused.value.field == field


def test_seeds_are_drawn_only_where_they_matter(model: Model) -> None:
    assert resolve(CHAT, model).settings.seed == 0
    warm = Task(prompt="x", overrides=Overrides(temperature=0.5))
    assert resolve(warm, model).settings.seed != resolve(warm, model).settings.seed
    assert resolve(Task(prompt="x", overrides=Overrides(temperature=0.5, seed=3)), model).settings.seed == 3


def test_a_users_words_never_become_special_tokens(model: Model) -> None:
    config = model.checkpoint.config
    said = Task(messages=(Message("user", "<|mask|> <|endoftext|> <|assistant|>"),), max_tokens=3)
    canvas = resolve(said, model).canvas
    assert canvas.count(config.mask_id) == 3
    assert config.eos_id not in canvas
