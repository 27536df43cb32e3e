import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from swarm.errors import IdentityError, WireError
from swarm.net.identity import load_or_create, verify
from swarm.wire.keys import wrap_key


def test_a_new_key_is_private_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "state" / "identity.key"
    first = load_or_create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert os.listdir(path.parent) == ["identity.key"]
    again = load_or_create(path)
    assert again.peer_id == first.peer_id
    assert (first.fresh, again.fresh) == (True, False)
    assert load_or_create(tmp_path / "other").peer_id != first.peer_id


def test_a_key_that_appears_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key"
    first = load_or_create(path)
    monkeypatch.setattr("os.path.lexists", lambda _: False)
    assert load_or_create(path).peer_id == first.peer_id
    assert os.listdir(tmp_path) == ["key"]


def test_signatures_are_checked_with_the_public_key(tmp_path: Path) -> None:
    identity = load_or_create(tmp_path / "key")
    signature = identity.sign(b"data")
    assert verify(identity.public_key, b"data", signature)
    assert not verify(identity.public_key, b"date", signature)
    assert not verify(load_or_create(tmp_path / "other").public_key, b"data", signature)
    assert not verify(identity.public_key, b"data", b"")
    with pytest.raises(WireError):
        verify(b"no key", b"data", signature)


def test_the_private_key_is_not_shown(tmp_path: Path) -> None:
    assert "RSAPrivateKey" not in repr(load_or_create(tmp_path / "key"))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_that_others_can_open_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    load_or_create(path)
    path.chmod(mode)
    with pytest.raises(IdentityError, match="chmod 600"):
        load_or_create(path)


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    load_or_create(tmp_path / "key")
    tmp_path.chmod(0o777)
    with pytest.raises(IdentityError, match="chmod 700"):
        load_or_create(tmp_path / "key")


def test_a_damaged_key_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "key"
    load_or_create(path)
    whole = path.read_bytes()
    for damaged in (b"", b"junk", whole[:-1], whole + b"\0", b"\x08\x01" + whole[2:], whole[:40] + b"\0" + whole[41:]):
        path.write_bytes(damaged)
        with pytest.raises(IdentityError, match="restore it") as caught:
            load_or_create(path)
        assert "\n" not in str(caught.value)
        assert path.read_bytes() == damaged


def test_other_kinds_of_keys_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.touch(mode=0o600)
    short = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    other = ed25519.Ed25519PrivateKey.generate()
    for der in (
        short.private_bytes(Encoding.DER, PrivateFormat.TraditionalOpenSSL, NoEncryption()),
        other.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()),
    ):
        path.write_bytes(wrap_key(der))
        with pytest.raises(IdentityError, match="RSA of 2048 bits"):
            load_or_create(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "file").touch(mode=0o600)
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    for name in ("folder", "pipe", "file/key", "dangling"):
        with pytest.raises(IdentityError, match=r"plain file|cannot use"):
            load_or_create(tmp_path / name)
