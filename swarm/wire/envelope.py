"""The signed form of a directory record, bound to the libp2p identity of its owner.

    u16 record length | u16 key length | record JSON | public key, DER | signature     (big-endian, RECORD_LIMIT in all)

The peer id inside the record must be the one that the embedded key has, so nobody can sign for another peer.
Called by the directories of `swarm.net`; knows neither the DHT nor private keys.
"""

import struct
from collections.abc import Callable
from functools import lru_cache

from swarm.errors import WireError
from swarm.wire.keys import peer_id_of, verify
from swarm.wire.records import RECORD_LIMIT, NodeRecord, decode_record, encode_record

# Keeps a signature made for a record from being taken for any other thing that the same key signs.
DOMAIN = b"glossd/1/record\0"

_LENGTHS = struct.Struct(">HH")


def seal(record: NodeRecord, public_key: bytes, sign: Callable[[bytes], bytes]) -> bytes:
    """Sign `record`. Raises WireError when the key is not that of `record.peer` or the envelope is too large."""
    if peer_id_of(public_key) != record.peer_id:
        raise WireError(f"the key does not belong to {record.peer}; a node signs only its own record")
    payload = encode_record(record)
    envelope = _LENGTHS.pack(len(payload), len(public_key)) + payload + public_key + sign(DOMAIN + payload)
    if len(envelope) > RECORD_LIMIT:
        raise WireError(f"the signed record has {len(envelope)} bytes, {RECORD_LIMIT} is the limit; shorten its fields")
    return envelope


# A directory meets the same few envelopes many times a second, from every replica; checking is pure and costs 50 us.
@lru_cache(maxsize=4096)
def unseal(envelope: bytes) -> NodeRecord:
    """The record inside, its signature checked. Raises WireError."""
    if not _LENGTHS.size <= len(envelope) <= RECORD_LIMIT:
        raise WireError(f"a signed record of {len(envelope)} bytes is outside {_LENGTHS.size}..{RECORD_LIMIT}")
    record_size, key_size = _LENGTHS.unpack_from(envelope)
    key_at = _LENGTHS.size + record_size
    signature_at = key_at + key_size
    if signature_at > len(envelope):
        raise WireError("a signed record ends before its signature")
    payload, public_key = envelope[_LENGTHS.size : key_at], envelope[key_at:signature_at]
    record = decode_record(payload)
    if peer_id_of(public_key) != record.peer_id:
        raise WireError(f"the key of a signed record does not belong to {record.peer}")
    if not verify(public_key, DOMAIN + payload, envelope[signature_at:]):
        raise WireError(f"the signature on the record of {record.peer} is wrong")
    return record
