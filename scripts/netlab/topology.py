"""What a lab is made of, and its addresses. Pure: touches no system."""

import re
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["public", "cone", "symmetric", "none"]
"""public: no router. cone: MASQUERADE, which keeps a source's port for all destinations and lets only answers in.
symmetric: MASQUERADE --random-fully, another port for each destination. none: a router that translates nothing and
filters nothing."""

MAX_NODES = 99


@dataclass(frozen=True)
class NodeSpec:
    """A node and its link. `rtt_ms` is there and back between two such nodes, `rate_mbit` each way (0: no limit),
    `loss` the share of packets that the link drops each way. `jitter_ms` is the most that chance adds, each way, to
    the delay between two such nodes. Raises ValueError.
    """

    name: str
    kind: Kind = "public"
    rtt_ms: float = 0.0
    rate_mbit: float = 0.0
    loss: float = 0.0
    jitter_ms: float = 0.0

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9]{0,7}", self.name):
            raise ValueError(f"node {self.name!r}: a name is up to 8 small letters and digits, a letter first")
        if self.name == "core":
            raise ValueError("core is the router in the middle; choose another name")
        if self.kind not in get_args(Kind):
            raise ValueError(f"node {self.name}: kind {self.kind!r} is none of {', '.join(get_args(Kind))}")
        if not 0 <= self.rtt_ms <= 10_000:
            raise ValueError(f"node {self.name}: rtt {self.rtt_ms:g} is not between 0 and 10000 ms")
        if not 0 <= self.jitter_ms <= 10_000:
            raise ValueError(f"node {self.name}: jitter {self.jitter_ms:g} is not between 0 and 10000 ms")
        if self.rate_mbit < 0:
            raise ValueError(f"node {self.name}: rate {self.rate_mbit:g} is negative; 0 is no limit")
        if not 0 <= self.loss < 1:
            raise ValueError(f"node {self.name}: loss {self.loss:g} is not a share from 0 to below 1")

    @property
    def is_plain(self) -> bool:
        """A link that the kernel carries alone."""
        return not (self.rtt_ms or self.rate_mbit or self.loss or self.jitter_ms)

    def link(self, namespace: str) -> "Link":
        """To that namespace. A path crosses two links, and there and back each twice."""
        return Link(
            self.name,
            namespace,
            self.rtt_ms / 4e3,
            self.jitter_ms / 2e3,
            bits_per_s=self.rate_mbit * 1e6,
            loss=self.loss,
        )


@dataclass(frozen=True)
class Link:
    """From interface `name` of the core to `wan` in `namespace`; the numbers hold for each direction."""

    name: str
    namespace: str
    delay_s: float
    jitter_s: float
    bits_per_s: float
    loss: float

    @property
    def is_segmenting(self) -> bool:
        """Whether packets may be larger than the MTU on their way, which counts and drops them in one piece."""
        return not (self.bits_per_s or self.loss)


def public_nodes(
    count: int, rtt_ms: float = 0.0, rate_mbit: float = 0.0, loss: float = 0.0, jitter_ms: float = 0.0
) -> list[NodeSpec]:
    """p1, p2, ..., all alike."""
    return [NodeSpec(f"p{i}", "public", rtt_ms, rate_mbit, loss, jitter_ms) for i in range(1, count + 1)]


@dataclass(frozen=True)
class Addresses:
    """`wan` and `core` are the ends of the link (/30), `node` and `gateway` those behind a router (/24)."""

    wan: str
    core: str
    gateway: str
    node: str

    @classmethod
    def of(cls, index: int, kind: Kind) -> "Addresses":
        """Of the node at `index`, from 0, in its lab. Every link has a /16 of its own."""
        net = f"44.{index + 1}"
        lan = {"public": f"{net}.0", "none": f"{net}.1"}.get(kind, f"192.168.{index + 1}")
        wan = f"{net}.0.1"
        return cls(wan, f"{net}.0.2", f"{lan}.1", wan if kind == "public" else f"{lan}.2")

    def outside(self, kind: Kind) -> str:
        """Where others see the node."""
        return self.wan if kind in ("cone", "symmetric") else self.node
