"""`glossd prompt` and `infill`: what is sent, what is printed where, and how it ends."""

import io
import signal
import subprocess
import sys
import time

import pytest

from glossd.events import EVENT, Error, HaltedEvent, Text
from swarm.errors import BadRequest, CoverageLost
from tests.cli.conftest import Daemon, Glossd
from tests.fakes import DONE, GOOD, PLAN, STEP

PATIENCE_S = 20


def test_text_alone_goes_to_stdout(glossd: Glossd, daemon: Daemon) -> None:
    result = glossd("prompt", "Hi")
    assert (result.code, result.out, result.err) == (0, "Hello world\n", "")
    assert daemon.service.tasks[0].messages[0].content == "Hi"


def test_every_option_arrives(glossd: Glossd, daemon: Daemon) -> None:
    options = (
        "--raw --max-tokens 9 --temperature 0.5 --seed 3 --block-length 4 --steps 5 --commit threshold "
        "--order random --threshold 0.8 --cfg 1.5 --deadline 20 --set cache=dual --set top_p=0.9"
    )
    assert glossd("prompt", "Once", *options.split()).code == 0
    task = daemon.service.tasks[0]
    assert (task.prompt, task.messages, task.max_tokens, task.deadline_s) == ("Once", (), 9, 20.0)
    overrides = task.overrides
    assert (overrides.temperature, overrides.seed, overrides.block_length, overrides.steps) == (0.5, 3, 4, 5)
    assert (overrides.commit, overrides.order) == ("threshold", "random")
    assert (overrides.threshold, overrides.cfg_scale) == (0.8, 1.5)
    assert (overrides.cache, overrides.top_p) == ("dual", 0.9)


def test_a_field_that_the_daemon_does_not_know(glossd: Glossd, daemon: Daemon) -> None:
    result = glossd("prompt", "Hi", "--set", "cach=dual")
    assert (result.code, result.out) == (2, "")
    assert "cache" in result.err
    assert glossd("prompt", "Hi", "--set", "cache").code == 2


def test_stdin(glossd: Glossd, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe"))
    assert glossd("prompt", "-").code == 0
    assert daemon.service.tasks[0].messages[0].content == "from a pipe"


def test_json_prints_the_events(glossd: Glossd, daemon: Daemon) -> None:
    result = glossd("prompt", "Hi", "--json")
    assert tuple(EVENT.validate_json(line) for line in result.out.splitlines()) == GOOD


def test_infill(glossd: Glossd, daemon: Daemon) -> None:
    result = glossd("infill", "Hello {{mask:2}}", "--seed", "1")
    assert (result.code, result.out) == (0, "Hello world\n")
    assert daemon.service.tasks[0].template == "Hello {{mask:2}}"


@pytest.mark.parametrize("flag", [(), ("--json",)])
@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (CoverageLost("no live peer serves part 2", (2,)), 4),
        (BadRequest("the prompt is too long"), 2),
        (Error(code="deadline", message="too late", exit_code=1, http_status=504), 1),
        (HaltedEvent(message="halted"), 1),
    ],
)
def test_failures_are_one_line_and_a_code(
    glossd: Glossd, daemon: Daemon, failure: Exception | Error | HaltedEvent, code: int, flag: tuple[str, ...]
) -> None:
    for script in ((failure,), (PLAN, STEP, Text(text="Hel"), failure)):
        daemon.service.script = script
        result = glossd("prompt", "Hi", *flag)
        assert result.code == code
        assert result.err.startswith("glossd: ")
        assert result.err.count("\n") == 1


def test_wrong_usage(glossd: Glossd) -> None:
    for arguments in (
        ("prompt",),
        ("prompt", "  "),
        ("prompt", "x", "--steps", "0"),
        ("prompt", "x", "--commit", "all"),
    ):
        assert glossd(*arguments).code == 2


def test_no_daemon(glossd: Glossd) -> None:
    result = glossd("prompt", "Hi")
    assert result.code == 3
    assert "glossd run" in result.err
    assert result.err.count("\n") == 1


def test_a_terminal_shows_the_canvas_and_then_the_answer(
    glossd: Glossd, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.service.script = (PLAN, STEP, Text(text="a\x1b[2J"), DONE.model_copy(update={"text": "a\x1b[2J"}))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    drawn = glossd("prompt", "Hi")
    assert "masks left" in drawn.err
    assert drawn.out == "a\N{REPLACEMENT CHARACTER}[2J\n"
    plain = glossd("prompt", "Hi", "--no-live")
    assert plain.err == ""
    assert plain.out == drawn.out


def test_an_interrupt_cancels(daemon: Daemon) -> None:
    daemon.service.script, daemon.service.hang = GOOD[:3], True
    command = [sys.executable, "-m", "glossd.cli.main", "prompt", "Hi", "--socket", str(daemon.socket)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(5) == b"Hello"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert b"Traceback" not in err
    end = time.monotonic() + PATIENCE_S
    while not daemon.service.running[0].cancelled.is_set() and time.monotonic() < end:
        time.sleep(0.01)
    assert daemon.service.running[0].cancelled.is_set()
