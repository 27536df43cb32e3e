"""A lab: made from a list of nodes, found again by its prefix, and taken down whole, also after a crash."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.netlab import namespaces
from scripts.netlab.namespaces import run
from scripts.netlab.topology import MAX_NODES, Addresses, NodeSpec

DEFAULT_PREFIX = "netlab"
_STATES = Path("/run/glossd-netlab")
_ROOT = Path(__file__).parents[2]


class LabError(RuntimeError):
    """The lab cannot be made or used; the text says what to do."""


@dataclass(frozen=True)
class Lab:
    """`nodes` in the order of their addresses. `owner` is the process whose end ends the lab's use, 0 for nobody."""

    prefix: str
    nodes: tuple[NodeSpec, ...]
    owner: int = 0
    owner_began: int = 0
    carrier: int = 0
    """The process that carries the packets of delayed links; 0 where there is none."""

    @classmethod
    @contextmanager
    def made(cls, nodes: Sequence[NodeSpec], prefix: str = "") -> Iterator["Lab"]:
        """A lab for the time of the block, and stale ones of other processes removed. Raises LabError, ValueError."""
        remove_stale()
        lab = cls.up(nodes, prefix or f"netlab-{os.getpid()}", owner=os.getpid())
        try:
            yield lab
        finally:
            lab.down()

    @classmethod
    def up(cls, nodes: Sequence[NodeSpec], prefix: str = DEFAULT_PREFIX, owner: int = 0) -> "Lab":
        """Make it. A stale lab of that prefix is removed first. Raises LabError where a live one is, ValueError."""
        if lacking := namespaces.missing():
            raise LabError(lacking)
        names = [node.name for node in nodes]
        if not 0 < len(nodes) <= MAX_NODES or len(set(names)) < len(names):
            raise ValueError(f"a lab has 1 to {MAX_NODES} nodes with names of their own, not {names}")
        if not re.fullmatch(r"[a-z][a-z0-9-]*", prefix):
            raise ValueError(f"prefix {prefix!r}: small letters, digits and dashes, a letter first")
        if namespaces.found(prefix):
            if _is_live(prefix):
                raise LabError(f"the lab {prefix} is up already: take it down first, or choose another --prefix")
            down(prefix)
        began = _began(owner) if owner else 0
        lab = cls(prefix, tuple(nodes), owner, began)
        lab._write()  # first of all, so that a crash from here on is seen
        try:
            lab._build()
            lab = cls(prefix, tuple(nodes), owner, began, lab._carry())
            lab._write()
            lab._route()
        except BaseException:
            down(prefix)
            raise
        return lab

    @classmethod
    def found(cls, prefix: str = DEFAULT_PREFIX) -> "Lab":
        """The one that is up. Raises LabError."""
        try:
            fields = json.loads(_state(prefix).read_text())
        except FileNotFoundError:
            left = namespaces.found(prefix)
            more = f", but a crash left {', '.join(left)}: `scripts/lab down` removes them" if left else ""
            raise LabError(f"no lab {prefix} is up{more}") from None
        return cls(**{**fields, "nodes": tuple(NodeSpec(**node) for node in fields["nodes"])})

    def down(self) -> None:
        """Remove it, and end whatever runs there."""
        down(self.prefix)
        if self.carrier:
            with suppress(ChildProcessError):  # the child of another process, which is asked by nobody
                os.waitpid(self.carrier, 0)

    def namespace(self, name: str) -> str:
        """Of a node, of a node's router (`n1-router`), or `core`. Raises LabError."""
        if name != "core" and name.removesuffix("-router") not in (node.name for node in self.nodes):
            raise LabError(f"no node {name} in the lab; there are {', '.join(n.name for n in self.nodes)}")
        return f"{self.prefix}-{name}"

    def inside(self, name: str) -> AbstractContextManager[None]:
        """This thread, and the processes that it starts, are on that node for the time of the block."""
        return namespaces.inside(self.namespace(name))

    def enter(self, name: str) -> tuple[str, ...]:
        """What a command line begins with to run on that node."""
        return "ip", "netns", "exec", self.namespace(name)

    def address(self, name: str) -> str:
        """Where others see the node: its own address, or that of its NAT router."""
        index, node = self._node(name)
        return Addresses.of(index, node.kind).outside(node.kind)

    def own_address(self, name: str) -> str:
        """The node's address on its own interface."""
        index, node = self._node(name)
        return Addresses.of(index, node.kind).node

    def traffic(self, name: str) -> int:
        """Bytes that the node's link has carried, both ways together."""
        self.namespace(name)
        (link,) = json.loads(run("ip", "-n", self.namespace("core"), "-s", "-j", "link", "show", "dev", name))
        return int(link["stats64"]["rx"]["bytes"]) + int(link["stats64"]["tx"]["bytes"])

    def block(self, name: str) -> None:
        """The link swallows all packets, without a word to anybody."""
        self.unblock(name)
        for rule in self._blocking(name):
            self._filter("-I", *rule)

    def unblock(self, name: str) -> None:
        """The link carries again; does nothing where it is not blocked."""
        for rule in self._blocking(name):
            with suppress(RuntimeError):
                self._filter("-D", *rule)

    def is_orphan(self) -> bool:
        """Made by a process that is gone."""
        return bool(self.owner) and _began(self.owner) != self.owner_began

    def is_stale(self) -> bool:
        """Left by a process that is gone, or by a machine that was, or with links that carry no more."""
        if self.is_orphan():
            return True
        wanted = {self.namespace("core"), *(self.namespace(node.name) for node in self.nodes)}
        if not wanted <= set(namespaces.found(self.prefix)):
            return True
        delayed = any(not node.is_plain for node in self.nodes)
        return delayed and self.carrier not in namespaces.pids(self.namespace("core"))

    def _node(self, name: str) -> tuple[int, NodeSpec]:
        self.namespace(name)
        return next((i, node) for i, node in enumerate(self.nodes) if node.name == name)

    def _edge(self, node: NodeSpec) -> str:
        """The namespace where the node's link ends."""
        return self.namespace(node.name if node.kind == "public" else f"{node.name}-router")

    def _blocking(self, name: str) -> list[tuple[str, ...]]:
        self.namespace(name)
        return [("FORWARD", side, name, "-j", "DROP") for side in ("-i", "-o")]

    def _filter(self, *words: str) -> None:
        run(*self.enter("core"), "iptables", "-w", *words)

    def _write(self) -> None:
        _STATES.mkdir(exist_ok=True)
        fresh = _STATES / f"{self.prefix}.new"
        fresh.write_text(json.dumps(asdict(self)))
        fresh.replace(_state(self.prefix))

    def _build(self) -> None:
        """All namespaces, the links that the kernel carries, and the wires between nodes and their routers."""
        core = self.namespace("core")
        namespaces.add(core)
        _forward(core)
        for node in self.nodes:
            here, edge = self.namespace(node.name), self._edge(node)
            for name in {here, edge}:
                namespaces.add(name)
            if here != edge:
                _forward(edge)
                run("ip", "link", "add", "lan", "netns", edge, "type", "veth", "peer", "name", "eth0", "netns", here)
            if node.is_plain:
                run("ip", "link", "add", node.name, "netns", core, "type", "veth", "peer", "name", "wan", "netns", edge)

    def _carry(self) -> int:
        """Start the process that carries the packets of all other links; its pid, or 0."""
        links = [node.link(self._edge(node)) for node in self.nodes if not node.is_plain]
        if not links:
            return 0
        log = _STATES / f"{self.prefix}.log"
        with self.inside("core"), log.open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "scripts.netlab.carrier", json.dumps([asdict(link) for link in links])],
                cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
            )  # fmt: skip
        assert process.stdout is not None
        with process.stdout as output:
            if output.readline() != b"up\n":
                process.wait()
                raise LabError(f"the links do not start: {log.read_text().strip()}")
        process.returncode = 0  # `down` ends it, perhaps that of another process
        return process.pid

    def _route(self) -> None:
        core = self.namespace("core")
        for index, node in enumerate(self.nodes):
            at, here, edge = Addresses.of(index, node.kind), self.namespace(node.name), self._edge(node)
            _set_up(core, node.name, f"{at.core}/30")
            _set_up(edge, "wan", f"{at.wan}/30")
            run("ip", "-n", edge, "route", "add", "default", "via", at.core)
            if here == edge:
                continue
            _set_up(edge, "lan", f"{at.gateway}/24")
            _set_up(here, "eth0", f"{at.node}/24")
            run("ip", "-n", here, "route", "add", "default", "via", at.gateway)
            if node.kind == "none":
                run("ip", "-n", core, "route", "add", f"{at.gateway[:-1]}0/24", "via", at.wan)
            else:
                _translate(edge, ["--random-fully"] if node.kind == "symmetric" else [])


