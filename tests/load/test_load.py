"""Steady load and overload: every answer is the one that the prompt gets alone, or a refusal with a time to return."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from glossd.events import Done, Error
from tests.faults.bodies import LONG, SHORT
from tests.swarmlab.daemons import Daemon, swarm, until
from tests.swarmlab.history import History

pytestmark = pytest.mark.timeout(900)

CLIENTS = 16
GROWTH_BYTES = 64 * 2**20


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Daemon]]:
    with swarm("0:4", "0:4", "4:8", "4:8", max_running=4, queue_limit=12) as daemons:
        yield daemons


@pytest.mark.parametrize("prompts", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_sixteen_clients(nodes: list[Daemon], prompts: int) -> None:
    history = History.by(nodes[0], SHORT)

    def client(number: int) -> None:
        for turn in range(prompts):
            history.ask(nodes[number % len(nodes)], (number + turn) % len(SHORT))

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(client, range(CLIENTS)))
    assert len(history.entries) == CLIENTS * prompts
    assert not history.problems


def test_ten_times_too_much_is_refused_with_a_time_to_come_back(nodes: list[Daemon]) -> None:
    """Sixteen requests have room, a hundred come at once."""
    node = nodes[0]
    want = node.ask(LONG).token_ids
    before = psutil.Process(node.pid).memory_info().rss

    def ask(number: int) -> tuple[int, str | None, str]:
        with node.http(120) as http:
            answer = http.post("/api/prompt", json=LONG)
            return answer.status_code, answer.headers.get("Retry-After"), answer.text.splitlines()[-1]

    with ThreadPoolExecutor(100) as pool:
        answers = list(pool.map(ask, range(100)))
    done = [Done.model_validate_json(last) for status, _, last in answers if status == 200]
    refused = [(retry, Error.model_validate_json(last)) for status, retry, last in answers if status != 200]
    assert len(done) >= 16
    assert len(refused) >= 20
    assert {answer.token_ids for answer in done} == {want}
    assert {error.code for _, error in refused} == {"overloaded"}
    assert all(retry is not None and int(retry) >= 1 for retry, _ in refused)
    assert psutil.Process(node.pid).memory_info().rss - before < GROWTH_BYTES
    until(lambda: node.status().queue.running == node.status().queue.waiting == 0)
    assert node.ask(LONG).token_ids == want
