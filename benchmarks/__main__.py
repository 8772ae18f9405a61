"""`make bench`: what the tool costs and how wrong it is, one benchmark after the other. Times belong here, not in tests.

    python -m benchmarks                  everything that needs nothing but this machine
    python -m benchmarks --referee DIR    the client against an independent server of known truth as well (see client.py)

Run it on an idle machine: each part needs both of two cores. Each benchmark can also be run by itself.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def run(title: str, name: str, *arguments: str) -> int:
    print(f"\n== {title}\n   python -m benchmarks.{name} {' '.join(arguments)}".rstrip(), flush=True)
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    return subprocess.run(command, cwd=HERE.parent, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--referee", type=Path, help="folder of truthd.c, limitc.c and score.py")
    parser.add_argument("--statistics", action="store_true", help="the intervals and verdicts as well: some ten minutes")
    arguments = parser.parse_args()
    codes = [run("The client against a server of known truth", "client", "--runs", "3")]
    if arguments.referee:
        referee = str(arguments.referee.resolve())
        codes.append(run("The client against the referee", "client", "--referee", referee, "--slope", "2"))
    codes.append(run("Decoding", "decode"))
    codes.append(run("The embedded engine over HTTP", "embedded"))
    codes.append(run("The embedded engine in virtual time", "simulate"))
    codes.append(run("Reports", "report"))
    if arguments.statistics:
        codes.append(run("Intervals, false alarms and power", "statistics"))
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
