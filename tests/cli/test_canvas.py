"""How a canvas looks while it fills in."""

import io

from rich.console import Console

from glossd.cli.canvas import canvas_text, chain_words, frame, status_line
from glossd.events import Cell, Hop
from tests.fakes import PLAN, STEP

CELLS = (
    Cell(state="given", text="Once"),
    Cell(state="committed", text=" upon\n"),
    Cell(state="guessed", text=" a"),
    Cell(state="masked"),
    Cell(state="guessed", text=""),
    Cell(state="committed", text=""),
)


def screen(width: int, height: int) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=width, height=height), out


def test_states_have_their_styles() -> None:
    text = canvas_text(CELLS)
    assert text.plain == "Once upon\n a··"
    assert [(text.plain[span.start : span.end], span.style) for span in text.spans] == [
        (" upon\n", "bold"),
        (" a", "dim italic"),
        ("·", "dim"),
        ("·", "dim italic"),
    ]


def test_text_cannot_drive_the_terminal() -> None:
    plain = canvas_text((Cell(state="committed", text="\x1b[2J\x07\x9b[red]\t\n"),)).plain
    assert plain == "\N{REPLACEMENT CHARACTER}[2J" + "\N{REPLACEMENT CHARACTER}" * 2 + "[red]\t\n"


def test_status_line() -> None:
    assert status_line(STEP).plain == "step 1  1 masks left  10.0 tokens/s  1 passes  0:4 here"
    assert status_line(PLAN).plain == "2 masks  1 blocks  0:4 here"
    assert chain_words((Hop(peer="12D3KooWabcdefgh", span="0:2"), Hop(peer="x", span="2:4", local=True))) == (
        "0:2 on abcdefgh → 2:4 here"
    )


def test_a_long_canvas_keeps_what_is_being_filled_and_the_status() -> None:
    lines = [Cell(state="committed", text=f"line {n}\n") for n in range(50)]
    masks = [Cell(state="masked")] * 400
    console, out = screen(40, 12)
    console.print(frame(STEP.model_copy(update={"canvas": (*lines, *masks)}), console))
    shown = out.getvalue().splitlines()
    assert len(shown) <= 12
    assert "line 49" in out.getvalue()
    assert "line 0" not in shown
    assert shown[-1].startswith("step 1")


def test_an_untouched_canvas_starts_at_its_top() -> None:
    console, out = screen(40, 6)
    console.print(frame(PLAN.model_copy(update={"canvas": (Cell(state="masked"),) * 400}), console))
    assert len(out.getvalue().splitlines()) == 5
