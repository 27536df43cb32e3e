"""The network parts and heals: each side answers from what it covers, or says at once what it lacks.

Two daemons that reach each other only through paths that can be cut. The first hosts everything, the second the end.
"""

import time
from collections.abc import Iterator

import pytest

from glossd.events import Error
from tests.faults.bodies import LONG, SHORT
from tests.swarmlab.daemons import Daemon, until
from tests.swarmlab.history import History
from tests.swarmlab.shaper import Shaper, flags_of, shaped

LISTED_S = 15.0
"""How long a peer may be listed that nobody hears of."""


@pytest.fixture(scope="module")
def paths() -> Iterator[list[Shaper]]:
    with shaped(2) as shapers:
        yield shapers


@pytest.fixture(scope="module")
def nodes(paths: list[Shaper], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Daemon]]:
    folder = tmp_path_factory.mktemp("parted")
    a = Daemon(folder / "a", {"layers": "0:8", **flags_of(paths[0])}).launch()
    b = Daemon(folder / "b", {"layers": "4:8", **flags_of(paths[1])})
    try:
        b.flags["join"] = [a.wait_ready().join_address]
        b.launch().wait_ready()
        for node in (a, b):
            node.wait_covered(peers=2)
        yield [a, b]
    finally:
        a.end()
        b.end()


@pytest.fixture(scope="module")
def history(lone: Daemon) -> History:
    return History.by(lone, [LONG, SHORT[0]])


def test_the_path_leads_through_the_shapers(nodes: list[Daemon], paths: list[Shaper], history: History) -> None:
    for node in nodes:
        assert not history.ask(node, 1).problem
    assert sum(path.connections for path in paths) >= 1
    for node, path in zip(nodes, paths, strict=True):
        assert f"/tcp/{path.port}/" in node.join_address


def test_a_slow_path_changes_nothing(nodes: list[Daemon], paths: list[Shaper], history: History) -> None:
    for path in paths:
        path.delay_s, path.loss = 0.02, 0.05
    try:
        assert not history.ask(nodes[1], 1).problem
    finally:
        for path in paths:
            path.delay_s = path.loss = 0.0


@pytest.mark.parametrize(
    ("ways", "seconds"),
    [
        (("there", "back"), 0.0),
        pytest.param(("there", "back"), 30.0, marks=pytest.mark.slow),
        pytest.param(("there",), 30.0, marks=pytest.mark.slow),
    ],
    ids=["until it shows", "both ways", "one way"],
)
def test_the_network_parts_and_heals(
    nodes: list[Daemon], paths: list[Shaper], history: History, ways: tuple[str, ...], seconds: float
) -> None:
    a, b = nodes
    healed = time.monotonic() + seconds

    def part(step: object) -> None:
        for path in paths:
            for way in ways:
                setattr(path, way, False)

    cut_off = history.ask(b, 0, 4, part)
    assert isinstance(cut_off.last, Error)
    assert (cut_off.last.code, cut_off.last.parts) == ("coverage_lost", (0, 1, 2, 3))
    assert not history.ask(a, 0).problem
    until(lambda: a.status().peers == 1, LISTED_S)
    again = history.ask(b, 0)
    assert isinstance(again.last, Error) and again.last.code == "coverage_lost"
    time.sleep(max(0.0, healed - time.monotonic()))
    for path in paths:
        path.heal()
    for node in nodes:
        node.wait_covered(peers=2)
    for node in nodes:
        assert not history.ask(node, 0).problem
