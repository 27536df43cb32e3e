"""Peers that this node's owner banned: kept over restarts in a small private file, and above all measurements.

A ban that is lost in silence would be worse than a node that does not start, so a file that cannot be read is an error.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from swarm.errors import BadRequest, GlossError, StartError
from swarm.ids import PeerId
from swarm.wire.records import PeerName

MAX_BANS = 10_000
_FILE_LIMIT = 4 * 1024 * 1024


class Ban(BaseModel):
    """`since` is in seconds of Unix time; `reason` is the owner's note."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    peer: PeerName
    since: float
    reason: str = Field(default="", max_length=200)


_BANS: TypeAdapter[list[Ban]] = TypeAdapter(list[Ban])


class Bans:
    """`path` None keeps nothing over restarts. Raises StartError when the file cannot be read."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._bans = {} if path is None else {PeerId(ban.peer): ban for ban in _read(path)}

    def __contains__(self, peer: object) -> bool:
        return peer in self._bans

    def __iter__(self) -> Iterator[Ban]:
        return iter(sorted(self._bans.values(), key=lambda ban: (ban.since, ban.peer)))

    def add(self, ban: Ban) -> None:
        """Raises BadRequest when there are MAX_BANS, GlossError when the file cannot be written."""
        if len(self._bans) >= MAX_BANS:
            raise BadRequest(f"{MAX_BANS} peers are banned already; unban some", "peer")
        self._keep(self._bans | {PeerId(ban.peer): ban})

    def remove(self, peer: PeerId) -> bool:
        """Whether it was banned. Raises GlossError when the file cannot be written."""
        if peer not in self._bans:
            return False
        self._keep({name: ban for name, ban in self._bans.items() if name != peer})
        return True

    def _keep(self, bans: dict[PeerId, Ban]) -> None:
        if self._path is not None:
            try:
                _write(self._path, list(bans.values()))
            except OSError as error:
                raise GlossError(f"cannot write {self._path}: {error.strerror}; nothing was changed") from None
        self._bans = bans


def _read(path: Path) -> list[Ban]:
    try:
        with path.open("rb") as file:
            return _BANS.validate_json(file.read(_FILE_LIMIT))
    except FileNotFoundError:
        return []
    except (OSError, ValidationError):
        raise StartError(f"{path} is not a list of bans; mend it, or delete it to ban nobody") from None


def _write(path: Path, bans: list[Ban]) -> None:
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump([ban.model_dump() for ban in bans], file, indent=1)
    os.replace(draft, path)
