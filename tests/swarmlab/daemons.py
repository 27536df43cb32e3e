"""Start real daemons in folders of their own, wait for them, and end them in every way a daemon can end."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil

from glossd.api.schemas import Status
from glossd.client import Client
from glossd.events import Done

AnyDaemon = TypeVar("AnyDaemon", bound="Daemon")

READY_S = 240.0
"""Starting imports torch and hivemind, which takes seconds, and more on a busy machine."""


@dataclass
class Daemon:
    """`folder` holds state, socket and log. `ready_s` is the time from start to `ready`.

    `enter` is what the command line begins with, to run in a network namespace; `module` is what python runs.
    """

    folder: Path
    flags: dict[str, object]
    enter: tuple[str, ...] = ()
    module: str = "glossd.start"
    ready_s: float = 0.0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def socket(self) -> Path:
        return self.folder / "glossd.sock"

    @property
    def client(self) -> Client:
        return Client(self.socket)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    @property
    def join_address(self) -> str:
        found = re.search(r"--join (\S+)", self.log)
        if found is None:
            raise RuntimeError(f"no join line in the log:\n{self.log}")
        return found[1]

    def launch(self) -> "Daemon":
        """Start without waiting."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = {"state_dir": str(self.folder), "socket": str(self.socket), **self.flags}
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GLOSSD_")}
        environment["XDG_CONFIG_HOME"] = str(self.folder)
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [*self.enter, sys.executable, "-m", self.module, json.dumps(flags)],
                stderr=log, stdout=log, stdin=subprocess.DEVNULL, env=environment,
            )  # fmt: skip
        self._launched = time.monotonic()
        return self

    def wait_ready(self) -> "Daemon":
        """Raises RuntimeError with the log when the daemon ends or stays silent."""
        if self.process is None:
            raise RuntimeError("launch first")
        while not re.search(r"^ready$", self.log, re.MULTILINE):
            if self.process.poll() is not None:
                raise RuntimeError(f"daemon ended with {self.process.returncode}:\n{self.log}")
            if time.monotonic() - self._launched > READY_S:
                raise RuntimeError(f"daemon not ready after {READY_S} s:\n{self.log}")
            time.sleep(0.02)
        self.ready_s = time.monotonic() - self._launched
        return self

    def status(self) -> Status:
        return self.client.status()

    def ask(self, body: Mapping[str, Any]) -> Done:
        """The end of an answer. Raises RuntimeError when it is another one."""
        *_, last = self.client.events(body)
        if not isinstance(last, Done):
            raise RuntimeError(f"{body}: {last}")
        return last

    def http(self, timeout_s: float = 30.0) -> httpx.Client:
        """A plain client of the socket. Close it."""
        return httpx.Client(
            transport=httpx.HTTPTransport(uds=str(self.socket)), base_url="http://glossd", timeout=timeout_s
        )

    def metric(self, sample: str) -> float:
        """The value of a line of /metrics, 0 when there is none."""
        with self.http() as http:
            lines = http.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == sample)

    @property
    def pid(self) -> int:
        if self.process is None:
            raise RuntimeError("launch first")
        return self.process.pid

    def p2pd(self) -> psutil.Process:
        return next(child for child in psutil.Process(self.pid).children() if child.name() == "p2pd")

    def wait_covered(self, seconds: float = READY_S, peers: int = 1) -> None:
        """Until this daemon sees every part covered and at least `peers` records."""
        until = time.monotonic() + seconds
        while not ((status := self.status()).covered and status.peers >= peers):
            if time.monotonic() > until:
                raise RuntimeError(f"not covered after {seconds} s: {status}")
            time.sleep(0.1)

    def send(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)

    def kill(self) -> None:
        """Without a chance to say goodbye."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def end(self, seconds: float = 10.0) -> int:
        """SIGTERM, then SIGKILL when that does not help. Returns the exit code."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def owner(peer: str, daemons: Sequence[AnyDaemon]) -> AnyDaemon:
    """The daemon among `daemons` whose id is `peer`, also when it does not run any more."""
    return next(daemon for daemon in daemons if f"  {peer}\n" in daemon.log)


def until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for something to become true. Raises RuntimeError when it does not."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"still not so after {seconds} s")
        time.sleep(0.05)


@contextmanager
def swarm(*layers: str, **flags: object) -> Iterator[list[Daemon]]:
    """One daemon per span of parts, ready and all seeing all, the first being the bootstrap of the others."""
    with swarm_of(Daemon, *layers, **flags) as daemons:
        yield daemons


@contextmanager
def swarm_of(kind: type[AnyDaemon], *layers: str, **flags: object) -> Iterator[list[AnyDaemon]]:
    """The same of another kind of daemon."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="glossd-")))
        daemons: list[AnyDaemon] = []
        for index, span in enumerate(layers):
            join = {"join": [daemons[0].join_address]} if daemons else {}
            daemon = kind(folder / f"node{index}", {"layers": span, **join, **flags})
            stack.callback(daemon.end)
            daemons.append(daemon.launch())
            if index == 0:
                daemon.wait_ready()
        for daemon in daemons:
            daemon.wait_ready()
        hosting = sum(span != "none" for span in layers)
        for daemon in daemons:
            daemon.wait_covered(peers=hosting)
        yield daemons
