"""The model of wall time against tabulated values and by its own laws."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.plan.walltime import Chain, pipelined_s, synchronous_s

MS = 1e-3


@pytest.mark.parametrize(
    ("compute_ms", "near_ms", "far_ms", "four_ms", "eight_ms"),
    [(10, 42.5, 290, 260, 255), (60, 242.5, 490, 310, 280), (250, 1002.5, 1250, 500, 375)],
)
def test_a_chain_of_four(compute_ms: float, near_ms: float, far_ms: float, four_ms: float, eight_ms: float) -> None:
    far = Chain(4, compute_ms * MS, 100 * MS)
    assert synchronous_s(Chain(4, compute_ms * MS, 1 * MS)) == pytest.approx(near_ms * MS)
    assert synchronous_s(far) == pytest.approx(far_ms * MS)
    assert pipelined_s(far, 4) == pytest.approx(four_ms * MS)
    assert pipelined_s(far, 8) == pytest.approx(eight_ms * MS)


chains = st.builds(
    Chain,
    spans=st.integers(1, 12),
    compute_s=st.floats(1e-4, 1),
    rtt_s=st.floats(0, 1),
    coordinator_serves=st.booleans(),
    fixed_share=st.floats(0, 1),
)


@given(chains)
def test_one_patch_is_synchronous(chain: Chain) -> None:
    assert pipelined_s(chain, 1) == pytest.approx(synchronous_s(chain))


@given(chains, st.integers(1, 32))
def test_patches_never_help_where_nothing_shrinks(chain: Chain, patches: int) -> None:
    fixed = replace(chain, fixed_share=1.0)
    assert pipelined_s(fixed, patches) >= synchronous_s(fixed) * (1 - 1e-9)


@given(chains, st.integers(1, 8), st.integers(1, 8))
def test_no_request_is_faster_than_the_devices_allow(chain: Chain, patches: int, in_flight: int) -> None:
    assert pipelined_s(chain, patches, in_flight) >= patches * chain.patch_s(patches) * (1 - 1e-9)
