"""Hidden states are rounded between peers when the coordinator asks, and only then."""

import numpy as np
import pytest

from swarm.decode.settings import Cache, DecodeSettings
from swarm.errors import CoverageLost
from swarm.wire.messages import Activations, PassRequest
from swarm.wire.tensors import Tensor
from tests.chain.swarm import Swarm, peer

SETTINGS = DecodeSettings(cache=Cache.DUAL, block_length=8, stop_at_eos=False)


async def seen_states(activations: Activations, **spans: str) -> tuple[list[Tensor], list[int]]:
    """What reaches the last peer's parts, and the answer."""
    swarm = await Swarm.of(**spans)
    last = swarm.hosts[max(spans)]
    seen: list[Tensor] = []
    answer = last.answer

    async def noting(request: PassRequest, tensors: dict[str, Tensor]) -> object:
        seen.append(tensors["hidden"])
        return await answer(request, tensors)

    last.answer = noting  # type: ignore[method-assign, assignment]
    tokens = await swarm.decode(SETTINGS, swarm.source(activations=activations))
    await swarm.close()
    return seen, tokens


@pytest.mark.parametrize("activations", ["float16", "bfloat16", "int8"])
async def test_hidden_states_are_rounded_on_request(activations: Activations) -> None:
    exact, _ = await seen_states("exact", A="0:3", B="3:6")
    rounded, tokens = await seen_states(activations, A="0:3", B="3:6")
    first, same = rounded[0].array(), exact[0].array()
    assert not np.array_equal(first, same)
    assert np.abs(first - same).max() < 0.02 * np.abs(same).max()
    assert rounded[0].dtype == exact[0].dtype == "float32"
    assert len(tokens) == 22
    assert tokens == (await seen_states(activations, A="0:3", B="3:6"))[1]


async def test_nothing_is_rounded_within_a_peer() -> None:
    swarm = await Swarm.of(A="0:6")
    want = await swarm.decode(SETTINGS)
    assert await swarm.decode(SETTINGS, swarm.source("again", activations="int8")) == want
    await swarm.close()


async def test_a_peer_that_rounds_unasked_is_left_out() -> None:
    swarm = await Swarm.of(A="0:3", B="3:6")
    relay = swarm.relays["A"]
    push = relay._push

    async def otherwise(to: object, request: PassRequest, tensors: tuple[Tensor, ...]) -> None:
        await push(to, request.model_copy(update={"activations": "exact"}), tensors)  # type: ignore[arg-type]

    relay._push = otherwise  # type: ignore[method-assign, assignment]
    with pytest.raises(CoverageLost) as lost:
        await swarm.decode(SETTINGS, swarm.source(activations="float16"))
    assert lost.value.parts == (0, 1, 2)
    assert not swarm.book.state(peer("B")).failures
    await swarm.close()
