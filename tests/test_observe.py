"""Log lines parse back; metrics do not leak between daemons."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from glossd.observe import Log, Metrics, setup_logging


@pytest.fixture(autouse=True)
def keep_root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_line_holds_event_and_fields() -> None:
    out = io.StringIO()
    setup_logging("info", as_json=False, stream=out)
    Log("glossd.test").info("peer joined", peer="12D3", parts=3, words="a b\nc=d", took_s=0.123456789, none="")
    line = out.getvalue()
    assert line.count("\n") == 1
    assert 'level=info logger=glossd.test event="peer joined" peer=12D3 parts=3' in line
    assert 'words="a b\\nc=d" took_s=0.123457 none=""' in line


def test_json_lines_parse() -> None:
    out = io.StringIO()
    setup_logging("debug", as_json=True, stream=out)
    log = Log("glossd.test")
    log.debug("seen", n=1)
    try:
        raise KeyError("x")
    except KeyError:
        log.exception("broke")
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert (first["event"], first["n"], first["level"]) == ("seen", 1, "debug")
    assert "KeyError" in second["traceback"]


def test_levels_and_libraries() -> None:
    out = io.StringIO()
    setup_logging("info", as_json=False, stream=out)
    Log("glossd.test").debug("hidden")
    logging.getLogger("uvicorn.error").info("hidden too")
    logging.getLogger("uvicorn.error").warning("shown %d", 1)
    assert out.getvalue().count("\n") == 1
    assert 'event="shown 1"' in out.getvalue()


def test_metrics_have_their_own_registry() -> None:
    one, two = Metrics(), Metrics()
    one.requests.labels("done").inc()
    assert b'glossd_requests_total{outcome="done"} 1.0' in one.render()
    assert b'outcome="done"' not in two.render()
