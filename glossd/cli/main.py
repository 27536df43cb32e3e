"""Entry of `glossd`: the table of commands, `run`, and how errors become exit codes.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no daemon, 4 the swarm cannot cover the model, 130 interrupted.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from glossd import __version__
from glossd.cli import admin, models, prompt
from glossd.cli.options import ConfigOption, SocketOption, note
from swarm.errors import GlossError

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,  # rich takes longer to load than the rest of --help
    pretty_exceptions_enable=False,
    help="Host a masked-diffusion language model together with other machines, and ask it things.",
)


@app.command()
def run(
    context: typer.Context,
    model: Annotated[str | None, typer.Option(metavar="NAME|FOLDER", help="Model to host [gloss-tiny].")] = None,
    layers: Annotated[
        str | None,
        typer.Option("--layers", "--blocks", metavar="A:B", help="Parts to host, such as 0:4; auto; or none [auto]."),
    ] = None,
    join: Annotated[
        list[str] | None, typer.Option(metavar="ADDRESS", help="Node of the swarm to join; can be repeated.")
    ] = None,
    require_join: Annotated[
        bool | None, typer.Option("--require-join", help="End when none of them answers, in place of serving alone.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on for peers [127.0.0.1].")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on for peers; 0 is any [0].")] = None,
    announce: Annotated[
        list[str] | None, typer.Option(metavar="ADDRESS", help="Address that others should dial; can be repeated.")
    ] = None,
    socket: SocketOption = None,
    http: Annotated[
        str | None, typer.Option(metavar="127.0.0.1:PORT", help="Serve the API on this loopback port too.")
    ] = None,
    state_dir: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where identity and state live.")] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16", "auto"] | None, typer.Option(help="Numbers to compute with [auto].")
    ] = None,
    quant: Annotated[
        Literal["none", "int8", "nf4"] | None, typer.Option(help="Store the layers' weights smaller [none].")
    ] = None,
    activations: Annotated[
        Literal["exact", "float16", "bfloat16", "int8"] | None,
        typer.Option(help="Round hidden states between peers, for this node's prompts [exact]."),
    ] = None,
    device_map: Annotated[
        Literal["none", "auto"] | None, typer.Option(help="auto: spread the parts over several GPUs [none].")
    ] = None,
    models_dir: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where pulled models are kept.", show_default=False)
    ] = None,
    memory_mb: Annotated[
        int | None,
        typer.Option("--memory", metavar="MB", help="Memory that auto fills; 0 is half of what is free [0]."),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Compute threads; 0 lets glossd choose [0].")] = None,
    queue_limit: Annotated[int | None, typer.Option(help="Requests that may wait [64].")] = None,
    max_running: Annotated[int | None, typer.Option(help="Requests decoded at once [16].")] = None,
    deterministic: Annotated[bool | None, typer.Option("--deterministic", help="Run every pass alone.")] = None,
    cache_mb: Annotated[int | None, typer.Option(help="Memory for cached keys and values in MB [1024].")] = None,
    hop_timeout_s: Annotated[
        float | None, typer.Option("--hop-timeout", metavar="SECONDS", help="Longest wait for a peer [8].")
    ] = None,
    pass_timeout_floor_s: Annotated[
        float | None, typer.Option("--pass-timeout-floor", metavar="SECONDS", help="Least time that a pass gets [2].")
    ] = None,
    hedge_share: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Share of passes that may be sent twice when late [0.1].")
    ] = None,
    drain_s: Annotated[
        float | None, typer.Option("--drain", metavar="SECONDS", help="Time to end what runs [3].")
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None, typer.Option(help="Least level to log [info].")
    ] = None,
    log_json: Annotated[bool | None, typer.Option("--log-json", help="Log JSON lines.")] = None,
    config: ConfigOption = None,
) -> None:
    """Start a node: join or found a swarm, host a part of the model, answer prompts.

    Every setting can also stand in the config file, or in the environment as GLOSSD_NAME. The http_token only there,
    because other users see command lines.
    """
    flags = {name: value for name, value in context.params.items() if value not in (None, [], ())}
    # The daemon replaces this process: signals, exit code and terminal are its own. -P keeps python files of the
    # current folder from standing in for libraries, unless we were ourselves loaded from there.
    safe = [] if {os.getcwd(), ""} & set(sys.path) else ["-P"]
    # A signal that comes while Python starts anew waits until the daemon listens.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    os.execv(sys.executable, [sys.executable, *safe, "-m", "glossd.start", json.dumps(flags, default=str)])  # noqa: S606


app.command("prompt")(prompt.prompt)
app.command("infill")(prompt.infill)
app.command("status")(admin.status)
app.command("peers")(admin.peers)
app.command("ban")(admin.ban)
app.command("unban")(admin.unban)
app.command("bans")(admin.bans)
app.command("id")(admin.identity)
app.command("pause")(admin.pause)
app.command("resume")(admin.resume)
app.command("leave")(admin.leave)
app.command("stop", hidden=True, help="The same as leave.")(admin.leave)
app.command("pull")(models.pull)
app.command("models")(models.models)
app.command("show")(models.show)
app.command("rm")(models.remove)
app.add_typer(admin.config, name="config")


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"glossd {__version__}")


def main() -> None:
    try:
        app(prog_name="glossd")
    except GlossError as error:
        note(f"glossd: {error}")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
