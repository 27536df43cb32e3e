"""Commands about the daemon itself: status, peers, bans, id, pause, resume, leave, config."""

import json as json_module
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glossd.cli.options import ConfigOption, JsonOption, SocketOption, client, columns, note, printable
from swarm.errors import GlossError

if TYPE_CHECKING:
    from glossd.api.schemas import PeerInfo, Status

STOP_PATIENCE_S = 20.0

config = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show settings and where they come from.")


def status(json: JsonOption = False, socket: SocketOption = None) -> None:
    """Show what this node hosts and whether the swarm covers the model."""
    now = client(socket).status()
    typer.echo(now.model_dump_json() if json else printable(_status_text(now)))


def peers(json: JsonOption = False, socket: SocketOption = None) -> None:
    """List the nodes of the swarm and the parts that they serve."""
    known = client(socket).peers()
    if json:
        typer.echo(json_module.dumps([peer.model_dump(mode="json") for peer in known]))
    else:
        typer.echo(printable(_peers_text(known)))


def identity(socket: SocketOption = None) -> None:
    """Print this node's peer id."""
    typer.echo(client(socket).status().peer)


def ban(
    peer: Annotated[str, typer.Argument(metavar="PEER", help="Peer id, as `glossd peers` prints it.")],
    reason: Annotated[str, typer.Option(help="A note for yourself.")] = "",
    socket: SocketOption = None,
) -> None:
    """Have nothing to do with a peer any more: neither ask it for passes nor serve it."""
    client(socket).ban(peer, reason)
    note("banned; requests that ran over it go on without it")


def unban(
    peer: Annotated[str, typer.Argument(metavar="PEER", help="Peer id, as `glossd bans` prints it.")],
    socket: SocketOption = None,
) -> None:
    """Let a banned peer in again."""
    client(socket).unban(peer)
    note("unbanned")


def bans(json: JsonOption = False, socket: SocketOption = None) -> None:
    """List the peers that this node was told to have nothing to do with."""
    banned = client(socket).bans()
    if json:
        typer.echo(json_module.dumps([each.model_dump(mode="json") for each in banned]))
        return
    rows = [(each.peer, time.strftime("%Y-%m-%d %H:%M", time.localtime(each.since)), each.reason) for each in banned]
    typer.echo(printable(columns([("PEER", "SINCE", "REASON"), *rows])))


def pause(socket: SocketOption = None) -> None:
    """Compute nothing for the swarm until `glossd resume` or a restart; prompts asked here run on other nodes."""
    client(socket).pause()
    note("paused; `glossd resume` serves again")


def resume(socket: SocketOption = None) -> None:
    """Serve again after `glossd pause`."""
    client(socket).resume()
    note("serving")


def leave(socket: SocketOption = None) -> None:
    """Leave the swarm and end the daemon: tell peers, end the steps in flight, exit within five seconds."""
    daemon = client(socket)
    daemon.stop()
    deadline = time.monotonic() + STOP_PATIENCE_S
    while time.monotonic() < deadline:
        if not daemon.is_there():
            note("left")
            return
        time.sleep(0.05)
    raise GlossError(f"the daemon still runs after {STOP_PATIENCE_S:g} s; `glossd status` prints its pid")


@config.command("show")
def config_show(json: JsonOption = False, file: ConfigOption = None, socket: SocketOption = None) -> None:
    """Print each setting, its value and its origin."""
    from glossd.config import resolve

    resolved = resolve({"config": file, "socket": socket})
    values = resolved.settings.model_dump(mode="json")  # secrets come out masked
    if json:
        table = {key: {"value": value, "origin": resolved.origins[key]} for key, value in values.items()}
        typer.echo(json_module.dumps(table))
        return
    rows = [(key, "" if value is None else str(value), resolved.origins[key]) for key, value in values.items()]
    typer.echo(columns([("KEY", "VALUE", "ORIGIN"), *rows]))


@config.command("path")
def config_file(file: Annotated[Path | None, typer.Option("--config", metavar="FILE", hidden=True)] = None) -> None:
    """Print where the TOML file is looked for."""
    from glossd.config import config_path

    typer.echo(str(config_path(file)))


def _status_text(now: "Status") -> str:
    missing = ", ".join(str(part) for part in now.uncovered)
    totals = ", ".join(f"{count} {outcome}" for outcome, count in sorted(now.requests.items()))
    rows = [
        ("peer", now.peer),
        ("model", f"{now.model} ({now.model_hash[:12]}), {now.dtype}"),
        (
            "hosting",
            f"{now.span or 'nothing'} of parts 0:{now.n_parts}{'' if now.state == 'online' else f', {now.state}'}",
        ),
        ("coverage", "complete" if now.covered else f"nobody serves parts {missing}; start a node with --layers"),
        ("peers", str(now.peers)),
        ("queue", f"{now.queue.running} running, {now.queue.waiting} waiting, room for {now.queue.limit}"),
        (
            "caches",
            f"{now.caches.sessions} held, {now.caches.size_bytes / 2**20:.1f} of {now.caches.limit_bytes >> 20} MB",
        ),
        ("requests", totals or "none yet"),
        ("socket", now.sockets.unix),
        ("http", now.sockets.http or "off"),
        ("daemon", f"version {now.version}, pid {now.pid}, up {_duration(now.uptime_s)}"),
        ("join with", now.join),
    ]
    return columns(rows)


def _peers_text(known: list["PeerInfo"]) -> str:
    head = ("PEER", "PARTS", "STATE", "DTYPE", "THROUGHPUT", "EXPIRES", "VERSION", "")
    rows = [
        (
            peer.peer,
            peer.span,
            peer.state,
            peer.dtype,
            f"{peer.throughput:.3g}/s",
            f"{peer.expires_in_s:.0f} s",
            peer.version,
            "this node" if peer.local else peer.last_error or "",
        )
        for peer in sorted(known, key=lambda peer: (int(peer.span.partition(":")[0] or 0), peer.peer))
    ]
    return columns([head, *rows])


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
