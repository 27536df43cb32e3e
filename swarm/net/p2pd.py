"""One p2pd process and the byte streams through it. Imports hivemind, which takes seconds: import this module late.

Knows libp2p, not the DHT and not glossd's messages. Called by `swarm.net.hivemind` only.
"""

import asyncio
import fcntl
import logging
import os
import re
import shutil
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError, read_pbmsg_safe, write_pbmsg
from hivemind.proto import p2pd_pb2
from hivemind.utils.logging import use_hivemind_log_handler
from hivemind.utils.multiaddr import Multiaddr

from swarm.errors import DialFailed, LinkBroken, NetworkDown, StartError
from swarm.ids import PeerId
from swarm.net.identity import Identity
from swarm.net.transport import Handler, Stream

STREAMS_PER_PEER = 64
"""Streams that one peer may hold open with us on one protocol; p2pd itself has no such limit."""

_PIECE_BYTES = 256 * 1024
_START_TIMEOUT_S = 30.0
_CLOSE_TIMEOUT_S = 2.0
_SOCKET_PATH_LIMIT = 64
_FOLDER_PREFIX = "glossd-p2pd-"
_SWEEP_AFTER_S = 60.0
_PORT_WAIT_S = 3.0
_PROBES = 4
_PROBE_GAP_S = 0.15
_PROBE_TIMEOUT_S = 3.0
_LINK_ERRORS = (asyncio.IncompleteReadError, OSError, EOFError, RuntimeError)

log = logging.getLogger(__name__)


