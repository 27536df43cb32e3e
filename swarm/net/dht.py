"""The directory over hivemind's DHT. Imports hivemind, which takes seconds: import this module late.

One key per model, one subkey per peer, the signed envelope as the value. Called by `swarm.net.hivemind` only.
"""

import asyncio
import contextlib
import logging
import time
from typing import Any

from hivemind.dht.node import DHTNode
from hivemind.dht.protocol import ValidationError
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.p2p import PeerID
from hivemind.utils import MSGPackSerializer

from swarm.errors import DialFailed, StartError, WireError
from swarm.ids import ModelId, PeerId
from swarm.net.directory import LEASE_S
from swarm.net.identity import Identity
from swarm.wire.envelope import seal, unseal
from swarm.wire.records import RECORD_LIMIT, NodeRecord

CLOCK_SKEW_S = 3.0
"""How far clocks may differ; hivemind refuses to join nodes that differ more."""

_WITHDRAW_TIMEOUT_S = 3.0
_CLOSE_TIMEOUT_S = 2.0
_LOOK_TIMEOUT_S = 3.0
_PACKING_BYTES = 8

log = logging.getLogger(__name__)


def _key(model: ModelId) -> str:
    return f"glossd/1/{model}"


class RecordGuard(RecordValidatorBase):  # type: ignore[misc]
    """Lets nothing into the DHT, and nothing out to us, but signed records under their own model and peer.

    Looks at no clock: hivemind drops a whole dictionary when one entry fails, so a verdict must be the same everywhere.
    """

    def validate(self, record: DHTRecord) -> bool:
        if len(record.value) > RECORD_LIMIT + _PACKING_BYTES:
            return False
        try:
            opened = unseal(_unpacked(record.value))
        except WireError:
            return False
        return (
            bool(record.subkey == MSGPackSerializer.dumps(opened.peer))
            and bool(record.key == DHTID.generate(source=_key(opened.model_id)).to_bytes())
            # The DHT's expiry is not signed; tied to the signed time of issue, an old record cannot be kept alive.
            and bool(record.expiration_time <= _expiry(opened) + 0.001)
        )


class DhtDirectory:
    """Directory of one node. `close` before p2pd ends."""

    def __init__(self, node: Any, identity: Identity) -> None:
        self._node = node
        self._identity = identity
        self._announced: dict[ModelId, NodeRecord] = {}

    @classmethod
    async def start(cls, host: Any, identity: Identity) -> "DhtDirectory":
        """A DHT of one node on the running P2P object `host`; `meet` makes it part of a larger one."""
        # No caches: a cached dictionary hides records that came after it. A get asks the nodes that store the key.
        # The place in the DHT follows from the identity, so that a node that comes back has no ghost beside it.
        node = await DHTNode.create(
            p2p=host,
            node_id=DHTID.generate(source=identity.peer_id),
            record_validator=RecordGuard(),
            cache_locally=False,
            cache_nearest=0,
            cache_on_store=False,
            cache_refresh_before_expiry=0,
        )
        return cls(node, identity)

    async def meet(self, peer: PeerId) -> None:
        """Make a peer that p2pd is connected to our neighbour, and us its own. Raises DialFailed, or StartError when
        clocks differ or it cannot call us back."""
        try:
            answered = await self._node.protocol.call_ping(PeerID.from_base58(peer), validate=True)
        except ValidationError as error:
            raise StartError(f"{error}; set this machine's clock, or open its port to {peer}") from error
        if answered is None:
            raise DialFailed(f"peer {peer} does not answer as a glossd node")

    async def look_around(self) -> None:
        """Ask the neighbours for theirs, until we know those that are nearest."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_TIMEOUT_S):
                await self._node.find_nearest_nodes([self._node.node_id])

    def is_near(self, peer: PeerId) -> bool:
        return PeerID.from_base58(peer) in self._node.protocol.routing_table

    async def renew(self) -> None:
        """Announce our records again, to neighbours that we did not have before."""
        for record in list(self._announced.values()):
            await self.announce(record)

    def abandon(self) -> None:
        """In place of `close` when p2pd has ended."""
        self._node.is_alive = False

    async def announce(self, record: NodeRecord) -> None:
        if record.peer_id != self._identity.peer_id:
            raise ValueError(f"{self._identity.peer_id} cannot announce a record of {record.peer}")
        last = self._announced.get(record.model_id)
        # Newest expiry wins in the DHT, so each record must be issued after the one that it replaces.
        issued_ms = max(int(time.time() * 1000), last.issued_ms + 1 if last else 0)
        await self._publish(record.model_copy(update={"issued_ms": issued_ms}))

    async def withdraw(self, model: ModelId) -> None:
        # The DHT cannot delete, and takes only what expires later than what it has. So the record is replaced by one
        # that expires a millisecond later and says "offline": readers leave it out.
        last = self._announced.pop(model, None)
        if last is None:
            return
        parting = last.model_copy(update={"issued_ms": last.issued_ms + 1, "state": "offline"})
        try:
            async with asyncio.timeout(_WITHDRAW_TIMEOUT_S):
                await self._publish(parting)
        except Exception as error:
            log.warning("could not withdraw the record of %s: %r; it expires in %g s", model[:12], error, LEASE_S)

    async def records(self, model: ModelId) -> dict[PeerId, NodeRecord]:
        found = await self._node.get(_key(model), latest=True)
        if found is None or not isinstance(found.value, dict):
            return {}
        now, records = time.time(), {}
        for envelope, expires in found.value.values():
            try:
                record = unseal(envelope)
            except WireError:
                continue
            # A record from the future would outlive its owner by as much as its clock is ahead.
            leased = now < expires <= now + LEASE_S + CLOCK_SKEW_S
            if leased and record.model_id == model:
                records[record.peer_id] = record
        return records

    async def close(self) -> None:
        """Leave the DHT; never raises."""
        try:
            # Waits for p2pd's word, which does not come when p2pd is dead.
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._node.shutdown()
        except Exception as error:
            log.debug("the DHT did not shut down cleanly: %r", error)

    async def _publish(self, record: NodeRecord) -> None:
        envelope = seal(record, self._identity.public_key, self._identity.sign)
        self._announced[record.model_id] = record
        if not await self._node.store(_key(record.model_id), envelope, _expiry(record), subkey=record.peer):
            log.warning("no node stored the record of %s; it is tried again at the next renewal", record.model[:12])


def _expiry(record: NodeRecord) -> float:
    return record.issued_ms / 1000 + LEASE_S


def _unpacked(value: bytes) -> bytes:
    try:
        envelope = MSGPackSerializer.loads(value)
    except Exception:
        raise WireError("a stored record is not msgpack") from None
    if not isinstance(envelope, bytes):
        raise WireError("a stored record is not bytes")
    return envelope
