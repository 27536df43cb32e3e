"""Logs and metrics of the daemon.

Log lines are an event and its fields, `key=value` or JSON, on stderr. Prompts and answers never go into a line of level
info or above. Metrics live in a registry of their own, so that two daemons of one process do not mix in tests.
"""

import json
import logging
import sys
import time
from typing import IO, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_CHATTY = frozenset(("uvicorn", "hivemind", "asyncio", "httpx"))
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Log:
    """`log.info("joined", peer=..., parts=...)`: the event is a fixed phrase, what varies goes into fields."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, **fields: object) -> None:
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._write(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: object) -> None:
        """An error with the traceback of the exception being handled."""
        self._write(logging.ERROR, event, fields, traceback=True)

    def _write(self, level: int, event: str, fields: dict[str, object], traceback: bool = False) -> None:
        self._logger.log(level, "%s", event, extra={"fields": fields}, exc_info=traceback)


class LineFormatter(logging.Formatter):
    """One record, one line: time, level, logger, event, then the fields."""

    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        if self._as_json:
            return json.dumps(fields, default=str)
        return " ".join(f"{key}={_quoted(value)}" for key, value in fields.items())


def _quoted(value: object) -> str:
    """Bare where a reader cannot misread it; else a JSON string, which also keeps a line one line."""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    plain = text.isascii() and text.isprintable() and not set(text) & set(' "=\\')
    return text if text and plain else json.dumps(text)


def setup_logging(level: str, as_json: bool, stream: IO[str] | None = None) -> None:
    """Send all logs of the process to `stream` (stderr by default). Replaces what an earlier call set up."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter(as_json))
    # On the handler, because hivemind gives each of its loggers a level of its own.
    handler.addFilter(_is_worth_a_line)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING or record.name.partition(".")[0] not in _CHATTY


class Metrics:
    """What the daemon counts. The daemon updates the fields; `/metrics` renders them."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Counter("glossd_requests", "Requests that ended, by outcome.", ["outcome"], registry=registry)
        self.running = Gauge("glossd_requests_running", "Requests being decoded.", registry=registry)
        self.waiting = Gauge("glossd_requests_waiting", "Requests in the queue.", registry=registry)
        self.steps = Counter("glossd_steps", "Denoising steps done.", registry=registry)
        self.passes = Counter("glossd_passes", "Forward passes started, replays included.", registry=registry)
        self.replays = Counter("glossd_replays", "Passes that were run again after a failure.", registry=registry)
        self.hedges = Counter("glossd_hedges", "Late passes that were sent to other peers too.", registry=registry)
        self.tokens = Counter("glossd_tokens", "Tokens committed.", registry=registry)
        self.pass_seconds = Histogram(
            "glossd_pass_seconds", "Time of one pass through a chain.", buckets=_SECONDS, registry=registry
        )
        self.hop_seconds = Histogram(
            "glossd_hop_seconds", "Time of one span of a chain.", buckets=_SECONDS, registry=registry
        )
        self.hop_failures = Counter(
            "glossd_hop_failures", "Spans that failed, by error code.", ["code"], registry=registry
        )
        self.served = Counter("glossd_served_passes", "Passes run for other peers.", registry=registry)
        self.served_seconds = Histogram(
            "glossd_served_seconds", "Compute time of passes for other peers.", buckets=_SECONDS, registry=registry
        )
        self.sent_bytes = Counter("glossd_sent_bytes", "Bytes of passes sent to peers.", registry=registry)
        self.received_bytes = Counter("glossd_received_bytes", "Bytes of passes received.", registry=registry)
        self.uncovered_parts = Gauge("glossd_uncovered_parts", "Parts that no live peer serves.", registry=registry)
        self.peers = Gauge("glossd_peers", "Live peers in the directory, this one included.", registry=registry)

    def render(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self.registry)
