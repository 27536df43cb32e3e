"""Options and output that several commands share."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from glossd.client import Client

SocketOption = Annotated[
    Path | None, typer.Option("--socket", metavar="PATH", help="The daemon's socket.", show_default=False)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Read settings from this TOML file.", show_default=False)
]


def client(socket: Path | None) -> "Client":
    """A client of the named socket, or of the one that the settings name."""
    from glossd.client import Client

    if socket is None:
        from glossd.config import resolve

        socket = resolve({}).settings.socket
    return Client(socket)


def note(text: str) -> None:
    """Everything that is not the result goes to stderr."""
    typer.echo(text, err=True)


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows as aligned columns, two blanks apart."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def printable(text: str) -> str:
    """Without the control characters by which a model's or a peer's text could drive a terminal."""
    return "".join(each if each.isprintable() or each in "\n\t" else "\N{REPLACEMENT CHARACTER}" for each in text)
