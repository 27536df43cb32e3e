"""scripts/lab: make, look at, use and remove a lab from a shell."""

import argparse
import json
import os
import sys
from dataclasses import asdict

from scripts.netlab import namespaces
from scripts.netlab.lab import DEFAULT_PREFIX, Lab, down
from scripts.netlab.topology import NodeSpec, public_nodes

ABOUT = """A small internet in network namespaces of this machine, to try glossd behind NAT routers and over slow links.

  scripts/lab up --public 3 --nat cone --nat symmetric --rtt 50
  scripts/lab status
  scripts/lab exec p1 .venv/bin/glossd run --host 44.1.0.1 --port 4001 --state-dir /tmp/p1 --socket /tmp/p1.sock
  scripts/lab block n1
  scripts/lab down

Public nodes are p1, p2, ..., nodes behind routers n1, n2, .... Needs root, iproute2, iptables and /dev/net/tun.
docs/lab.md tells more."""

KINDS = """cone: one port for all destinations, only answers come in. symmetric: another port for each destination.
none: a router that translates and filters nothing"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        "scripts/lab", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument("--prefix", default=DEFAULT_PREFIX, help="of the namespaces' names; one lab each [%(default)s]")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="make a lab")
    up.add_argument("--public", type=int, default=0, metavar="N", help="nodes with a public address")
    up.add_argument("--nat", action="append", default=[], metavar="KIND", choices=["cone", "symmetric", "none"],
                    help=f"a node behind a router of that kind; may be repeated. {KINDS}")  # fmt: skip
    up.add_argument("--rtt", type=float, default=0, metavar="MS", help="there and back between two nodes [0]")
    up.add_argument("--rate", type=float, default=0, metavar="MBIT", help="of each link, each way [no limit]")
    up.add_argument("--loss", type=float, default=0, metavar="SHARE", help="of packets, on each link, each way [0]")
    up.add_argument("--jitter", type=float, default=0, metavar="MS", help="the most that chance adds, each way [0]")
    up.add_argument("--link", action="append", default=[], metavar="NODE:KEY=VALUE,...",
                    help="rtt, rate, loss or jitter of one node's link, as p2:rtt=200,rate=20; may be repeated. "
                         "The RTT of a pair is the mean of both")  # fmt: skip
    status = commands.add_parser("status", help="nodes, addresses, links and what runs there")
    status.add_argument("--json", action="store_true", help="one JSON object")
    within = commands.add_parser("exec", help="run a command on a node; NODE-router and core are places, too")
    within.add_argument("node")
    within.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND")
    for name, text in (("block", "let a node's link swallow all packets"), ("unblock", "let them through again")):
        commands.add_parser(name, help=text).add_argument("node")
    commands.add_parser("down", help="remove the lab and end all that runs there, also what a crash left")
    return top


def specs(args: argparse.Namespace) -> list[NodeSpec]:
    """The nodes that the options of `up` describe. Raises ValueError."""
    nodes = public_nodes(args.public, args.rtt, args.rate, args.loss, args.jitter)
    nodes += [
        NodeSpec(f"n{i}", kind, args.rtt, args.rate, args.loss, args.jitter) for i, kind in enumerate(args.nat, 1)
    ]
    if not nodes:
        raise ValueError("a lab of nothing: give --public N, --nat KIND, or both")
    for text in args.link:
        name, _, values = text.partition(":")
        at = next((i for i, node in enumerate(nodes) if node.name == name), None)
        if at is None:
            raise ValueError(f"--link {text}: no node {name}; there are {', '.join(node.name for node in nodes)}")
        nodes[at] = NodeSpec(**{**asdict(nodes[at]), **dict(_setting(text, pair) for pair in values.split(","))})
    return nodes


def _setting(text: str, pair: str) -> tuple[str, float]:
    key, _, value = pair.partition("=")
    fields = {"rtt": "rtt_ms", "rate": "rate_mbit", "loss": "loss", "jitter": "jitter_ms"}
    try:
        return fields[key], float(value)
    except (KeyError, ValueError):
        raise ValueError(f"--link {text}: {pair!r} is none of rtt=MS, rate=MBIT, loss=SHARE, jitter=MS") from None


def show(lab: Lab, as_json: bool) -> None:
    stale = lab.is_stale()
    nodes = [
        {
            **asdict(node),
            "address": lab.address(node.name),
            "own_address": lab.own_address(node.name),
            "traffic_bytes": 0 if stale else lab.traffic(node.name),
            "processes": 0 if stale else len(namespaces.pids(lab.namespace(node.name))),
        }
        for node in lab.nodes
    ]
    if as_json:
        print(json.dumps({"prefix": lab.prefix, "stale": stale, "nodes": nodes}))
        return
    print(f"lab {lab.prefix}" + (": STALE, its links or its owner are gone; take it down" if stale else ""))
    row = "{:<9}{:<11}{:<15}{:<15}{:>8}{:>10}{:>8}{:>12}{:>11}"
    print(row.format("node", "kind", "seen as", "own", "rtt ms", "rate Mbit", "loss", "bytes", "processes"))
    for node in nodes:
        values = [node[k] for k in ("name", "kind", "address", "own_address")]
        numbers = [f"{node[k]:g}" for k in ("rtt_ms", "rate_mbit", "loss")]
        print(row.format(*values, *numbers, node["traffic_bytes"], node["processes"]))


def main() -> None:
    top = parser()
    args = top.parse_args()
    try:
        if args.command == "up":
            show(Lab.up(specs(args), args.prefix), as_json=False)
        elif args.command == "down":
            down(args.prefix)
        else:
            use(Lab.found(args.prefix), args)
    except ValueError as error:
        top.error(str(error))
    except RuntimeError as error:
        sys.exit(f"scripts/lab: {error}")


def use(lab: Lab, args: argparse.Namespace) -> None:
    if args.command == "status":
        show(lab, args.json)
        sys.exit(int(lab.is_stale()))
    elif args.command == "exec":
        words = args.words[1:] if args.words[:1] == ["--"] else args.words
        if not words:
            raise ValueError("exec: which command?")
        os.execvp("ip", [*lab.enter(args.node), *words])
    elif args.command == "block":
        lab.block(args.node)
    else:
        lab.unblock(args.node)


if __name__ == "__main__":
    main()
