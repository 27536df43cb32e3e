"""Nodes spread over a model by themselves: they help the weakest parts, never uncover one, and come to rest."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.ids import Span
from swarm.plan.placement import Hosted, better_span, choose_span, supply, windows

N = 8
WORK = [0.01, *[1.0] * (N - 2), 2.0]
WHOLE = [Span(0, N)]
spans = st.tuples(st.integers(0, N - 1), st.integers(1, N)).filter(lambda s: s[0] < s[1]).map(lambda s: Span(*s))
speeds = st.sampled_from([0.0, 1.0, 2.5, 10.0, 400.0])
peers = st.lists(st.builds(Hosted, spans, speeds, st.booleans()), max_size=8)


def covered(hosted: list[Hosted]) -> set[int]:
    return {part for one in hosted for part in one.span}


@given(
    st.lists(st.integers(1, 9), min_size=N, max_size=N),
    st.integers(0, 60),
    st.sampled_from([WHOLE, [Span(1, 3), Span(4, 8)]]),
)
def test_windows_are_the_longest_that_fit(sizes: list[int], budget: int, held: list[Span]) -> None:
    found = windows(sizes, budget, held)
    fit = {
        Span(a, b) for whole in held for a in whole for b in range(a + 1, whole.stop + 1) if sum(sizes[a:b]) <= budget
    }
    longest = {one for one in fit if not any(one != other and set(one) <= set(other) for other in fit)}
    assert set(found) == longest
    assert len(found) == len(longest)


@given(peers, st.integers(1, N))
def test_a_new_node_helps_the_weakest_parts(others: list[Hosted], capacity: int) -> None:
    candidates = windows([1] * N, capacity, WHOLE)
    chosen = choose_span(others, candidates, WORK)
    missing = set(range(N)) - covered(others)
    most = max(len(missing & set(one)) for one in candidates)
    assert len(missing & set(chosen)) == most
    if not missing:
        weakest = min(supply(others, WORK))
        after = supply([*others, Hosted(chosen, 0.0)], WORK)
        assert min(after) >= weakest


def rate(before: Hosted, span: Span, work: list[float]) -> float:
    """What the same machine reaches on another span."""
    mean = [sum(work[one.start : one.stop]) / len(one) for one in (before.span, span)]
    return before.parts_per_s * mean[0] / mean[1]


def test_the_head_counts_for_more_than_a_layer() -> None:
    # Two equal machines: the one that has the head runs fewer passes.
    others = [Hosted(Span(0, 4), 4.0), Hosted(Span(4, 8), 4.0 * 4 / 5)]
    assert choose_span(others, windows([1] * N, 4, WHOLE), WORK) == Span(4, 8)


@given(peers, spans, speeds, st.integers(1, N))
def test_a_move_never_uncovers_a_part_and_helps_the_weakest(
    others: list[Hosted], span: Span, speed: float, capacity: int
) -> None:
    mine = Hosted(span, speed)
    target = better_span(mine, others, windows([1] * N, capacity, WHOLE), WORK)
    if target is None:
        return
    stay = [one for one in others if one.serves]
    assert covered([*stay, mine]) <= covered([*stay, Hosted(target, speed)])


@given(st.integers(0, 2**32))
def test_a_swarm_comes_to_rest_from_any_start(seed: int) -> None:
    draw = random.Random(seed)
    n_parts = draw.randint(2, 12)
    work = [0.01, *[1.0] * (n_parts - 2), draw.choice([0.5, 1.0, 4.0])]
    room = [draw.randint(1, n_parts) for _ in range(draw.randint(1, 14))]
    candidates = [windows([1] * n_parts, size, [Span(0, n_parts)]) for size in room]
    nodes = [Hosted(draw.choice(choices), draw.choice([1.0, 3.0, 20.0])) for choices in candidates]
    enough = any(size == n_parts for size in room)
    for _ in range(200):
        moved = False
        for index in draw.sample(range(len(nodes)), len(nodes)):
            others = nodes[:index] + nodes[index + 1 :]
            target = better_span(nodes[index], others, candidates[index], work)
            if target is not None:
                before = covered(nodes)
                nodes[index] = Hosted(target, rate(nodes[index], target, work))
                assert before <= covered(nodes)
                moved = True
        if not moved:
            break
    else:
        pytest.fail("still moving after 200 rounds")
    assert not enough or covered(nodes) == set(range(n_parts))


def test_small_differences_move_nobody() -> None:
    mine, candidates = Hosted(Span(4, 8), 4.5), windows([1] * N, 4, WHOLE)

    def target(low: float) -> Span | None:
        return better_span(mine, [Hosted(Span(0, 4), low), Hosted(Span(4, 8), 4.5)], candidates, [1.0] * N)

    assert target(4.0) is None, "the weakest would get an eighth more"
    assert target(2.0) == Span(0, 4)
    assert target(9.0) is None


def test_a_part_whose_other_hosts_are_about_to_leave_is_kept() -> None:
    going = Hosted(Span(4, 8), 1.0, serves=False)
    others = [Hosted(Span(0, 4), 1.0), Hosted(Span(0, 4), 1.0), going]
    candidates = windows([1] * N, 4, WHOLE)
    assert better_span(Hosted(Span(0, 4), 1.0), others, candidates, WORK) is not None
    assert better_span(Hosted(Span(4, 8), 1.0), others, candidates, WORK) is None


def test_a_thousand_nodes_share_a_model_evenly() -> None:
    n_parts, draw = 34, random.Random(7)
    work = [0.01, *[1.0] * 32, 3.0]
    sizes = [2, *[1] * 32, 2]
    nodes: list[Hosted] = []
    for _ in range(1000):
        candidates = windows(sizes, draw.randint(2, 12), [Span(0, n_parts)])
        nodes.append(Hosted(choose_span(nodes, candidates, work), draw.choice([1.0, 2.0, 8.0])))
    levels = supply(nodes, work)
    assert max(levels) < 1.5 * min(levels)