class P2pd:
    """A running p2pd. `host` is the hivemind object that a DHTNode takes."""

    def __init__(self, host: Any, socket_folder: Path, held: int) -> None:
        self.host = host
        self.peer_id = PeerId(host.peer_id.to_base58())
        self._socket_folder = socket_folder
        self._held = held
        self._inbound: Counter[tuple[PeerId, str]] = Counter()
        self._handling: set[asyncio.Task[None]] = set()
        self._outbound: WeakSet[_SocketStream] = WeakSet()

    @classmethod
    async def start(cls, identity: Identity, host_maddrs: Sequence[str], announce_maddrs: Sequence[str]) -> "P2pd":
        """Raises StartError, which says what p2pd stumbled over and what to do."""
        await _wait_free(host_maddrs)
        use_hivemind_log_handler("nowhere")  # leaves logging to the program's own handlers
        _sweep_folders()
        folder = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX))
        held = _hold(folder)
        try:
            if len(str(folder)) > _SOCKET_PATH_LIMIT:
                raise StartError(f"the temporary folder {folder} is too long for a socket; set TMPDIR to a shorter one")
            host = await _host_class(folder).create(
                host_maddrs=list(host_maddrs),
                announce_maddrs=list(announce_maddrs) or None,
                identity_path=str(identity.path),
                auto_nat=False,
                nat_port_map=False,
                use_relay=False,
                startup_timeout=_START_TIMEOUT_S,
                idle_timeout=2 * _START_TIMEOUT_S,
            )
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(held)
            if isinstance(error, P2PDaemonError | ValueError | OSError):
                raise StartError(_explain(str(error), host_maddrs)) from error
            raise
        return cls(host, folder, held)

    async def serve(self, protocol: str, handler: Handler) -> None:
        async def accept(info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # A task of our own: asyncio would report the cancelling of the one that it made for the connection.
            stream = _SocketStream(PeerId(info.peer_id.to_base58()), reader, writer, self.is_alive)
            task = asyncio.create_task(self._handle(protocol, handler, stream))
            self._handling.add(task)
            task.add_done_callback(self._handling.discard)
            await asyncio.wait({task})

        await self.host.add_binary_stream_handler(protocol, accept)

    async def _handle(self, protocol: str, handler: Handler, stream: Stream) -> None:
        place = stream.peer, protocol
        self._inbound[place] += 1
        try:
            if self._inbound[place] > STREAMS_PER_PEER:
                log.warning("refused a stream of %s on %s: it holds %d already", *place, STREAMS_PER_PEER)
            else:
                await handler(stream)
        except LinkBroken as error:
            log.debug("a stream on %s: %s", protocol, error)
        except Exception:
            log.exception("the handler of %s failed on a stream of %s", protocol, stream.peer)
        finally:
            self._inbound[place] -= 1
            if not self._inbound[place]:
                del self._inbound[place]
            await stream.close()

    async def open(self, peer: PeerId, protocol: str, timeout_s: float) -> Stream:
        """Raises DialFailed."""
        writer = None
        try:
            async with asyncio.timeout(timeout_s):
                ask = p2pd_pb2.StreamOpenRequest(peer=PeerID.from_base58(peer).to_bytes(), proto=[protocol])
                request = p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_OPEN, streamOpen=ask)
                reader, writer = await self._connection()
                opened = StreamInfo.from_protobuf((await _answer(reader, writer, request)).streamInfo)
            stream = _SocketStream(PeerId(opened.peer_id.to_base58()), reader, writer, self.is_alive)
            writer = None
            self._outbound.add(stream)
            return stream
        except TimeoutError:
            raise DialFailed(f"{peer} did not answer within {timeout_s:g} s") from None
        except (*_LINK_ERRORS, ValueError) as error:
            raise DialFailed(f"cannot reach {peer}: {_dial_reason(str(error))}") from error
        finally:
            if writer is not None:
                writer.close()

    async def connect(self, address: str, timeout_s: float) -> PeerId:
        """Dial the peer that answers at `address`, which ends in /p2p/ID. Raises DialFailed."""
        place, _, peer = address.rpartition("/p2p/")
        try:
            async with asyncio.timeout(timeout_s):
                await self._connect(PeerId(peer), [place])
            return PeerId(peer)
        except TimeoutError:
            raise DialFailed(f"nobody answers at {address} within {timeout_s:g} s") from None
        except (*_LINK_ERRORS, ValueError) as error:
            raise DialFailed(f"nobody answers at {address}: {_dial_reason(str(error))}") from error

    async def finds(self, peer: PeerId) -> bool:
        """Whether `peer` is known to the peers that this node is connected to, and answers."""
        # Often the first question comes before there is anybody to ask.
        for _ in range(_PROBES):
            try:
                async with asyncio.timeout(_PROBE_TIMEOUT_S):
                    await self._connect(peer, [])
                return True
            except (TimeoutError, *_LINK_ERRORS) as error:
                if "dial" in str(error):
                    return False  # an address is remembered, and nobody is there
            await asyncio.sleep(_PROBE_GAP_S)
        return False

    async def _connect(self, peer: PeerId, places: Sequence[str]) -> None:
        addresses = [Multiaddr(place).to_bytes() for place in places]
        ask = p2pd_pb2.ConnectRequest(peer=PeerID.from_base58(peer).to_bytes(), addrs=addresses)
        reader, writer = await self._connection()
        try:
            await _answer(reader, writer, p2pd_pb2.Request(type=p2pd_pb2.Request.CONNECT, connect=ask))
        finally:
            writer.close()

    async def is_alive(self) -> bool:
        """Whether p2pd still answers; asked when a stream broke, because its own end breaks all of them."""
        writer = None
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                reader, writer = await self._connection()
                # While the kernel ends a process, its listening socket may outlive its streams: only words count.
                await _answer(reader, writer, p2pd_pb2.Request(type=p2pd_pb2.Request.IDENTIFY))
        except (TimeoutError, *_LINK_ERRORS):
            return False
        finally:
            if writer is not None:
                writer.close()
        return True

    async def connections(self) -> list[str]:
        """Where the peers that this node is connected to are, as addresses that end in /p2p/ID."""
        return [f"{address}/p2p/{info.peer_id}" for info in await self.host.list_peers() for address in info.addrs]

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        # hivemind's own calls leave their socket open when they fail or are cancelled, so this is done by hand.
        return await asyncio.open_unix_connection(self.host.daemon_listen_maddr["unix"], limit=_PIECE_BYTES)

    async def addresses(self) -> list[str]:
        return [str(address) for address in await self.host.get_visible_maddrs(latest=True)]

    async def wait_ended(self) -> None:
        await self.host._child.wait()

    async def close(self) -> None:
        """Cancel the handlers, close all streams and end p2pd; never raises."""
        tasks = [task for task in self._handling if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *(stream.close() for stream in list(self._outbound)), return_exceptions=True)
        child, control = self.host._child, self.host._client.control
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self.host.shutdown()
        except TimeoutError:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()
        # hivemind never asks how these ended, which asyncio reports when p2pd had died before.
        await asyncio.gather(*filter(None, (control._read_task, control._write_task)), return_exceptions=True)
        shutil.rmtree(self._socket_folder, ignore_errors=True)
        if self._held >= 0:
            os.close(self._held)
            self._held = -1


