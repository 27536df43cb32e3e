"""Public keys as libp2p writes them: the peer id that a key has, and signatures checked with it.

Knows no files and no private keys; those are `swarm.net.identity`. Called by `envelope` and by identity.
"""

import hashlib

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import load_der_public_key

from swarm.errors import WireError
from swarm.ids import PeerId

KEY_BITS = 2048
EXPONENT = 65537
SIGNATURE_HASH = hashes.SHA256()
SIGNATURE_PADDING = padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=padding.PSS.DIGEST_LENGTH)

_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_SHA256_MULTIHASH = b"\x12\x20"


def wrap_key(der: bytes) -> bytes:
    """The protobuf message {key type: RSA, data: der} that libp2p hashes and stores."""
    length, varint = len(der), bytearray()
    while length > 0x7F:
        varint.append(length & 0x7F | 0x80)
        length >>= 7
    varint.append(length)
    return b"\x08\x00\x12" + bytes(varint) + der


def peer_id_of(public_key: bytes) -> PeerId:
    """The peer id of an RSA key in DER (SubjectPublicKeyInfo): base58 of the sha256 multihash of its protobuf.

    Source: https://github.com/libp2p/specs/blob/master/peer-ids/peer-ids.md
    """
    number = int.from_bytes(_SHA256_MULTIHASH + hashlib.sha256(wrap_key(public_key)).digest(), "big")
    digits = []
    while number:
        number, digit = divmod(number, 58)
        digits.append(_BASE58[digit])
    return PeerId("".join(reversed(digits)))


def verify(public_key: bytes, data: bytes, signature: bytes) -> bool:
    """Whether the owner of `public_key` (DER) made `signature` over `data`. Raises WireError for an unfit key."""
    try:
        key = load_der_public_key(public_key)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise WireError("the public key does not decode; it must be RSA in DER") from None
    # A huge exponent makes one check cost milliseconds; real keys all use 65537.
    if not isinstance(key, rsa.RSAPublicKey) or key.key_size != KEY_BITS or key.public_numbers().e != EXPONENT:
        raise WireError(f"the public key is not RSA of {KEY_BITS} bits with exponent {EXPONENT}")
    try:
        key.verify(signature, data, SIGNATURE_PADDING, SIGNATURE_HASH)
    except InvalidSignature:
        return False
    return True
