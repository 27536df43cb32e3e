from pathlib import Path

import pytest
from hypothesis import given

from swarm.errors import WireError
from swarm.net.identity import Identity, load_or_create
from swarm.wire import envelope as envelopes
from swarm.wire.envelope import seal, unseal
from swarm.wire.keys import peer_id_of
from swarm.wire.records import RECORD_LIMIT, NodeRecord, decode_record, encode_record

from .mutate import hundred_damaged, hundred_seeds, seeds


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return load_or_create(tmp_path_factory.mktemp("owner") / "key")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return load_or_create(tmp_path_factory.mktemp("stranger") / "key")


def record_of(identity: Identity, **changes: object) -> NodeRecord:
    fields = {
        "peer": identity.peer_id,
        "model": "ab" * 32,
        "tokenizer": "cd" * 32,
        "start": 0,
        "stop": 4,
        "dtype": "bfloat16",
        "throughput": 1234.5,
        "issued_ms": 1_796_075_105_407,
    }
    return NodeRecord.model_validate(fields | changes)


def test_a_signed_record_comes_back_as_it_was(owner: Identity) -> None:
    record = record_of(owner, state="draining", version="0.1.0")
    assert unseal(seal(record, owner.public_key, owner.sign)) == record


def test_the_longest_record_fits(owner: Identity) -> None:
    record = record_of(
        owner,
        start=9_999,
        stop=10_001,
        throughput=123456789012.12345,
        state="draining",
        protocol_major=1000,
        protocol_minor=1000,
        version="v" * 32,
        issued_ms=2**53,
    )
    assert len(seal(record, owner.public_key, owner.sign)) <= RECORD_LIMIT


def test_too_long_a_record_is_not_signed(owner: Identity) -> None:
    record = record_of(owner, version="\U0001d11e" * 32, state="draining", throughput=1e11 / 3, protocol_minor=1000)
    with pytest.raises(WireError, match="shorten"):
        seal(record, owner.public_key, owner.sign)


def test_nobody_signs_for_another_peer(owner: Identity, stranger: Identity) -> None:
    record = record_of(owner)
    with pytest.raises(WireError, match="does not belong"):
        seal(record, stranger.public_key, stranger.sign)
    payload = encode_record(record)
    forged = envelopes._LENGTHS.pack(len(payload), len(stranger.public_key)) + payload + stranger.public_key
    with pytest.raises(WireError, match="does not belong"):
        unseal(forged + stranger.sign(envelopes.DOMAIN + payload))
    honest_key = envelopes._LENGTHS.pack(len(payload), len(owner.public_key)) + payload + owner.public_key
    with pytest.raises(WireError, match="signature"):
        unseal(honest_key + stranger.sign(envelopes.DOMAIN + payload))


def test_a_signature_for_another_purpose_does_not_count(owner: Identity) -> None:
    payload = encode_record(record_of(owner))
    envelope = envelopes._LENGTHS.pack(len(payload), len(owner.public_key)) + payload + owner.public_key
    assert unseal(envelope + owner.sign(envelopes.DOMAIN + payload))
    with pytest.raises(WireError, match="signature"):
        unseal(envelope + owner.sign(payload))


@pytest.mark.parametrize("key", [b"", b"junk", b"\x30\x82" + b"\0" * 300])
def test_a_key_that_is_none_is_refused(owner: Identity, key: bytes) -> None:
    payload = encode_record(record_of(owner, peer=peer_id_of(key)))
    with pytest.raises(WireError, match="public key"):
        unseal(envelopes._LENGTHS.pack(len(payload), len(key)) + payload + key + bytes(256))


def test_records_of_limit_and_one_more(owner: Identity) -> None:
    payload = encode_record(record_of(owner))
    assert decode_record(payload.ljust(RECORD_LIMIT))
    with pytest.raises(WireError, match="exceeds"):
        decode_record(payload.ljust(RECORD_LIMIT + 1))
    with pytest.raises(WireError, match="outside"):
        unseal(bytes(RECORD_LIMIT + 1))


OWNER_RECORD = NodeRecord(
    peer="QmcgpsyWgH8Y8ajJz1Cu72KnS5uo2Aa2LpzU7kinSupNKC",
    model="ab" * 32,
    tokenizer="cd" * 32,
    start=0,
    stop=4,
    dtype="float32",
    throughput=10.5,
    issued_ms=1_796_075_105_407,
)


@hundred_seeds
@given(seeds)
def test_damaged_records_decode_or_raise_wire_error(seed: int) -> None:
    for data in hundred_damaged(encode_record(OWNER_RECORD), seed):
        try:
            record = decode_record(data)
        except WireError:
            continue
        assert decode_record(encode_record(record)) == record


@pytest.fixture(scope="module")
def sealed(owner: Identity) -> bytes:
    return seal(record_of(owner), owner.public_key, owner.sign)


@hundred_seeds
@given(seeds)
def test_no_damaged_envelope_opens(sealed: bytes, seed: int) -> None:
    for data in hundred_damaged(sealed, seed):
        if data != sealed:
            with pytest.raises(WireError):
                unseal(data)


def test_a_peer_id_is_what_libp2p_derives() -> None:
    # Computed by hivemind's PeerID.from_identity for the key below.
    key = Path(__file__).with_name("public_key.der").read_bytes()
    assert peer_id_of(key) == "QmXuGQYDVP7yTDZ2HZ6QxjCswvsDW4si4GPWKhycnP88BM"
