"""What was asked of a swarm, what came back, and whether it is what an undisturbed swarm says."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from glossd.events import Done, Error, RequestEvent, Step
from swarm.errors import GlossError
from tests.swarmlab.daemons import Daemon

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """One request: the number of its body, its seconds, its last event, and what is wrong with it, or nothing."""

    index: int
    seconds: float
    last: RequestEvent
    problem: str

    @property
    def replays(self) -> int:
        return self.last.timings.replays if isinstance(self.last, Done) else 0


class History:
    """`want` are the tokens of the undisturbed answers to `bodies`."""

    def __init__(self, bodies: Sequence[Body], want: Sequence[tuple[int, ...]]) -> None:
        self.bodies = tuple(bodies)
        self.want = tuple(want)
        self.entries: list[Entry] = []

    @classmethod
    def by(cls, reference: Daemon, bodies: Sequence[Body]) -> "History":
        return cls(bodies, [reference.ask(body).token_ids for body in bodies])

    def ask(self, node: Daemon, index: int, at: int = -1, then: Callable[[Step], None] = lambda step: None) -> Entry:
        """Send body number `index`; `then` runs when step `at` is reported."""
        began = time.perf_counter()
        committed: Counter[int] = Counter()
        steps: list[int] = []
        last: RequestEvent
        try:
            with closing(node.client.events(self.bodies[index])) as events:
                for last in events:
                    if isinstance(last, Step):
                        steps.append(last.step)
                        committed.update(each.position for each in last.committed)
                        if last.step == at:
                            then(last)
        except GlossError as error:
            last = Error(code=error.code, message=str(error), exit_code=error.exit_code, http_status=error.http_status)
        problem = self._problem(index, last, steps, committed)
        entry = Entry(index, time.perf_counter() - began, last, problem)
        self.entries.append(entry)
        return entry

    @contextmanager
    def load(self, nodes: Sequence[Daemon], clients: int, seed: int) -> Iterator[None]:
        """Steady load meanwhile: each client sends one request after the other, to nodes in turn."""
        stop = threading.Event()

        def client(number: int) -> None:
            rng = random.Random(f"{seed} {number}")
            while not stop.is_set():
                self.ask(rng.choice(nodes), rng.randrange(len(self.bodies)))

        with ThreadPoolExecutor(clients) as pool:
            running = [pool.submit(client, number) for number in range(clients)]
            try:
                yield
            finally:
                stop.set()
        for each in running:
            each.result()

    @property
    def answered(self) -> list[Entry]:
        return [entry for entry in self.entries if isinstance(entry.last, Done)]

    @property
    def success(self) -> float:
        """Share of the requests that were answered."""
        return len(self.answered) / len(self.entries)

    @property
    def identical(self) -> float:
        """Share of the answers that are those of the undisturbed swarm, each step and token committed once."""
        return sum(not entry.problem for entry in self.answered) / max(1, len(self.answered))

    @property
    def problems(self) -> list[str]:
        return [f"request {entry.index}: {entry.problem}" for entry in self.entries if entry.problem]

    def _problem(self, index: int, last: RequestEvent, steps: list[int], committed: Counter[int]) -> str:
        if not isinstance(last, Done):
            return f"{last.type} {getattr(last, 'code', '')}: {getattr(last, 'message', '')}"
        if last.token_ids != self.want[index]:
            return f"other tokens: {last.text!r}"
        if steps != sorted(set(steps)) or (committed and max(committed.values()) > 1):
            return "a step or a position was committed twice"
        return ""
