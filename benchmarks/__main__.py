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


def run(title: str, script: str, *arguments: str) -> int:
    print(f"\n== {title}\n   python benchmarks/{script} {' '.join(arguments)}", flush=True)
    return subprocess.run([sys.executable, str(HERE / script), *arguments], check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--referee", help="folder of truthd.c, limitc.c and score.py")
    parser.add_argument("--statistics", action="store_true", help="the intervals and verdicts as well: some ten minutes")
    arguments = parser.parse_args()
    codes = [run("The client against a server of known truth", "client.py", "--runs", "3")]
    if arguments.referee:
        codes.append(run("The client against the referee", "client.py", "--referee", arguments.referee, "--slope", "2"))
    codes.append(run("Decoding", "decode.py"))
    codes.append(run("The embedded engine over HTTP", "embedded.py"))
    codes.append(run("The embedded engine in virtual time", "simulate.py"))
    if arguments.statistics:
        print("\n== Intervals, false alarms and power\n   python -m benchmarks.statistics", flush=True)
        codes.append(subprocess.run([sys.executable, "-m", "benchmarks.statistics"], cwd=HERE.parent, check=False).returncode)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
