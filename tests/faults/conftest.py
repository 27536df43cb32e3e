"""Real daemons that the tests of this folder share. Starting one takes seconds."""

from collections.abc import Iterator

import pytest

from tests.swarmlab.daemons import Daemon, swarm


@pytest.fixture(scope="package")
def lone() -> Iterator[Daemon]:
    """A swarm of one: the reference for every answer."""
    with swarm("0:8", http="127.0.0.1:0", log_json=True) as (daemon,):
        yield daemon
