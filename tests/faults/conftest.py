"""Real daemons that the tests of this folder share. Starting one takes seconds."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.swarmlab.daemons import Daemon, swarm


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fixtures here start up to five daemons, which a busy machine does slowly."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="package")
def lone() -> Iterator[Daemon]:
    """A swarm of one: the reference for every answer."""
    with swarm("0:8", http="127.0.0.1:0", log_json=True) as (daemon,):
        yield daemon
