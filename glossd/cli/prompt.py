"""`glossd prompt` and `glossd infill`: send a request, show its canvas fill in, print the answer."""

import json
import sys
from collections.abc import Generator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glossd.cli.options import SocketOption, client, note, printable
from swarm.decode.settings import Commit, Order

if TYPE_CHECKING:
    from glossd.events import RequestEvent

DECODING = (
    "max_tokens",
    "temperature",
    "seed",
    "block_length",
    "steps",
    "commit",
    "order",
    "threshold",
    "cfg_scale",
    "deadline_s",
)
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", min=1, help="Length of the answer.")]
Temperature = Annotated[float | None, typer.Option(min=0, max=10, help="0 takes the most probable tokens.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Same seed, same answer.")]
BlockLength = Annotated[int | None, typer.Option(min=1, help="Positions decoded together.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Denoising steps in all.")]
CommitOption = Annotated[Commit | None, typer.Option(help="What each step fixes.")]
OrderOption = Annotated[Order | None, typer.Option(help="What is committed first.")]
Threshold = Annotated[float | None, typer.Option(help="Confidence that commits, from 0 to 1.")]
Cfg = Annotated[float | None, typer.Option("--cfg", min=0, help="Guidance scale; 0 is off.")]
More = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any other decoding field, as cache=dual; can be repeated."),
]
Deadline = Annotated[float | None, typer.Option("--deadline", metavar="SECONDS", help="Give up after this time.")]
NoLive = Annotated[bool, typer.Option("--no-live", help="Do not draw the canvas.")]
EventsJson = Annotated[bool, typer.Option("--json", help="Print the events, one JSON object a line.")]


def prompt(
    context: typer.Context,
    text: Annotated[str, typer.Argument(help="What to say; - reads it from stdin.", show_default=False)],
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text instead of chatting about it.")] = False,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
    block_length: BlockLength = None,
    steps: Steps = None,
    commit: CommitOption = None,
    order: OrderOption = None,
    threshold: Threshold = None,
    cfg_scale: Cfg = None,
    more: More = None,
    deadline_s: Deadline = None,
    as_json: EventsJson = False,
    no_live: NoLive = False,
    socket: SocketOption = None,
) -> None:
    """Ask the swarm and print its answer."""
    _follow(context, {"prompt" if raw else "chat": _given(text)}, as_json, no_live)


def infill(
    context: typer.Context,
    text: Annotated[
        str, typer.Argument(help="Text with gaps such as {{mask:8}}; - reads it from stdin.", show_default=False)
    ],
    temperature: Temperature = None,
    seed: Seed = None,
    block_length: BlockLength = None,
    steps: Steps = None,
    commit: CommitOption = None,
    order: OrderOption = None,
    threshold: Threshold = None,
    cfg_scale: Cfg = None,
    more: More = None,
    deadline_s: Deadline = None,
    as_json: EventsJson = False,
    no_live: NoLive = False,
    socket: SocketOption = None,
) -> None:
    """Fill the {{mask:N}} gaps of a text, N tokens each, and print it."""
    _follow(context, {"template": _given(text)}, as_json, no_live)


def _given(text: str) -> str:
    if text == "-":
        text = sys.stdin.read()
    if not text.strip():
        raise typer.BadParameter("the text is empty")
    return text


def _named(text: str) -> tuple[str, object]:
    """NAME=VALUE, the value as JSON has it where it is JSON, else a string; the daemon knows names and types."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE; write for example --set top_p=0.9")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _follow(context: typer.Context, body: dict[str, Any], as_json: bool, no_live: bool) -> None:
    """Send `body` and the decoding options given, which bear the API's names.

    Leaving this early, Ctrl-C included, closes the connection, which cancels the request.
    """
    options = {name: context.params.get(name) for name in DECODING}
    body |= {name: value for name, value in options.items() if value is not None}
    body |= dict(_named(text) for text in context.params["more"] or ())
    on_terminal = sys.stdout.isatty() and sys.stderr.isatty()
    with closing(client(context.params["socket"]).events(body)) as events:
        if as_json:
            last = _print_json(events)
        elif on_terminal and not no_live:
            last = _draw(events)
        else:
            last = _stream(events, on_terminal)
    if last.type == "error" or last.type == "halted":
        note(f"glossd: {printable(last.message)}")
        raise typer.Exit(last.exit_code if last.type == "error" else 1)


def _print_json(events: Generator["RequestEvent", None, None]) -> "RequestEvent":
    for event in events:
        typer.echo(event.model_dump_json())
    return event


def _stream(events: Generator["RequestEvent", None, None], on_terminal: bool) -> "RequestEvent":
    """Only text, as soon as it is final; exactly as it is when it goes to a file or a program."""
    wrote = False
    for event in events:
        if event.type == "text":
            typer.echo(printable(event.text) if on_terminal else event.text, nl=False)
            wrote = True
    if wrote or event.type == "done":
        typer.echo()
    return event


def _draw(events: Generator["RequestEvent", None, None]) -> "RequestEvent":
    """The canvas is drawn on stderr and wiped; the answer then goes to stdout."""
    from rich.console import Console
    from rich.live import Live

    from glossd.cli.canvas import frame

    console = Console(stderr=True, highlight=False)
    with Live(console=console, transient=True, refresh_per_second=15) as live:
        for event in events:
            if event.type == "plan" or event.type == "step":
                live.update(frame(event, console))
    if event.type == "done":
        typer.echo(printable(event.text))
    return event
