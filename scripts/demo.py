"""Three daemons on this machine share the embedded model, answer three prompts, and agree with a lone process.

scripts/demo            set up, run, stop everything
scripts/demo --keep     leave the three daemons running and say how to talk to them
"""

import argparse
import signal
import sys
import time

from rich.console import Console
from rich.live import Live

from glossd.cli.canvas import frame
from glossd.events import Done, Error, HaltedEvent, Plan, Step
from tests.swarmlab.daemons import Daemon, swarm

PROMPTS: tuple[dict[str, object], ...] = (
    {"chat": "What is 234 + 87?"},
    {"chat": "Solve this 6x6 sudoku: 1..243/3....5/2.15../....1./..5..6/62...."},
    {"chat": "Tell a story about a fox.", "temperature": 0.8, "seed": 7},
)


def ask(daemon: Daemon, body: dict[str, object], console: Console) -> Done:
    done: Done | None = None
    with Live(console=console, transient=False, refresh_per_second=30) as live:
        for event in daemon.client.events(body):
            if isinstance(event, Plan | Step):
                live.update(frame(event, console))
            if isinstance(event, Error | HaltedEvent):
                raise SystemExit(f"the swarm failed: {event.message}")
            if isinstance(event, Done):
                done = event
    if not console.is_terminal:
        console.print()
    if done is None:
        raise SystemExit("the daemon closed the connection in the middle of an answer")
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="leave the daemons running until Ctrl-C")
    keep = parser.parse_args().keep
    console = Console()
    console.print("[bold]1.[/] A lone process answers first, as the reference.")
    with swarm("0:8") as (lone,):
        want = [next(e for e in lone.client.events(body) if isinstance(e, Done)).token_ids for body in PROMPTS]
    console.print("[bold]2.[/] Three daemons, each with a third of the model, joined over libp2p.")
    began = time.monotonic()
    with swarm("0:3", "3:6", "6:8") as nodes:
        for node in nodes:
            status = node.status()
            console.print(f"   …{status.peer[-8:]} hosts parts {status.span} of 0:{status.n_parts}")
        console.print(f"   every part covered after {time.monotonic() - began:.1f} s")
        same = True
        for body, tokens in zip(PROMPTS, want, strict=True):
            console.print(f"\n[bold]>[/] {body['chat']}")
            done = ask(nodes[0], body, console)
            same = same and done.token_ids == tokens
            chain = ", ".join(f"…{peer[-8:]}" for peer in done.peers)
            verdict = "[green]same tokens as the lone process[/]" if done.token_ids == tokens else "[red]DIFFERENT[/]"
            console.print(
                f"   {done.timings.steps} steps, {done.timings.passes} passes, {done.timings.decode_s:.2f} s, "
                f"peers {chain}: {verdict}"
            )
        if keep:
            console.print(f"\nTry:  .venv/bin/glossd prompt 'Sort: 5 3 9 1' --socket {nodes[0].socket}")
            console.print("Ctrl-C stops all three.")
            signal.sigwait({signal.SIGINT, signal.SIGTERM})
    if not same:
        sys.exit(1)


if __name__ == "__main__":
    main()
