import struct

import numpy as np
import pytest
from hypothesis import given

from swarm.errors import LinkBroken, WireError
from swarm.wire.frames import decode, encode, read_frame, write_frame
from swarm.wire.messages import (
    BODY_LIMIT,
    HEAD_LIMIT,
    MAX_HOPS,
    MAX_TENSORS,
    PassAnswer,
    PassRequest,
    Ping,
    Pong,
    Refusal,
    RouteHop,
)
from swarm.wire.tensors import Tensor

from .mutate import hundred_damaged, hundred_seeds, seeds

PEERS = ["Qm" + letter * 44 for letter in "ABC"]
REQUEST = PassRequest(
    request="r1",
    step=3,
    attempt=0,
    model="ab" * 32,
    start=0,
    stop=4,
    route=[RouteHop(peer=PEERS[1], start=4, stop=5), RouteHop(peer=PEERS[2], start=5, stop=9)],
    reply_to=PEERS[0],
    session="0f" * 16,
    rows=2,
    columns=6,
    budget_ms=1000,
    computed_us=[17],
)
ANSWER = PassAnswer(request="r1", step=3, attempt=0, computed_us=[17, 4])
REFUSAL = Refusal(request="r1", step=3, attempt=0, peer=PEERS[1], code="overloaded", message="busy; try another peer")
IDS = Tensor.of("ids", np.arange(12, dtype=np.int32).reshape(2, 6))
HIDDEN = Tensor.raw("hidden", "bfloat16", (1, 3, 2), bytes(range(12)))