def down(prefix: str) -> None:
    """Remove everything of that prefix, whatever made it and whatever state it is in."""
    namespaces.remove(namespaces.found(prefix))
    for ending in ("json", "new", "log"):
        (_STATES / f"{prefix}.{ending}").unlink(missing_ok=True)


def remove_stale() -> None:
    """Remove the labs whose maker is gone. One that is just being made looks broken, too, but its maker lives."""
    for path in _STATES.glob("*.json"):
        with suppress(LabError):
            lab = Lab.found(path.stem)
            if lab.is_orphan():
                lab.down()


def _is_live(prefix: str) -> bool:
    try:
        return not Lab.found(prefix).is_stale()
    except LabError:
        return False


def _state(prefix: str) -> Path:
    return _STATES / f"{prefix}.json"


def _began(pid: int) -> int:
    """When a process began, in the kernel's ticks, or 0 when it is gone: a pid alone may be another's by now."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except FileNotFoundError:
        return 0


def _set_up(namespace: str, interface: str, address: str) -> None:
    run("ip", "-n", namespace, "addr", "add", address, "dev", interface)
    run("ip", "-n", namespace, "link", "set", interface, "txqueuelen", "5000", "up")


def _forward(namespace: str) -> None:
    run("ip", "netns", "exec", namespace, "sysctl", "-qw", "net.ipv4.ip_forward=1")


def _translate(router: str, more: list[str]) -> None:
    """NAT as a home router does it: what was not asked for from within is dropped without a word.

    A router that answered for closed ports would break the first packets of a hole punch with its resets.
    """
    run(
        "ip",
        "netns",
        "exec",
        router,
        "iptables",
        "-w",
        "-t",
        "nat",
        "-A",
        "POSTROUTING",
        "-o",
        "wan",
        "-j",
        "MASQUERADE",
        *more,
    )
    for chain in ("FORWARD", "INPUT"):
        rule = ("ip", "netns", "exec", router, "iptables", "-w", "-A", chain, "-i", "wan")
        run(*rule, "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT")
        run(*rule, "-j", "DROP")
