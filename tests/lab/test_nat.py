"""Routers translate as their kind says: it decides whether a hole can be punched."""

import socket

import pytest

from scripts.netlab import Lab
from scripts.netlab.probes import udp

pytestmark = pytest.mark.lab
Address = tuple[str, int]


def seen(lab: Lab, sender: socket.socket, at: str) -> Address:
    """The address from which a datagram of `sender` arrives at a public node, which answers."""
    with udp(lab, at, 4600) as there:
        sender.sendto(b"hello", (lab.address(at), 4600))
        _, address = there.recvfrom(100)
        there.sendto(b"back", address)
        assert sender.recv(100) == b"back"
    host, port = address
    return str(host), int(port)


def tcp_ports(lab: Lab, node: str) -> set[int]:
    """The ports under which one TCP port of the node is seen by two public nodes."""
    ports = set()
    for at in ("p1", "p2"):
        with lab.inside(at):
            gate = socket.create_server(("0.0.0.0", 4700))
        with lab.inside(node):
            out = socket.socket()
        with gate, out:
            out.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            out.bind(("0.0.0.0", 5700))
            out.settimeout(5)
            out.connect((lab.address(at), 4700))
            back, (_, port) = gate.accept()
            back.close()
            ports.add(port)
    return ports


def test_a_cone_shows_every_destination_the_same_address(nat_lab: Lab) -> None:
    with udp(nat_lab, "cone", 5600) as sender:
        assert seen(nat_lab, sender, "p1") == seen(nat_lab, sender, "p2") == (nat_lab.address("cone"), 5600)
    assert tcp_ports(nat_lab, "cone") == {5700}


def test_a_symmetric_router_shows_each_destination_another(nat_lab: Lab) -> None:
    with udp(nat_lab, "sym", 5600) as sender:
        places = {seen(nat_lab, sender, at) for at in ("p1", "p2")}
    assert {host for host, _ in places} == {nat_lab.address("sym")}
    assert len(places) == 2
    assert len(tcp_ports(nat_lab, "sym")) == 2


def test_a_router_of_kind_none_translates_nothing(nat_lab: Lab) -> None:
    with udp(nat_lab, "open", 5600) as sender:
        assert seen(nat_lab, sender, "p1") == (nat_lab.own_address("open"), 5600)
    assert nat_lab.own_address("open") == nat_lab.address("open")


@pytest.mark.parametrize(("node", "comes_in"), [("cone", False), ("sym", False), ("open", True)])
def test_only_answers_come_in(nat_lab: Lab, node: str, comes_in: bool) -> None:
    with udp(nat_lab, node, 5601) as inner, udp(nat_lab, "p1") as first, udp(nat_lab, "p2") as stranger:
        inner.sendto(b"hello", (nat_lab.address("p1"), first.getsockname()[1]))
        stranger.sendto(b"unasked", first.recvfrom(100)[1])
        inner.settimeout(0.5)
        try:
            arrived = inner.recv(100)
        except TimeoutError:
            arrived = b""
        assert arrived == (b"unasked" if comes_in else b"")


def test_nodes_behind_routers_reach_public_ones_only(nat_lab: Lab) -> None:
    with nat_lab.inside("cone"), socket.socket() as out:
        out.settimeout(0.5)
        with pytest.raises(TimeoutError):
            out.connect((nat_lab.address("sym"), 4700))
