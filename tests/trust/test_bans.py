"""Bans hold over restarts, in a file of their owner alone, and are never lost in silence."""

import stat
from pathlib import Path

import pytest

from swarm.errors import GlossError, StartError
from swarm.ids import PeerId
from swarm.trust import bans as module
from swarm.trust.bans import Ban, Bans

A, B = PeerId("peerA111111"), PeerId("peerB111111")


def test_bans_hold_over_restarts(tmp_path: Path) -> None:
    path = tmp_path / "bans.json"
    bans = Bans(path)
    assert (A in bans, list(bans)) == (False, [])
    bans.add(Ban(peer=A, since=2.0, reason="lied"))
    bans.add(Ban(peer=B, since=1.0))
    assert [ban.peer for ban in Bans(path)] == [B, A]
    assert (bans.remove(B), bans.remove(B)) == (True, False)
    again = Bans(path)
    assert (A in again, B in again) == (True, False)
    assert list(again) == [Ban(peer=A, since=2.0, reason="lied")]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["bans.json"]


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"peer": "x"}]', '[{"peer": "peerA111111", "since": "now"}]'])
def test_a_damaged_file_is_no_empty_one(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bans.json"
    path.write_text(text)
    with pytest.raises(StartError, match="mend it, or delete it"):
        Bans(path)


def test_what_cannot_be_written_is_said_and_not_done(tmp_path: Path) -> None:
    bans = Bans(tmp_path / "gone" / "bans.json")
    with pytest.raises(GlossError, match="nothing was changed"):
        bans.add(Ban(peer=A, since=1.0))
    assert A not in bans


def test_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BANS", 1)
    bans = Bans()
    bans.add(Ban(peer=A, since=1.0))
    with pytest.raises(GlossError, match="unban some"):
        bans.add(Ban(peer=B, since=1.0))
