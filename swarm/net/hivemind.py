"""The real network of one node: Transport and Directory over one p2pd process, in the running event loop. TCP only.

hivemind is imported when a node starts, in a thread, because that takes seconds; `p2pd` and `dht` hold what needs it.
Called by the daemon. Tests mostly use `swarm.net.memory` instead.
"""

import asyncio
import importlib
import importlib.util
import logging
import math
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from swarm.errors import DialFailed, GlossError, IdentityError, NetworkDown, StartError
from swarm.ids import ModelId, PeerId
from swarm.net.anchors import Anchors
from swarm.net.identity import Identity, load_or_create
from swarm.net.joining import Joining
from swarm.net.transport import Handler, Stream
from swarm.wire.records import NodeRecord

if TYPE_CHECKING:
    from swarm.net.dht import DhtDirectory
    from swarm.net.p2pd import P2pd

DIAL_TIMEOUT_S = 5.0
RESTART_PAUSES_S = (0.0, 0.3, 1.0, 3.0, 5.0)
"""Before each try to start p2pd again; after the last one the node gives up."""

SETTLE_S = 5.0
_JOINING_PAUSE_S = 1.0
_DIAL_PAUSE_S = 0.1

log = logging.getLogger(__name__)


class HivemindNode:
    """Make one with `start`. `peer_id` is the identity that peers authenticate.

    When p2pd ends, another one is started with the same identity, port and handlers; calls wait for it.
    """

    def __init__(
        self, identity: Identity, host_maddrs: Sequence[str], announce_maddrs: Sequence[str], anchors: Anchors
    ) -> None:
        self.peer_id = identity.peer_id
        self._identity = identity
        self._host_maddrs = tuple(host_maddrs)
        self._announce_maddrs = tuple(announce_maddrs)
        self._anchors = anchors
        self._handlers: dict[str, Handler] = {}
        self._up = asyncio.Event()
        self._began = -math.inf
        self._ended = asyncio.Event()
        self._closed = False
        self._tasks: list[asyncio.Task[None]] = []
        self._p2pd: P2pd
        self._directory: DhtDirectory
        self._joining: Joining

    @classmethod
    async def start(
        cls,
        identity_path: Path,
        host_maddrs: Sequence[str] = ("/ip4/127.0.0.1/tcp/0",),
        announce_maddrs: Sequence[str] = (),
        join: Sequence[str] = (),
        anchors_path: Path | None = None,
        *,
        require_join: bool = False,
    ) -> "HivemindNode":
        """Start p2pd and join a swarm through any of the nodes in `join`, each a multiaddress ending in /p2p/ID, or of
        those that were kept in `anchors_path`.

        Where nobody answers, the node is a swarm of its own and goes on trying, unless it is to `require_join`.
        Raises StartError, IdentityError.
        """
        identity = load_or_create(identity_path)
        for address in (*host_maddrs, *announce_maddrs, *join):
            _check_tcp(address)
        for address in join:
            _check_peer(address, identity.peer_id)
        rooms = await asyncio.to_thread(_import_rooms)
        self = cls(identity, host_maddrs, announce_maddrs, Anchors(anchors_path))
        await self._check_identity(rooms[0], join)
        await self._raise_up(join)
        try:
            failed = await self._joining.first()
            if failed is None:
                await self._directory.look_around()
            else:
                _say_alone(failed, require_join)
        except BaseException:
            await self.close()
            raise
        self._up.set()
        self._tasks = [
            asyncio.create_task(self._keep_up(join), name="keep p2pd"),
            asyncio.create_task(self._keep_joined(), name="keep joined"),
        ]
        return self

    async def serve(self, protocol: str, handler: Handler) -> None:
        self._handlers[protocol] = handler
        await self._p2pd.serve(protocol, handler)

    async def open(self, peer: PeerId, protocol: str, timeout_s: float = DIAL_TIMEOUT_S) -> Stream:
        """Raises DialFailed, after `timeout_s` at the latest."""
        if peer == self.peer_id:
            raise DialFailed(f"{peer} is this node, which does not dial itself")
        until = time.monotonic() + timeout_s
        while True:
            p2pd = await self._running(until)
            try:
                return await p2pd.open(peer, protocol, max(0.0, until - time.monotonic()))
            except DialFailed:
                # A p2pd that has just started again may not know yet where peers are; they come back to it.
                settled = time.monotonic() > self._began + SETTLE_S
                if time.monotonic() >= until or (settled and await p2pd.is_alive()):
                    raise
                await asyncio.sleep(_DIAL_PAUSE_S)

    async def addresses(self) -> list[str]:
        return await (await self._running(time.monotonic() + DIAL_TIMEOUT_S)).addresses()

    async def announce(self, record: NodeRecord) -> None:
        await self._running(time.monotonic() + DIAL_TIMEOUT_S)
        await self._directory.announce(record)

    async def withdraw(self, model: ModelId) -> None:
        if self._up.is_set():
            await self._directory.withdraw(model)

    async def records(self, model: ModelId) -> dict[PeerId, NodeRecord]:
        await self._running(time.monotonic() + DIAL_TIMEOUT_S)
        return await self._directory.records(model)

    async def wait_ended(self) -> None:
        """Until the network has ended, by `close` or because p2pd does not start again."""
        await self._ended.wait()

    async def close(self) -> None:
        """End p2pd and all streams; never raises. Records stay until their lease ends, so withdraw them before."""
        if self._closed:
            return
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._up.clear()
        self._ended.set()
        try:
            await self._directory.close()
        finally:
            await self._p2pd.close()

    async def _check_identity(self, room: ModuleType, join: Sequence[str]) -> None:
        places = tuple(dict.fromkeys((*join, *self._anchors.addresses)))
        if places and not self._identity.fresh and await room.is_identity_used(self._identity, places):
            raise IdentityError(
                f"another running node uses this identity ({self._identity.path}); stop it, or give this one an "
                "identity of its own with another --state-dir"
            )

    async def _raise_up(self, join: Sequence[str]) -> None:
        p2pd_room, dht_room = await asyncio.to_thread(_import_rooms)
        self._p2pd = await p2pd_room.P2pd.start(self._identity, self._host_maddrs, self._announce_maddrs)
        try:
            self._directory = await dht_room.DhtDirectory.start(self._p2pd.host, self._identity)
            for protocol, handler in self._handlers.items():
                await self._p2pd.serve(protocol, handler)
            if not self._announce_maddrs:
                self._host_maddrs = _with_ports(self._host_maddrs, await self._p2pd.addresses())
        except BaseException:
            await self._p2pd.close()
            raise
        self._joining = Joining(join, self._anchors, self._meet, self._directory.is_near, self._neighbours)

    async def _keep_up(self, join: Sequence[str]) -> None:
        """Start p2pd anew whenever it ends."""
        while True:
            await self._p2pd.wait_ended()
            self._up.clear()
            log.warning("p2pd ended; it is started again")
            self._directory.abandon()
            await self._p2pd.close()
            for pause_s in RESTART_PAUSES_S:
                await asyncio.sleep(pause_s)
                try:
                    await self._raise_up(join)
                    break
                except Exception as error:
                    log.warning("p2pd does not start again", extra={"fields": {"reason": str(error)}})
            else:
                self._ended.set()
                return
            if await self._joining.first() is None:
                await self._directory.look_around()
            self._up.set()
            self._began = time.monotonic()
            await self._directory.renew()

    async def _keep_joined(self) -> None:
        async def met() -> None:
            await self._directory.look_around()
            await self._directory.renew()

        while True:
            await self._up.wait()
            keeping = asyncio.create_task(self._joining.keep(met))
            ended = asyncio.create_task(self._p2pd.wait_ended())
            try:
                await asyncio.wait({keeping, ended}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                keeping.cancel()
                ended.cancel()
                outcomes = await asyncio.gather(keeping, ended, return_exceptions=True)
            if isinstance(outcomes[0], Exception):
                log.warning("the search for peers failed", extra={"fields": {"reason": repr(outcomes[0])}})
            await asyncio.sleep(_JOINING_PAUSE_S)

    async def _meet(self, address: str) -> None:
        await self._directory.meet(await self._p2pd.connect(address, DIAL_TIMEOUT_S))

    async def _neighbours(self) -> list[str]:
        near = self._directory.is_near
        return [
            address
            for address in await self._p2pd.connections()
            if "/p2p-circuit" not in address and near(PeerId(address.rpartition("/p2p/")[2]))
        ]

    async def _running(self, until: float) -> "P2pd":
        """Raises NetworkDown when p2pd does not run until then."""
        try:
            async with asyncio.timeout(max(0.0, until - time.monotonic())):
                await self._up.wait()
        except TimeoutError:
            raise NetworkDown("p2pd of this node ended and does not run again yet") from None
        return self._p2pd


def _say_alone(failed: dict[str, GlossError], require_join: bool) -> None:
    """Raises StartError where it is to, or where a node answered and going on alone would not help."""
    for reason in failed.values():
        if isinstance(reason, StartError):
            raise reason
    why = "; ".join(str(reason) for reason in failed.values())
    if require_join:
        raise StartError(f"none of the nodes to join answers: {why}; check the addresses, or leave --require-join out")
    log.warning("no node to join answers; serving alone and trying on", extra={"fields": {"reason": why}})


def _with_ports(host_maddrs: Sequence[str], addresses: Sequence[str]) -> tuple[str, ...]:
    """Port 0 replaced by the one that was found, so that the next p2pd listens where peers look for it."""
    found = re.search(r"/tcp/(\d+)", addresses[0]) if addresses else None
    return tuple(re.sub(r"/tcp/0$", found[0] if found else "/tcp/0", address) for address in host_maddrs)


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
