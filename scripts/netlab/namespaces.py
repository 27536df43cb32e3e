"""Network namespaces: run ip and iptables, enter one, end all that is in one. Knows nothing of labs."""

import ctypes
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_FOLDER = Path("/run/netns")
_libc = ctypes.CDLL(None, use_errno=True)


def missing() -> str:
    """What a lab needs and this machine lacks; empty when it has everything."""
    lacking = [
        f"{name} (package {package})" for name, package in _TOOLS.items() if shutil.which(name, path=_PATH) is None
    ]
    if not Path("/dev/net/tun").exists():
        lacking.append("/dev/net/tun")
    if os.geteuid() != 0:
        lacking.append("root")
    return f"a lab needs {', '.join(lacking)}" if lacking else ""


_TOOLS = {"ip": "iproute2", "iptables": "iptables"}
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def run(*command: str) -> str:
    """Standard output. Raises RuntimeError with what the command said."""
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": _PATH})
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def add(namespace: str) -> None:
    run("ip", "netns", "add", namespace)
    run("ip", "-n", namespace, "link", "set", "lo", "up")


def found(prefix: str) -> list[str]:
    """Namespaces named PREFIX-WORD or PREFIX-WORD-router: `net` does not find those of `net-a`."""
    pattern = re.compile(re.escape(prefix) + r"-[a-z0-9]+(-router)?")
    return sorted(path.name for path in _FOLDER.glob("*") if pattern.fullmatch(path.name))


def pids(namespace: str) -> list[int]:
    return [int(pid) for pid in run("ip", "netns", "pids", namespace).split()]


def remove(namespaces: list[str], patience_s: float = 5.0) -> None:
    """Kill whatever runs in them, then delete them."""
    until = time.monotonic() + patience_s
    while running := [pid for name in namespaces for pid in _pids_or_none(name) if pid != os.getpid()]:
        for pid in running:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            raise RuntimeError(f"processes {running} do not end")
        time.sleep(0.02)
    for name in namespaces:
        with suppress(RuntimeError):
            run("ip", "netns", "del", name)
        if (_FOLDER / name).exists():
            raise RuntimeError(f"the namespace {name} cannot be removed")


def _pids_or_none(namespace: str) -> list[int]:
    # One that a crash left half made is a plain file, of which ip cannot say what runs there: nothing does.
    try:
        return pids(namespace)
    except RuntimeError:
        return []


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """This thread is in the namespace, and so is every process and thread that it starts meanwhile."""
    with open("/proc/thread-self/ns/net", "rb") as before, (_FOLDER / namespace).open("rb") as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(before.fileno())


def _enter(handle: int) -> None:
    if _libc.setns(handle, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")