class _SocketStream:
    def __init__(
        self,
        peer: PeerId,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        is_alive: Callable[[], Awaitable[bool]],
    ) -> None:
        self.peer = peer
        self._reader = reader
        self._writer = writer
        self._is_alive = is_alive

    async def read_exactly(self, size: int) -> bytes:
        try:
            return await self._reader.readexactly(size)
        except _LINK_ERRORS as error:
            raise await self._broken(f"the stream with {self.peer} ended: {_first_line(str(error))}") from None

    async def write(self, *chunks: bytes | memoryview) -> None:
        try:
            if sum(memoryview(chunk).nbytes for chunk in chunks) <= _PIECE_BYTES:
                chunks = (b"".join(chunks),)  # one write costs less than several and a copy saved
            for chunk in chunks:
                view = memoryview(chunk)
                # In pieces, so that no more than one piece beyond the socket's window is copied into a buffer.
                for start in range(0, len(view), _PIECE_BYTES):
                    self._writer.write(view[start : start + _PIECE_BYTES])
                    await self._writer.drain()
        except _LINK_ERRORS as error:
            raise await self._broken(f"the stream with {self.peer} broke: {_first_line(str(error))}") from None

    async def close(self) -> None:
        self._writer.close()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._writer.wait_closed()
        except TimeoutError:
            self._writer.transport.abort()
        except _LINK_ERRORS:
            pass

    async def _broken(self, reason: str) -> LinkBroken:
        return LinkBroken(reason) if await self._is_alive() else NetworkDown(f"p2pd of this node ended; {reason}")


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: p2pd_pb2.Request
) -> p2pd_pb2.Response:
    """What p2pd answers. Raises RuntimeError with its words when it says no."""
    await write_pbmsg(writer, request)
    answer = p2pd_pb2.Response()
    await read_pbmsg_safe(reader, answer)
    if answer.type == p2pd_pb2.Response.ERROR:
        raise RuntimeError(answer.error.msg)
    return answer


async def is_identity_used(identity: Identity, join: Sequence[str]) -> bool:
    """Whether a node of this identity is found through one of `join`: a p2pd without a name asks for it.

    The node's own p2pd must not be connected there yet. Nobody found is no proof: the other node may be elsewhere.
    """
    folder = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX))
    held = _hold(folder)
    try:
        host = await _host_class(folder).create(
            dht_mode="client", auto_nat=False, nat_port_map=False, use_relay=False, startup_timeout=_START_TIMEOUT_S
        )
        probe = P2pd(host, folder, held)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)
        raise
    try:
        dials = await asyncio.gather(
            *(probe.connect(address, _PROBE_TIMEOUT_S) for address in join), return_exceptions=True
        )
        if all(isinstance(dial, BaseException) for dial in dials):
            return False
        return await probe.finds(identity.peer_id)
    finally:
        await probe.close()


def _host_class(folder: Path) -> Any:
    class Host(P2P):  # type: ignore[misc]
        # A private folder: whoever can open these sockets speaks as this node.
        _UNIX_SOCKET_PREFIX = f"/unix{folder}/"

        @staticmethod
        def _make_process_args(*args: Any, **flags: Any) -> Any:
            # hivemind has no arguments for these. This node relays for nobody and looks for no relays.
            return P2P._make_process_args(*args, **{**flags, "relayDiscovery": False, "relayService": False})

    return Host


def _hold(folder: Path) -> int:
    """A lock on the folder that ends with this process at the latest."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _sweep_folders() -> None:
    """Remove the socket folders of our user's nodes that were killed. A new one may not be held yet, so it stays."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*"):
        with suppress(OSError):
            info = folder.lstat()
            if info.st_uid == os.getuid() and time.time() - info.st_mtime > _SWEEP_AFTER_S:
                held = _hold(folder)
                shutil.rmtree(folder, ignore_errors=True)
                os.close(held)


async def _wait_free(host_maddrs: Sequence[str]) -> None:
    """The p2pd of a node that was killed lets go of its port within a second. Raises StartError."""
    until = time.monotonic() + _PORT_WAIT_S
    while True:
        try:
            return _check_free(host_maddrs)
        except StartError:
            if time.monotonic() > until:
                raise
        await asyncio.sleep(0.1)


def _check_free(host_maddrs: Sequence[str]) -> None:
    # libp2p shares a port with whoever listens on it already, and each would get half of the calls.
    for address in host_maddrs:
        family, host, _, port = (address.split("/") + [""] * 4)[1:5]
        kind = {"ip4": socket.AF_INET, "ip6": socket.AF_INET6}.get(family)
        if kind is None or not port.isdigit() or not 0 < int(port) < 2**16:
            continue
        with socket.socket(kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, int(port)))
            except OSError as error:
                raise StartError(
                    f"cannot listen on {address}: {error.strerror}; stop what uses it or choose another"
                ) from error


def _explain(problem: str, host_maddrs: Sequence[str]) -> str:
    problem = re.sub(r"^Daemon failed to start: (\d+/\d+/\d+ \d+:\d+:\d+ )?", "", _first_line(problem))
    if "address already in use" in problem or "failed to listen" in problem:
        return f"cannot listen on {', '.join(host_maddrs)}: {problem}; stop what uses it or choose another"
    return f"p2pd does not start: {problem}"


def _dial_reason(text: str) -> str:
    """The cause in libp2p's report of a dial, which lists the addresses that it tried."""
    found = re.search(
        r"peer id mismatch.*|connection refused|i/o timeout|no route to host|network is unreachable", text
    )
    return _first_line(found[0] if found else text)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:200] or "connection lost"
