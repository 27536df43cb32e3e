"""The spine's law: the tokens do not depend on how many peers computed them, nor on who died meanwhile."""

import pytest
import torch

from swarm.chain.drive import drive
from swarm.decode.decoder import Decoder
from swarm.decode.settings import Commit, DecodeSettings
from swarm.errors import CoverageLost, Halted
from swarm.ids import Span
from tests.chain.swarm import Swarm, canvas, checkpoint, peer, record

SETTINGS = {
    "greedy": DecodeSettings(stop_at_eos=False),
    "blocks": DecodeSettings(block_length=5, steps=9, stop_at_eos=False),
    "warm": DecodeSettings(temperature=0.8, seed=11, stop_at_eos=False),
    "threshold": DecodeSettings(commit=Commit.THRESHOLD, threshold=0.02, temperature=0.8, seed=2),
    "guided": DecodeSettings(cfg_scale=1.5, temperature=0.8, seed=3, stop_at_eos=False),
}
SPLITS = ({"A": "0:6"}, {"A": "0:3", "B": "3:6"}, {"A": "0:1", "B": "1:5", "C": "5:6"}, {"A": "0:4", "B": "2:6"})


@pytest.mark.parametrize("name", SETTINGS)
async def test_tokens_are_the_same_on_one_node_and_on_many(name: str) -> None:
    answers = []
    for spans in SPLITS:
        swarm = await Swarm.of(**spans)
        answers.append(await swarm.decode(SETTINGS[name]))
        await swarm.close()
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.parametrize("step", range(0, 16, 3))
async def test_a_peer_killed_at_any_step_changes_nothing(step: int) -> None:
    quiet = await Swarm.of(A="0:6")
    want = await quiet.decode(SETTINGS["warm"])
    await quiet.close()
    swarm = await Swarm.of(A="0:3", B="3:6", C="3:6")
    source = swarm.source()
    victim = source.chain[1].peer
    host = swarm.hosts["B" if victim == peer("B") else "C"]

    def die(request: object) -> None:
        if request.step == step:  # type: ignore[attr-defined]
            swarm.network.kill(victim)
            raise RuntimeError("killed")

    host.before = die
    assert await swarm.decode(SETTINGS["warm"], source) == want
    assert source.counts.replays == 1
    assert source.counts.passes == 17
    await swarm.close()


async def test_without_a_spare_the_error_names_the_parts() -> None:
    swarm = await Swarm.of(A="0:3", B="3:6")
    source = swarm.source()
    swarm.network.kill(peer("B"))
    with pytest.raises(CoverageLost) as lost:
        await swarm.decode(SETTINGS["greedy"], source)
    assert lost.value.parts == (3, 4, 5)
    assert "5 (head)" in str(lost.value)
    await swarm.close()


async def test_a_frozen_peer_is_left_behind_after_its_deadline() -> None:
    swarm = await Swarm.of(A="0:3", B="3:6", C="3:6")
    swarm.timeout_s = 0.3
    source = swarm.source()
    swarm.network.freeze(source.chain[1].peer)
    want = await Swarm.of(A="0:6")
    assert await swarm.decode(SETTINGS["greedy"], source) == await want.decode(SETTINGS["greedy"])
    assert source.counts.replays == 1
    await swarm.close()
    await want.close()


async def test_a_restarted_peer_is_called_over_a_fresh_stream() -> None:
    swarm = await Swarm.of(A="0:6")
    first = await swarm.decode(SETTINGS["greedy"])
    for stream in list(swarm.network.nodes[peer("A")].streams):
        await stream.close()
    source = swarm.source("again")
    assert await swarm.decode(SETTINGS["greedy"], source) == first
    assert source.counts.replays == 0
    await swarm.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"protocol_major": 2},
        {"tokenizer": "0" * 64},
        {"dtype": "bfloat16"},
        {"quant": "int8"},
        {"state": "draining"},
        {"stop": 9},
    ],
)
async def test_peers_that_do_not_fit_are_never_mixed_in(changes: dict[str, object]) -> None:
    swarm = await Swarm.of(A="0:3", B="3:6")
    await swarm.network.nodes[peer("B")].announce(record("B", Span(3, 6), **changes))
    await swarm.book.refresh()
    assert swarm.book.uncovered() == (3, 4, 5)
    await swarm.close()


async def test_a_peer_with_another_model_is_not_seen_at_all() -> None:
    swarm = await Swarm.of(A="0:3")
    await swarm.network.node(peer("B")).announce(record("B", Span(3, 6), model="1" * 64))
    await swarm.book.refresh()
    assert swarm.book.uncovered() == (3, 4, 5)
    await swarm.close()


async def test_halted_is_polled_before_every_step() -> None:
    swarm = await Swarm.of(A="0:6")
    config = checkpoint().config
    decoder = Decoder(canvas(), SETTINGS["greedy"], config.mask_id, config.eos_id)
    source = swarm.source()
    with pytest.raises(Halted):
        async for _ in drive(decoder, source, lambda: source.counts.passes == 3):
            pass
    assert decoder.step == source.counts.passes == 3
    assert torch.get_num_threads() == 1
    await swarm.close()
