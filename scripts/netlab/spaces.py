"""Network namespaces: make, enter, remove."""

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Space:
    """A namespace, and the IPv4 address by which the others reach it."""

    name: str
    address: str = ""

    @property
    def enter(self) -> tuple[str, ...]:
        """What a command line begins with to run inside."""
        return "ip", "netns", "exec", self.name

    def popen(self, command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([*self.enter, *command], **options)

    def run(self, *command: str) -> str:
        """Output of a command inside. Raises RuntimeError with what it said."""
        return call(*self.enter, *command)


def call(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def why_not() -> str:
    """What is missing here, empty when nothing is."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun"
    if shutil.which("ip") is None:
        return "iproute2 (ip) is not installed"
    return ""


def make(name: str, address: str = "") -> Space:
    call("ip", "netns", "add", name)
    call("ip", "-n", name, "link", "set", "lo", "up")
    return Space(name, address)


def existing(prefix: str) -> list[str]:
    names = (line.split()[0] for line in call("ip", "netns", "list").splitlines() if line.strip())
    return [name for name in names if name.startswith(prefix)]


def down(prefix: str) -> None:
    """End every process in the namespaces of `prefix` and remove them; their links end with them."""
    for name in existing(prefix):
        for pid in call("ip", "netns", "pids", name).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        call("ip", "netns", "del", name)
