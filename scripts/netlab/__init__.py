"""A small internet in network namespaces: public nodes, nodes behind NAT routers, and links with delay, rate and loss.

    from scripts.netlab import Lab, NodeSpec, missing

    if missing():                                   # "" where a lab can run, else what is lacking
        pytest.skip(missing())
    with Lab.made([NodeSpec("p1", rtt_ms=50), NodeSpec("p2", rtt_ms=50), NodeSpec("n1", "cone", rtt_ms=50)]) as lab:
        lab.address("p1")                           # "44.1.0.1": where others reach p1; for n1 its router's address
        lab.enter("p1")                             # what a command line begins with to run on p1; files are shared,
                                                    # so a daemon's unix socket answers from everywhere
        with lab.inside("p1"): ...                  # the same for this thread: sockets made here stay on p1
        lab.traffic("p1")                           # bytes that its link has carried, both ways
        lab.block("n1"); lab.unblock("n1")          # its link swallows everything, then carries again

`public_nodes(3, rtt_ms=50)` is the usual list: p1, p2, p3, each 50 ms (there and back) from each other. All links meet
in one router, so a path crosses two links: the RTT of a pair is the mean of the `rtt_ms` of both, the rate is that of
the slower one, and each link drops its own share. Whatever runs in a lab is killed when the lab goes down.

Nothing leads out: the addresses 44.0.0.0/8 exist in these namespaces only. (They are outside of the private and
documentation ranges because libp2p ignores observed addresses in those.) Needs root, iproute2, iptables, /dev/net/tun.
"""

from scripts.netlab.lab import DEFAULT_PREFIX, Lab, LabError
from scripts.netlab.namespaces import missing
from scripts.netlab.topology import Kind, NodeSpec, public_nodes

__all__ = ["DEFAULT_PREFIX", "Kind", "Lab", "LabError", "NodeSpec", "missing", "public_nodes"]
