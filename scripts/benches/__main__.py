"""scripts/bench NAME [--json]: run one bench; the last line is one JSON object."""

import argparse
import importlib
import json
import pkgutil
import sys
from pathlib import Path

from scripts.benches.harness import environment

NOT_BENCHES = ("__main__", "harness", "held", "far")


def names() -> list[str]:
    here = [str(Path(__file__).parent)]
    return sorted(m.name for m in pkgutil.iter_modules(here) if m.name not in NOT_BENCHES)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Measure one thing.")
    parser.add_argument("name", nargs="?", choices=names(), help="what to measure: %(choices)s")
    parser.add_argument("--json", action="store_true", help="nothing but the JSON object on standard output")
    args = parser.parse_args()
    if args.name is None:
        print("\n".join(names()))
        return
    module = importlib.import_module(f"scripts.benches.{args.name}")
    if not args.json:
        print(module.__doc__.strip(), file=sys.stderr)
    print(json.dumps({"bench": args.name, "machine": environment(), **module.run()}))


if __name__ == "__main__":
    main()
