"""`make attack`: attacks the planner and its doors, and says what was looked at and what must not be.

    python -m tools.attack [--plans N] [--inputs N] [--relations N] [--kills N] [--seed N]
    [--minutes M] [--jobs N] [--json FILE]

Ends with exit code 1 where anything was found. --plans 1 --inputs 0 --relations 0 --kills 0 --seed N shows attack N
again.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tools.attack.night import KINDS, run


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tools.attack", description=__doc__.splitlines()[0])
    defaults = {"plans": 10_000, "inputs": 20_000, "relations": 100, "kills": 100}
    for kind, count in defaults.items():
        what = "kills of each kind of process, and full disks" if kind == "kills" else f"attacks on {kind}"
        parser.add_argument(f"--{kind}", type=int, default=count, metavar="N", help=f"{what} ({count:,})")
    parser.add_argument("--seed", type=int, default=0, help="the first seed; the others follow (0)")
    parser.add_argument("--minutes", type=float, help="begin no more attacks after so many minutes")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (one a core)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write counts and findings as JSON, too")
    asked = parser.parse_args()
    report = run({kind: getattr(asked, kind) for kind in KINDS}, asked.seed, asked.minutes, asked.jobs)
    print(report.as_text())
    if asked.json:
        asked.json.write_text(report.as_json(), encoding="utf-8")
    sys.exit(1 if report.findings else 0)


if __name__ == "__main__":
    main()
