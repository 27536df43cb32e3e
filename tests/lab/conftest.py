"""Labs for the tests that need one; without root or a tool they are skipped, and the reason says what is missing."""

from collections.abc import Iterator

import pytest

from scripts.netlab import Lab, NodeSpec, missing


@pytest.fixture(autouse=True)
def _needs_lab(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("lab") and missing():
        pytest.skip(missing())


@pytest.fixture(scope="module")
def nat_lab() -> Iterator[Lab]:
    """Two public nodes and one behind each kind of router, without delay."""
    if missing():
        pytest.skip(missing())
    nodes = [
        NodeSpec("p1"), NodeSpec("p2"),
        NodeSpec("cone", "cone"), NodeSpec("sym", "symmetric"), NodeSpec("open", "none"),
    ]  # fmt: skip
    with Lab.made(nodes) as lab:
        yield lab
