"""The real network of one node: Transport and Directory over one p2pd process, in the running event loop. TCP only.

hivemind is imported when a node starts, in a thread, because that takes seconds; `p2pd` and `dht` hold what needs it.
Called by the daemon. Tests mostly use `swarm.net.memory` instead.
"""

import asyncio
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from swarm.errors import DialFailed, StartError
from swarm.ids import ModelId, PeerId
from swarm.net.identity import load_or_create
from swarm.net.transport import Handler, Stream
from swarm.wire.records import NodeRecord

if TYPE_CHECKING:
    from swarm.net.dht import DhtDirectory
    from swarm.net.p2pd import P2pd

DIAL_TIMEOUT_S = 5.0


class HivemindNode:
    """Make one with `start`. `peer_id` is the identity that peers authenticate."""

    def __init__(self, p2pd: "P2pd", directory: "DhtDirectory") -> None:
        self.peer_id = p2pd.peer_id
        self._p2pd = p2pd
        self._directory = directory
        self._closed = False

    @classmethod
    async def start(
        cls,
        identity_path: Path,
        host_maddrs: Sequence[str] = ("/ip4/127.0.0.1/tcp/0",),
        announce_maddrs: Sequence[str] = (),
        join: Sequence[str] = (),
    ) -> "HivemindNode":
        """Start p2pd and join a swarm through any of the nodes in `join`, each a multiaddress ending in /p2p/ID.

        An empty `join` begins a swarm. Raises StartError, IdentityError.
        """
        identity = load_or_create(identity_path)
        for address in (*host_maddrs, *announce_maddrs, *join):
            _check_tcp(address)
        for address in join:
            _check_peer(address, identity.peer_id)
        p2pd_room, dht_room = await asyncio.to_thread(_import_rooms)
        p2pd: P2pd = await p2pd_room.P2pd.start(identity, host_maddrs, announce_maddrs, join)
        try:
            directory = await dht_room.DhtDirectory.start(p2pd.host, identity, join)
        except BaseException:
            await p2pd.close()
            raise
        return cls(p2pd, directory)

    async def serve(self, protocol: str, handler: Handler) -> None:
        await self._p2pd.serve(protocol, handler)

    async def open(self, peer: PeerId, protocol: str, timeout_s: float = DIAL_TIMEOUT_S) -> Stream:
        """Raises DialFailed, after `timeout_s` at the latest."""
        if peer == self.peer_id:
            raise DialFailed(f"{peer} is this node, which does not dial itself")
        return await self._p2pd.open(peer, protocol, timeout_s)

    async def addresses(self) -> list[str]:
        return await self._p2pd.addresses()

    async def announce(self, record: NodeRecord) -> None:
        await self._directory.announce(record)

    async def withdraw(self, model: ModelId) -> None:
        await self._directory.withdraw(model)

    async def records(self, model: ModelId) -> dict[PeerId, NodeRecord]:
        return await self._directory.records(model)

    async def wait_ended(self) -> None:
        """Until p2pd has ended, by `close` or by itself; in the second case only a new node helps."""
        await self._p2pd.wait_ended()

    async def close(self) -> None:
        """End p2pd and all streams; never raises. Records stay until their lease ends, so withdraw them before."""
        if not self._closed:
            self._closed = True
            try:
                await self._directory.close()
            finally:
                await self._p2pd.close()


def _import_rooms() -> tuple[ModuleType, ModuleType]:
    """`p2pd` and `dht`. hivemind's `__init__` would load its averaging, optimisers and SciPy too, 40 MB that no node
    uses, so the package is known by its place alone while they are imported."""
    if "hivemind" not in sys.modules and (spec := importlib.util.find_spec("hivemind")) is not None:
        package = ModuleType("hivemind")
        package.__spec__, package.__path__ = spec, list(spec.submodule_search_locations or ())
        sys.modules["hivemind"] = package
    return importlib.import_module("swarm.net.p2pd"), importlib.import_module("swarm.net.dht")


def _check_tcp(address: str) -> None:
    # Over QUIC, libp2p may drop the end of a stream when its writer closes first, so only TCP is used.
    if not address.startswith("/") or "/tcp/" not in address or "," in address:
        raise StartError(f"{address!r} is not a TCP multiaddress; write for example /ip4/192.168.1.20/tcp/4001")


def _check_peer(address: str, own: PeerId) -> None:
    before, _, peer = address.rpartition("/p2p/")
    if not before or not peer:
        raise StartError(f"{address} does not say which peer answers there; end it with /p2p/ and the peer's id")
    if peer == own:
        raise StartError(f"{address} is this node itself; join another, or leave it out to begin a swarm")
