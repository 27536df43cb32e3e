"""What the API needs of the daemon. The daemon implements it; tests use a fake."""

from collections.abc import AsyncIterator
from typing import Protocol

from glossd.api.schemas import BanInfo, PeerInfo, Status
from glossd.events import RequestEvent
from glossd.tasks import Task


class Running(Protocol):
    """One admitted request."""

    id: str

    def events(self) -> AsyncIterator[RequestEvent]:
        """Ends after exactly one terminal event. Called once."""
        ...

    def cancel(self) -> None:
        """Give up and free the work; nothing happens when the request has ended or was cancelled before."""
        ...


class Service(Protocol):
    async def submit(self, task: Task) -> Running:
        """Admit a request. Raises BadRequest, Overloaded, CoverageLost, Halted."""
        ...

    async def status(self) -> Status: ...

    async def peers(self) -> list[PeerInfo]: ...

    def bans(self) -> list[BanInfo]: ...

    async def ban(self, peer: str, reason: str) -> None:
        """From now on `peer` neither serves this node nor is served. Raises BadRequest."""
        ...

    def unban(self, peer: str) -> None:
        """Raises BadRequest when `peer` is not banned."""
        ...

    def models(self) -> list[str]:
        """Names under which the OpenAI routes know the model."""
        ...

    async def pause(self) -> None:
        """Serve nobody until `resume`; returns when nothing is computed any more. Raises BadRequest."""
        ...

    async def resume(self) -> None: ...

    def stop(self) -> None:
        """Ask the daemon to leave cleanly; returns at once."""
        ...

    def metrics(self) -> bytes:
        """The Prometheus text format."""
        ...