class Tape:
    """A stream over fixed bytes that notes how much it was asked for."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = data
        self.asked: list[int] = []

    async def read_exactly(self, size: int) -> bytes:
        self.asked.append(size)
        if size > len(self.data):
            raise LinkBroken("the tape ends")
        part, self.data = self.data[:size], self.data[size:]
        return part

    async def write(self, *chunks: bytes | memoryview) -> None:
        self.data += b"".join(chunks)


def split(frame: bytes) -> tuple[bytes, bytes]:
    """Head and body of a frame, cut where its prefix says, as far as it reaches."""
    head_size = struct.unpack_from(">I", frame.ljust(8, b"\0"))[0]
    return frame[8 : 8 + head_size], frame[8 + head_size :]


def framed(head: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">II", len(head), len(body)) + head + body


@pytest.mark.parametrize(
    ("message", "tensors"),
    [(REQUEST, (IDS, HIDDEN)), (REQUEST, ()), (ANSWER, (HIDDEN,)), (REFUSAL, ()), (Ping(), ()), (Pong(), ())],
)
async def test_a_frame_comes_back_as_it_was(message: PassRequest, tensors: tuple[Tensor, ...]) -> None:
    tape = Tape()
    await write_frame(tape, message, tensors)
    await write_frame(tape, REFUSAL)
    back, found = await read_frame(tape)
    heads = (
        {} if not isinstance(message, PassRequest | PassAnswer) else {"tensors": [tensor.head() for tensor in tensors]}
    )
    assert back == message.model_copy(update=heads)
    assert list(found) == [tensor.name for tensor in tensors]
    for tensor in tensors:
        assert found[tensor.name].head() == tensor.head()
        assert bytes(found[tensor.name].data) == bytes(tensor.data)
    assert (await read_frame(tape))[0] == REFUSAL


def test_decoded_tensors_are_views_into_the_body() -> None:
    head, body = split(b"".join(encode(REQUEST, (IDS,))))
    room = bytearray(body)
    _, tensors = decode(head, memoryview(room))
    room[0] = 99
    assert tensors["ids"].array()[0, 0] == 99


@pytest.mark.parametrize(
    ("head_size", "body_size"), [(HEAD_LIMIT + 1, 0), (0, 0), (2, BODY_LIMIT + 1), (2**32 - 1, 2**32 - 1)]
)
async def test_a_frame_beyond_the_limits_is_refused_on_its_prefix(head_size: int, body_size: int) -> None:
    tape = Tape(struct.pack(">II", head_size, body_size) + b"{}")
    with pytest.raises(WireError, match="bytes"):
        await read_frame(tape)
    assert tape.asked == [8]


async def test_a_frame_at_the_limits_is_read() -> None:
    room = BODY_LIMIT // 2
    head = ANSWER.model_copy(update={"tensors": [Tensor("hidden", "bfloat16", (room,), b"").head()]})
    padded = head.model_dump_json().encode().ljust(HEAD_LIMIT)
    tape = Tape(struct.pack(">II", HEAD_LIMIT, BODY_LIMIT) + padded)
    with pytest.raises(LinkBroken):
        await read_frame(tape)
    assert tape.asked == [8, HEAD_LIMIT, BODY_LIMIT]


async def test_a_body_that_its_head_does_not_explain_is_not_read() -> None:
    head, body = split(b"".join(encode(REQUEST, (IDS,))))
    for wrong in (body[:-1], body + b"\0", b""):
        tape = Tape(framed(head, wrong))
        with pytest.raises(WireError, match="its body has"):
            await read_frame(tape)
        assert tape.asked == [8, len(head)]
        with pytest.raises(WireError, match="its body has"):
            decode(head, wrong)


@pytest.mark.parametrize(
    "text",
    [
        '{"kind":"pass"}',
        '{"kind":"shutdown"}',
        "[]",
        "[" * 5000,
        REQUEST.model_dump_json().replace('"start":0', '"start":4'),
        REQUEST.model_dump_json().replace('"cfg_scale":0.0', '"cfg_scale":NaN'),
        REQUEST.model_dump_json().replace('"step":3', '"step":"3"'),
        REQUEST.model_dump_json().replace('"step":3', '"step":3,"more":1'),
        REQUEST.model_dump_json().replace('"step":3', '"step":true'),
        REQUEST.model_dump_json().replace('"start":5', '"start":6'),
        REQUEST.model_dump_json().replace('"start":4', '"start":3'),
        REQUEST.model_dump_json().replace('"stop":9', '"stop":5'),
        REQUEST.model_dump_json().replace('"session":"0f', '"session":"'),
        REQUEST.model_dump_json().replace('"rows":2', '"rows":3'),
        REQUEST.model_dump_json().replace(PEERS[0], "0" * 46),
        REFUSAL.model_dump_json().replace(PEERS[1], "x"),
    ],
)
def test_a_head_outside_the_schema_is_refused(text: str) -> None:
    with pytest.raises(WireError, match="malformed message"):
        decode(text.encode(), b"")


def test_a_route_has_an_end() -> None:
    hops = [RouteHop(peer=PEERS[1], start=4 + n, stop=5 + n) for n in range(MAX_HOPS)]
    longest = REQUEST.model_copy(update={"stop": 5, "route": hops[1:]}).model_dump_json()
    assert len(longest) < HEAD_LIMIT
    decode(longest.encode(), b"")
    with pytest.raises(WireError, match="route"):
        decode(REQUEST.model_copy(update={"route": hops}).model_dump_json().encode(), b"")


def test_the_secret_of_a_session_is_not_shown() -> None:
    assert REQUEST.session not in repr(REQUEST)
    assert REQUEST.session not in str(REQUEST)


def test_names_of_tensors_are_unique() -> None:
    with pytest.raises(WireError, match="same name"):
        encode(REQUEST, (IDS, IDS))
    head = REQUEST.model_copy(update={"tensors": [IDS.head(), IDS.head()]}).model_dump_json().encode()
    with pytest.raises(WireError, match="same name"):
        decode(head, bytes(2 * len(IDS.data)))


def test_what_a_peer_would_refuse_is_not_sent() -> None:
    with pytest.raises(WireError, match="no tensors"):
        encode(REFUSAL, (IDS,))
    with pytest.raises(WireError, match="at most"):
        encode(REQUEST, [Tensor.of(str(n), np.zeros(1, np.int32)) for n in range(MAX_TENSORS + 1)])
    whole = Tensor("a", "bfloat16", (BODY_LIMIT // 2,), bytes(BODY_LIMIT))
    with pytest.raises(WireError, match="exceeds"):
        encode(REQUEST, [whole, IDS])


WIDE = Tensor.integers("wide", np.array([0, 1 << 16, (1 << 24) - 1], np.int32))
FRAME = b"".join(encode(REQUEST, (Tensor.integers("ids", IDS.array()), WIDE, HIDDEN)))


@hundred_seeds
@given(seeds)
def test_damaged_frames_decode_or_raise_wire_error(seed: int) -> None:
    for frame in hundred_damaged(FRAME, seed):
        head, body = split(frame)
        try:
            message, tensors = decode(head, body)
        except WireError:
            continue
        again = b"".join(encode(message, list(tensors.values())))
        assert decode(*split(again))[0] == message
        for tensor in tensors.values():
            if tensor.is_integer:
                assert tensor.as_int32().shape == tensor.shape
            elif tensor.dtype != "bfloat16":
                assert tensor.array().shape == tensor.shape
