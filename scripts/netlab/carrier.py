"""Links with delay, rate and loss, by TUN devices: what one end sends waits here and leaves by the other.

Run as a process in the namespace of the core: `python -m scripts.netlab.carrier JSON`, a list of objects with the
fields of Link. It makes both ends of every link, moves one to the node's namespace, prints `up` and carries packets
until it is killed. Each direction has a process of its own, so that no interpreter lock is shared.

A link without rate and loss takes packets as the kernel hands them to a card that segments (up to 64 KB, with their
virtio header), which is what makes Python fast enough; the others count and drop packets of the MTU.
"""

import ctypes
import fcntl
import json
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress

from scripts.netlab.topology import Link

_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0  # linux/if_tun.h
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_SEGMENTS = 0x01 | 0x02 | 0x04  # checksums, TCP segmentation over IPv4 and over IPv6
_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29
_FAR = "far-end"  # no node can have this name
_READ_BYTES = 65536 + 128
_BATCH = 64
"""Packets read before those that are due are sent."""
_OWN_S = 0.00014
"""What waking up and copying add to each delay, between an idle machine and a busy one: packets wait less for that."""
_QUEUE_S = 0.1
"""What a line with a rate holds before it drops, beside what is under way."""


def main() -> None:
    links = [Link(**fields) for fields in json.loads(sys.argv[1])]
    ends = [_ends(link) for link in links]
    parent = os.getpid()
    for link, (near, far) in zip(links, ends, strict=True):
        for source, sink in ((near, far), (far, near)):
            if os.fork() == 0:
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() == parent:
                    _be_prompt()
                    _carry(source, sink, link)
                os._exit(1)
    print("up", flush=True)
    os.wait()  # none ends by itself: a lab whose link died is broken, and says so
    sys.exit(1)


def _ends(link: Link) -> tuple[int, int]:
    near, far = _tun(link.name, link.is_segmenting), _tun(_FAR, link.is_segmenting)
    subprocess.run(["ip", "link", "set", _FAR, "netns", link.namespace, "name", "wan"], check=True)
    return near, far


def _tun(name: str, segmenting: bool) -> int:
    handle = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    flags = _IFF_TUN | _IFF_NO_PI | (_IFF_VNET_HDR if segmenting else 0)
    fcntl.ioctl(handle, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    if segmenting:
        fcntl.ioctl(handle, _TUNSETOFFLOAD, _SEGMENTS)
    return handle


def _be_prompt() -> None:
    """A real line takes no turn on the processor: packets leave on time while the nodes compute."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        with suppress(OSError):
            os.nice(-15)


def _carry(source: int, sink: int, link: Link) -> None:
    now, read, write, chance = time.monotonic, os.read, os.write, random.Random().random
    under_way: deque[tuple[float, bytes]] = deque()
    bytes_per_s, free_at = link.bits_per_s / 8, 0.0
    delay_s = max(0.0, link.delay_s - _OWN_S)
    while True:
        # select takes microseconds; poll and epoll would round each wait up to a millisecond
        select.select([source], [], [], max(0.0, under_way[0][0] - now()) if under_way else None)
        arrived = now()
        for _ in range(_BATCH):
            try:
                packet = read(source, _READ_BYTES)
            except BlockingIOError:
                break
            if link.loss and chance() < link.loss:
                continue
            leaves = arrived
            if bytes_per_s:
                if free_at - arrived > _QUEUE_S:
                    continue
                free_at = leaves = max(free_at, arrived) + len(packet) / bytes_per_s
            arrives = leaves + delay_s
            if link.jitter_s:
                arrives += link.jitter_s * chance()
                if under_way:
                    arrives = max(arrives, under_way[-1][0])  # a wire keeps the order
            under_way.append((arrives, packet))
        due = now()
        while under_way and under_way[0][0] <= due:
            with suppress(OSError):  # the far end is down or full: a packet is lost, as packets are
                write(sink, under_way.popleft()[1])


if __name__ == "__main__":
    main()
