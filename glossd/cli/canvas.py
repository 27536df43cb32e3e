"""A canvas while it fills in, as rich text. Pure: events in, renderables out."""

from collections.abc import Sequence

from rich.console import Console, Group
from rich.text import Text

from glossd.cli.options import printable
from glossd.events import Cell, Hop, Plan, Step

MASK = "·"
STYLES = {"given": "", "committed": "bold", "guessed": "dim italic", "masked": "dim"}


def canvas_text(cells: Sequence[Cell]) -> Text:
    """Committed text bold, guesses dim and italic, a dot for each mask. Line breaks of the text break lines."""
    text = Text()
    for cell in cells:
        text.append(printable(cell.text) or (MASK if cell.state != "committed" else ""), STYLES[cell.state])
    return text


def status_line(event: Plan | Step) -> Text:
    if isinstance(event, Plan):
        words = [f"{event.masks} masks", f"{event.blocks} blocks"]
    else:
        words = [
            f"step {event.step + 1}",
            f"{event.masks_left} masks left",
            f"{event.tokens_per_s:.1f} tokens/s",
            f"{event.passes} passes",
        ]
    return Text("  ".join([*words, chain_words(event.chain)]), style="dim", no_wrap=True, overflow="ellipsis")


def chain_words(chain: Sequence[Hop]) -> str:
    return " → ".join(f"{hop.span} {'here' if hop.local else 'on ' + hop.peer[-8:]}" for hop in chain)


def frame(event: Plan | Step, console: Console) -> Group:
    """What the terminal shows after `event`: the canvas, as much of it as fits, over the status line."""
    lines = list(canvas_text(event.canvas).wrap(console, console.width))
    height = max(console.height - 2, 1)
    if len(lines) > height:
        filled = [number for number, line in enumerate(lines) if line.plain.strip(f"{MASK} \n")]
        stop = max(height, min((filled[-1] if filled else 0) + 2, len(lines)))
        lines = lines[stop - height : stop]
    return Group(*lines, status_line(event))
