"""What a path does to packets, measured with plain sockets that live on nodes of a lab; no process is started there."""

import socket
import threading
import time

from scripts.netlab.lab import Lab

_PATIENCE_S = 5.0
_CHUNK_BYTES = 1 << 20


def udp(lab: Lab, node: str, port: int = 0) -> socket.socket:
    """A datagram socket on that node, and it stays there."""
    with lab.inside(node):
        here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    here.bind(("0.0.0.0", port))
    here.settimeout(_PATIENCE_S)
    return here


def round_trips(
    lab: Lab, asker: str, answerer: str, count: int, pause_s: float = 0.01, patience_s: float = _PATIENCE_S
) -> list[float]:
    """Seconds of `count` datagrams of 100 bytes, one after the other; lost ones are missing from the list."""
    with udp(lab, asker) as here, udp(lab, answerer, 4500) as there:
        here.settimeout(patience_s)
        echo = threading.Thread(target=_echo, args=(there,))
        echo.start()
        took = []
        try:
            for _ in range(count):
                began = time.perf_counter()
                here.sendto(bytes(100), (lab.address(answerer), 4500))
                try:
                    here.recv(200)
                except TimeoutError:
                    continue
                took.append(time.perf_counter() - began)
                time.sleep(pause_s)
        finally:
            with lab.inside(answerer), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
                last.sendto(b"end", ("127.0.0.1", 4500))
            echo.join()
    return took


def _echo(there: socket.socket) -> None:
    there.settimeout(None)
    while (data := there.recvfrom(200))[0] != b"end":
        there.sendto(*data)


def throughput(lab: Lab, sender: str, receiver: str, seconds: float, skip_s: float = 0.0) -> float:
    """Mbit/s that arrive over one TCP connection, after `skip_s` in which its window grows."""
    with lab.inside(receiver):
        gate = socket.create_server(("0.0.0.0", 4501))
    with lab.inside(sender):
        out = socket.socket()
    with gate, out:
        out.settimeout(_PATIENCE_S)
        out.connect((lab.address(receiver), 4501))
        back, _ = gate.accept()
        ends = time.monotonic() + skip_s + seconds
        push = threading.Thread(target=_push, args=(out, ends))
        push.start()
        with back:
            back.settimeout(_PATIENCE_S)
            buffer = bytearray(_CHUNK_BYTES)
            counts_from, arrived = ends - seconds, 0
            while size := back.recv_into(buffer):
                if counts_from < time.monotonic() <= ends:
                    arrived += size
        push.join()
    return arrived * 8 / seconds / 1e6


def _push(out: socket.socket, ends: float) -> None:
    chunk = bytes(_CHUNK_BYTES)
    while time.monotonic() < ends:
        out.sendall(chunk)
    out.shutdown(socket.SHUT_WR)
