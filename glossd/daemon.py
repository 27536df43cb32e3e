"""The process: start order, signals, drain. `glossd.start` runs it.

Start: settings, state folder, model, network, span, local API, banner. Leaving goes the other way and takes five
seconds at most, also before the banner; a second signal leaves at once.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from glossd import __version__
from glossd.config import Settings, resolve
from glossd.observe import Log, Metrics, setup_logging
from swarm.errors import ConfigError, GlossError, StartError

if TYPE_CHECKING:
    from glossd.service import LocalService

log = Log("glossd")


class _Leaving:
    """The first signal ends the start, or begins the leaving once started; the second ends the process."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.started = False
        self._start = asyncio.current_task()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.ask, True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))

    def ask(self, force: bool = False) -> None:
        if self.asked.is_set() and force:
            os._exit(1)
        self.asked.set()
        if not self.started and self._start is not None:
            self._start.cancel()


async def serve(settings: Settings) -> None:
    """Run until a signal or `glossd leave`. Raises StartError and its kin when the node cannot start."""
    leaving = _Leaving()
    try:
        await _serve(settings, leaving)
    except asyncio.CancelledError:
        if not leaving.asked.is_set():
            raise
    log.info("left")


async def _serve(settings: Settings, leaving: _Leaving) -> None:
    metrics = Metrics()
    with _owned(settings.state_dir):
        # Late, when settings are known to be good and signals are heard: torch takes seconds to import.
        from glossd.api.app import build_app
        from glossd.api.serve import LocalServers, check_socket
        from glossd.models import check_layers, open_model
        from glossd.node import Node
        from glossd.requests import Requests
        from glossd.service import LocalService
        from swarm.net.hivemind import HivemindNode

        model = open_model(settings.model, settings.models_dir)
        check_layers(settings.layers, model)
        check_socket(settings.socket)
        network = await HivemindNode.start(
            settings.state_dir / "identity.key",
            host_maddrs=[f"/ip4/{settings.host}/tcp/{settings.port}"],
            announce_maddrs=settings.announce,
            join=settings.join,
            anchors_path=settings.state_dir / "peers.json",
            require_join=settings.require_join,
        )
        node = Node(settings, model, network, metrics)
        try:
            await node.join()
            requests = Requests(
                model, node.peer_id, node.new_source, metrics, settings.max_running, settings.queue_limit
            )
            service = LocalService(settings, node, requests, metrics, leaving.ask)
            token = settings.http_token.get_secret_value() if settings.http_token else None
            async with LocalServers(build_app(service), settings.socket, settings.http, token, 0.5) as servers:
                service.http = servers.http
                await _banner(service)
                leaving.started = True
                await _first_of(leaving.asked.wait(), network.wait_ended(), node.wait_failed())
                until = time.monotonic() + settings.drain_s
                log.info("leaving", running=requests.running, waiting=requests.waiting)
                await asyncio.gather(node.say_leaving(), requests.drain(settings.drain_s))
                await node.leave(max(0.0, until - time.monotonic()))
        finally:
            await node.leave()
    if not leaving.asked.is_set():
        raise node.failure or GlossError("p2pd, which carries the network, does not start again; start glossd again")


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _banner(service: "LocalService") -> None:
    status = await service.status()
    holes = f"; nobody serves {', '.join(map(str, status.uncovered))}" if status.uncovered else ""
    lines = [
        f"glossd {__version__}",
        f"  model   {status.model} ({status.model_hash[:12]}), parts 0:{status.n_parts}{holes}",
        f"  hosting {status.span or 'nothing'} as {status.dtype}",
        f"  peer    {status.peer}",
        f"  socket  {status.sockets.unix}",
        *([f"  http    http://{status.sockets.http}"] if status.sockets.http else []),
        f"  join    {status.join}",
        "ready",
    ]
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()


@contextlib.contextmanager
def _owned(state: Path) -> Iterator[None]:
    """Make the state folder (0700) and hold it, so that one identity never runs twice. Raises StartError."""
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartError(f"cannot write to the state folder {state}: {error.strerror}; set --state-dir") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
            raise StartError(
                f"another glossd (pid {holder}) uses {state}; stop it with `glossd leave` or set another --state-dir"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(lock)


def _flags(argv: list[str]) -> dict[str, Any]:
    if not argv:
        return {}
    try:
        flags = json.loads(argv[0])
    except ValueError:
        flags = None
    if len(argv) > 1 or not isinstance(flags, dict):
        raise ConfigError("start the daemon with `glossd run`; it takes its flags as one JSON object")
    return flags


def main(argv: list[str] | None = None) -> int:
    try:
        settings = resolve(_flags(sys.argv[1:] if argv is None else argv)).settings
        setup_logging(settings.log_level, settings.log_json)
        uvloop.run(serve(settings))
    except GlossError as error:
        sys.stderr.write(f"glossd: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0
