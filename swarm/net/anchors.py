"""Where a swarm was found, kept over restarts: the addresses of peers that answered last, in a small private file.

A hint and never a truth: whoever answers there proves its identity, and a file that cannot be read is an empty one.
Called by `swarm.net.hivemind`.
"""

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

ANCHORS = 16
"""Addresses kept."""

_FILE_LIMIT = 16 * 1024
_ADDRESS_LIMIT = 300

log = logging.getLogger(__name__)


class Anchors:
    """`path` None keeps nothing. `addresses` are multiaddresses that end in /p2p/ID, the best first."""

    def __init__(self, path: Path | None) -> None:
        self.addresses: tuple[str, ...] = ()
        self._path = path
        if path is not None:
            self.addresses = _read(path)

    def keep(self, addresses: Sequence[str]) -> None:
        """These answered now; older ones stay behind them while there is room. Never raises."""
        merged = tuple(list(dict.fromkeys((*addresses, *self.addresses)))[:ANCHORS])
        if set(merged) == set(self.addresses):
            return
        self.addresses = merged
        if self._path is not None:
            try:
                _write(self._path, merged)
            except OSError as error:
                log.warning("cannot keep the addresses of peers in %s: %s", self._path, error.strerror)


def _read(path: Path) -> tuple[str, ...]:
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_FILE_LIMIT))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, list):
        log.warning("%s is not a list of addresses; it is written anew", path)
        return ()
    return tuple(filter(_is_address, found))[:ANCHORS]


def _is_address(value: object) -> bool:
    return isinstance(value, str) and value.startswith("/") and "/p2p/" in value and len(value) <= _ADDRESS_LIMIT


def _write(path: Path, addresses: tuple[str, ...]) -> None:
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(addresses, file, indent=1)
    os.replace(draft, path)
