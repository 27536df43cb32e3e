"""The model of wall time against tabulated values and by its own laws."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.plan.walltime import (
    Chain,
    best_patches,
    masked_share,
    pipelined_s,
    requests_to_fill,
    synchronous_s,
    window_s,
)

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


@given(chains, st.integers(1, 32))
def test_one_patch_is_synchronous_and_the_best_number_is_no_worse(chain: Chain, most: int) -> None:
    assert pipelined_s(chain, 1) == pytest.approx(synchronous_s(chain))
    best = best_patches(chain, most)
    assert pipelined_s(chain, best) <= synchronous_s(chain) * (1 + 1e-9)
    if chain.travel_s > 1e-6:
        assert masked_share(chain, best) >= -1e-6


@given(chains)
def test_patches_never_help_where_nothing_shrinks(chain: Chain) -> None:
    fixed = Chain(chain.spans, chain.compute_s, chain.rtt_s, chain.coordinator_serves, 1.0)
    assert best_patches(fixed, 16) == 1


@given(chains, st.integers(1, 8))
def test_enough_requests_fill_the_devices(chain: Chain, patches: int) -> None:
    full = requests_to_fill(chain, patches)
    assert pipelined_s(chain, patches, full) == pytest.approx(patches * chain.patch_s(patches))
    if full > 1:
        assert pipelined_s(chain, patches, full - 1) >= patches * chain.patch_s(patches)


def test_a_window_of_one_accepted_step_is_synchronous() -> None:
    chain = Chain(3, 0.01, 0.1)
    assert window_s(chain, 1.0) == pytest.approx(synchronous_s(chain))
    assert window_s(chain, 2.0) == pytest.approx(synchronous_s(chain) / 2)
