"""The patch decoder: what holds whatever the scores are and however late answers come."""

from collections import deque
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.decode.decoder import Decoder
from swarm.decode.events import Finished, Stepped, Work
from swarm.decode.patches import PatchDecoder
from swarm.decode.settings import Cache, Commit, DecodeSettings
from swarm.errors import BadAnswer, BadRequest
from tests.decode.test_promises import EOS, MASK, canvases, rows_for

BASE = DecodeSettings(commit=Commit.THRESHOLD, cache=Cache.DUAL, threshold=0.3, patches=3)


def settings() -> st.SearchStrategy[DecodeSettings]:
    return st.builds(
        lambda **changes: replace(BASE, **changes),
        patches=st.integers(2, 9),
        staleness=st.integers(1, 3),
        refresh_steps=st.none() | st.integers(1, 5),
        block_length=st.none() | st.integers(1, 9),
        threshold=st.sampled_from([0.15, 0.3, 0.9]),
        temperature=st.sampled_from([0.0, 1.0]),
        cfg_scale=st.sampled_from([0.0, 1.5]),
        stop_at_eos=st.booleans(),
    )


def run(decoder: PatchDecoder, lost: tuple[int, ...] = ()) -> list[Work]:
    """Answers in the order of sending; passes of the steps in `lost` fail, with all that travels."""
    sent: list[Work] = []
    flying: deque[Work] = deque()
    finished = 0
    while True:
        for work in decoder.wanted():
            sent.append(work)
            flying.append(work)
        if not flying:
            assert finished == 1
            return sent
        work = flying.popleft()
        if work.step not in decoder.in_flight:
            continue
        if work.step in lost and work.displaced:
            flying.clear()
            decoder.lost()
            continue
        before = decoder.canvas.copy()
        for event in decoder.apply(work.step, rows_for(work.ids[0], work.positions, 1)):
            finished += isinstance(event, Finished)
            if isinstance(event, Stepped):
                assert event.masks_left == decoder.masks_left == (before == MASK).sum() - len(event.committed)
        assert (decoder.canvas[before != MASK] == before[before != MASK]).all(), "a committed token changed"


@given(canvases(), settings(), st.lists(st.integers(0, 30), max_size=3))
def test_it_ends_and_commits_stay(canvas: np.ndarray, settings: DecodeSettings, lost: list[int]) -> None:
    decoder = PatchDecoder(canvas, settings, MASK, EOS)
    sent = run(decoder, tuple(lost))
    assert len({work.step for work in sent}) == len(sent), "two passes under one step"
    assert decoder.telemetry.staleness <= settings.staleness


@given(canvases(), settings())
def test_a_pass_computes_what_it_scores_and_all_that_was_fixed_since(
    canvas: np.ndarray, settings: DecodeSettings
) -> None:
    decoder = PatchDecoder(canvas, settings, MASK, EOS)
    computed: dict[tuple[int, int], int] = {}
    for work in run(decoder):
        assert work.epoch is not None
        if work.step == work.epoch.first_step:
            assert (work.epoch.snapshot == work.ids).all()
            computed = {(work.epoch.number, at): int(token) for at, token in enumerate(work.ids[0])}
            continue
        assert set(work.positions) <= set(work.epoch.active)
        computed |= {(work.epoch.number, int(at)): int(work.ids[0, at]) for at in work.epoch.active}
        stale = [at for (_, at), token in computed.items() if token != work.ids[0, at]]
        assert not stale, "keys and values of a mask where a token was fixed before the pass was sent"


@given(canvases(), settings())
def test_a_refresh_every_step_is_the_synchronous_decoder(canvas: np.ndarray, settings: DecodeSettings) -> None:
    one = replace(settings, refresh_steps=1)
    displaced = PatchDecoder(canvas, one, MASK, EOS)
    run(displaced)
    plain = Decoder(canvas, replace(one, patches=1), MASK, EOS)
    while works := plain.wanted():
        plain.apply(works[0].step, rows_for(works[0].ids[0], works[0].positions, 1))
    assert displaced.canvas.tolist() == plain.canvas.tolist()
    assert displaced.telemetry.displaced == 0


def test_passes_travel_together_and_a_refresh_travels_alone() -> None:
    decoder = PatchDecoder(np.zeros(12, np.int32), replace(BASE, refresh_steps=3, threshold=0.99), MASK, EOS)
    (first,) = decoder.wanted()
    assert decoder.wanted() == []
    decoder.apply(first.step, rows_for(first.ids[0], first.positions, 1))
    works = decoder.wanted()
    assert len(works) == 3
    assert sorted(at for work in works for at in work.positions) == np.flatnonzero(decoder.canvas == MASK).tolist()
    seen = 1
    while len(works) > 1 or works[0].displaced:
        work = works.pop(0)
        decoder.apply(work.step, rows_for(work.ids[0], work.positions, 1))
        works += decoder.wanted()
        seen += 1
    assert works[0].positions.tolist() == np.flatnonzero(decoder.canvas == MASK).tolist()
    assert decoder.telemetry.loops == 2


def test_without_a_sure_token_a_round_fixes_one() -> None:
    decoder = PatchDecoder(np.zeros(9, np.int32), replace(BASE, threshold=1.0), MASK, EOS)
    run(decoder)
    assert decoder.masks_left == 0 or decoder.finished
    assert decoder.telemetry.loops >= 8 - 1


def test_rows_that_nobody_asked_for_are_refused() -> None:
    decoder = PatchDecoder(np.zeros(9, np.int32), BASE, MASK, EOS)
    (work,) = decoder.wanted()
    with pytest.raises(BadAnswer):
        decoder.apply(work.step + 1, rows_for(work.ids[0], work.positions, 1))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"staleness": 4}, "staleness"),
        ({"patches": 0}, "patches"),
        ({"commit": Commit.QUOTA}, "patches"),
        ({"cache": Cache.NONE}, "patches"),
    ],
)
def test_settings_that_do_not_go_together(changes: dict[str, object], field: str) -> None:
    with pytest.raises(BadRequest) as error:
        replace(BASE, **changes).check_pair()  # type: ignore[arg-type]
    assert error.value.field == field


def test_staleness_zero_is_synchronous() -> None:
    assert not replace(BASE, staleness=0).is_displaced
