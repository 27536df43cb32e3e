"""The process: start order, signals, drain. `glossd run` becomes it; `python -m glossd.daemon JSON` is the same.

Start: settings, state folder, model, network, span, local API, banner. Leaving goes the other way and takes five
seconds at most; a second signal leaves at once.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop

from glossd import __version__
from glossd.api.app import build_app
from glossd.api.serve import LocalServers
from glossd.config import Settings, resolve
from glossd.models import open_model
from glossd.node import Node
from glossd.observe import Log, Metrics, setup_logging
from glossd.requests import Requests
from glossd.service import LocalService
from swarm.errors import ConfigError, GlossError, StartError
from swarm.net.hivemind import HivemindNode

log = Log("glossd")


async def serve(settings: Settings) -> None:
    """Run until a signal or `glossd stop`. Raises StartError and its kin when the node cannot start."""
    leaving = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, _leave_or_force, leaving)
    metrics = Metrics()
    with _owned(settings.state_dir):
        model = open_model(settings.model)
        network = await HivemindNode.start(
            settings.state_dir / "identity.key",
            host_maddrs=[f"/ip4/{settings.host}/tcp/{settings.port}"],
            announce_maddrs=settings.announce,
            join=settings.join,
        )
        node = Node(settings, model, network, metrics)
        try:
            await node.join()
            requests = Requests(
                model, node.peer_id, node.new_source, metrics, settings.max_running, settings.queue_limit
            )
            service = LocalService(settings, node, requests, metrics, leaving.set)
            token = settings.http_token.get_secret_value() if settings.http_token else None
            async with LocalServers(build_app(service), settings.socket, settings.http, token, 0.5) as servers:
                service.http = servers.http
                await _banner(service)
                await leaving.wait()
                log.info("leaving", running=requests.running, waiting=requests.waiting)
                await requests.drain(settings.drain_s)
        finally:
            await node.leave()
    log.info("left")


def _leave_or_force(leaving: asyncio.Event) -> None:
    if leaving.is_set():
        os._exit(1)
    leaving.set()


async def _banner(service: LocalService) -> None:
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
                f"another glossd (pid {holder}) uses {state}; stop it with `glossd stop` or set another --state-dir"
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


if __name__ == "__main__":
    sys.exit(main())
