"""A link between two namespaces: a TUN device in each, and this process, which moves packets, each after its delay.

    python -m scripts.netlab.link '{"spaces": [A, B], "devices": [A, B], "addresses": [A, B]}'

Devices are made with segmentation offload, so that a packet may be 64 KB and Python keeps up with hundreds of Mbit/s.
It says "up" when both ends are, and ends when one of them is removed.
"""

import fcntl
import json
import os
import random
import select
import struct
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

from scripts.netlab.spaces import call

TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
OFFLOAD = 1 | 2 | 4  # checksums, TCP segments of IPv4 and IPv6
PACKET = 65535 + 10
QUEUE_S = 0.25
"""Seconds of its rate that a link queues before it drops."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One way: `delay_ms` plus up to `jitter_ms`, `rate_mbit` (0: unlimited), `loss` as a share."""

    delay_ms: float = 0.0
    rate_mbit: float = 0.0
    loss: float = 0.0
    jitter_ms: float = 0.0


@dataclass(slots=True)
class Way:
    """One direction. Order is kept, as on a wire."""

    source: int
    target: int
    shape: Shape
    rng: random.Random
    waiting: deque[tuple[float, bytes]] = field(default_factory=deque)
    free_at: float = 0.0

    def take(self, now: float) -> None:
        shape = self.shape
        for _ in range(64):
            try:
                packet = os.read(self.source, PACKET)
            except BlockingIOError:
                return
            if shape.loss and self.rng.random() < shape.loss:
                continue
            sent = now
            if shape.rate_mbit:
                self.free_at = max(self.free_at, now)
                if self.free_at - now > QUEUE_S:
                    continue
                self.free_at += len(packet) * 8e-6 / shape.rate_mbit
                sent = self.free_at
            due = sent + (shape.delay_ms + shape.jitter_ms * self.rng.random()) / 1e3
            if self.waiting:
                due = max(due, self.waiting[-1][0])
            self.waiting.append((due, packet))

    def give(self, now: float) -> None:
        while self.waiting and self.waiting[0][0] <= now:
            with suppress(BlockingIOError):  # when the device's queue is full, the packet is lost, as on a wire
                os.write(self.target, self.waiting.popleft()[1])


def open_device(name: str, space: str, address: str, peer: str) -> int:
    """A TUN device `name` in `space`; returns its descriptor."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(device, TUNSETOFFLOAD, OFFLOAD)
    call("ip", "link", "set", name, "netns", space)
    call("ip", "-n", space, "addr", "add", address, "peer", peer, "dev", name)
    call("ip", "-n", space, "link", "set", name, "txqueuelen", "5000", "up")
    return device


def carry(ways: list[Way]) -> None:
    sources = [way.source for way in ways]
    while True:
        next_due = min((way.waiting[0][0] for way in ways if way.waiting), default=None)
        wait_s = None if next_due is None else max(0.0, next_due - time.monotonic())
        ready, _, _ = select.select(sources, [], [], wait_s)
        now = time.monotonic()
        for way in ways:
            if way.source in ready:
                way.take(now)
            way.give(time.monotonic())


def main() -> None:
    given = json.loads(sys.argv[1])
    shape = Shape(**given.get("shape", {}))
    (a, b), (at_a, at_b), (in_a, in_b) = given["devices"], given["addresses"], given["spaces"]
    first, second = open_device(a, in_a, at_a, at_b), open_device(b, in_b, at_b, at_a)
    rng = random.Random(given.get("seed", 0))
    print("up", flush=True)
    with suppress(OSError):  # a namespace, and with it the device, is gone
        carry([Way(first, second, shape, rng), Way(second, first, shape, rng)])


if __name__ == "__main__":
    main()
