"""The directory seam: signed, leased records of which peer serves which span of which model."""

from typing import Protocol

from swarm.ids import ModelId, PeerId
from swarm.wire.records import NodeRecord

LEASE_S = 12.0
"""A record that is not renewed disappears after this long. Owners renew at a third of it."""


class Directory(Protocol):
    async def announce(self, record: NodeRecord) -> None:
        """Sign and publish our record for LEASE_S from now."""
        ...

    async def withdraw(self, model: ModelId) -> None:
        """Replace our record for `model` by one that says "offline", until its lease ends; never raises."""
        ...

    async def records(self, model: ModelId) -> dict[PeerId, NodeRecord]:
        """All valid records for `model`, our own included. Forged, expired and malformed ones are left out."""
        ...
