"""The node's identity: an RSA key in the file format of libp2p, so that p2pd and our records use the same one.

Knows no network. Called by the daemon and by `swarm.net.hivemind`. Other nodes' keys are checked in `swarm.wire.keys`.
"""

import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
)

from swarm.errors import IdentityError
from swarm.ids import PeerId
from swarm.wire.keys import EXPONENT, KEY_BITS, SIGNATURE_HASH, SIGNATURE_PADDING, peer_id_of, verify, wrap_key

__all__ = ["Identity", "load_or_create", "verify"]

_FILE_LIMIT = 16 * 1024


@dataclass(frozen=True, slots=True)
class Identity:
    """`public_key` is DER (SubjectPublicKeyInfo); `path` is the key file, which p2pd reads by itself; `fresh` says that
    the key was made just now, so that nobody else can be using it."""

    path: Path
    peer_id: PeerId
    public_key: bytes
    fresh: bool
    _key: rsa.RSAPrivateKey = field(repr=False)

    def sign(self, data: bytes) -> bytes:
        """RSA-PSS with SHA-256 over `data`; `verify(public_key, data, signature)` checks it."""
        return self._key.sign(data, SIGNATURE_PADDING, SIGNATURE_HASH)


def load_or_create(path: Path) -> Identity:
    """The identity in `path`, a new one when there is no such file. Raises IdentityError."""
    try:
        fresh = not os.path.lexists(path) and _create(path)
        data = _read_private(path)
    except OSError as error:
        raise IdentityError(f"cannot use the identity key {path}: {error.strerror}; check its folder") from None
    return _parse(path, data, fresh)


def _create(path: Path) -> bool:
    """Whether the key in `path` is now ours."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = rsa.generate_private_key(public_exponent=EXPONENT, key_size=KEY_BITS)
    der = key.private_bytes(Encoding.DER, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(wrap_key(der))
            file.flush()
            os.fsync(file.fileno())
        # A link, unlike a rename, never replaces a key that another process made in the meantime.
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(draft)
    return True


def _read_private(path: Path) -> bytes:
    folder_mode = path.parent.stat().st_mode
    if folder_mode & 0o022:
        raise IdentityError(f"others can write to the folder {path.parent} of the identity key; run chmod 700 on it")
    # Not blocking: a named pipe in the key's place must not hang the start.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise IdentityError(f"the identity key {path} is not a plain file; move it away to start with a new one")
        if mode & 0o077:
            raise IdentityError(f"others can read the identity key {path} (mode {mode & 0o777:o}); run chmod 600 on it")
        return file.read(_FILE_LIMIT)


def _parse(path: Path, data: bytes, fresh: bool) -> Identity:
    try:
        key = load_der_private_key(_unwrap(data), password=None)
        if not isinstance(key, rsa.RSAPrivateKey) or key.key_size != KEY_BITS:
            raise ValueError
        if key.public_key().public_numbers().e != EXPONENT:
            raise ValueError
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise IdentityError(
            f"the identity key {path} is corrupt or not RSA of {KEY_BITS} bits; restore it, "
            "or move it away to start as a new peer"
        ) from None
    public_key = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return Identity(path, peer_id_of(public_key), public_key, fresh, key)


def _unwrap(data: bytes) -> bytes:
    """The DER inside libp2p's protobuf. A DER sequence of this size begins 30 82 and states its own length."""
    start = data.find(b"\x30\x82", 4, 8)
    der = data[start:] if start > 0 else b""
    if not der or wrap_key(der) != data:
        raise ValueError
    return der
