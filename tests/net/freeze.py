"""Writes frozen/*.json anew: ``python -m tests.net.freeze [KIND …]``. Says what differs from what was frozen."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time

from tests.net.answers import FROZEN, ask, differences, dumped, load
from tests.net.cases import cases


def main() -> None:
    """Ask every question of the kinds given (default: all) and write the answers; CPU seconds go to stderr."""
    every = cases()
    kinds = sorted({case.kind for case in every})
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"any of {', '.join(kinds)}; all without one")
    asked = parser.parse_args().kinds
    if unknown := set(asked) - set(kinds):
        parser.error(f"no kind of questions: {', '.join(sorted(unknown))} (there are {', '.join(kinds)})")
    for kind in asked or kinds:
        answers, seconds = {}, {}
        for case in every:
            if case.kind == kind:
                started = time.process_time()
                answers[case.name] = json.loads(dumped(ask(case)))
                seconds[case.name] = time.process_time() - started
        path = FROZEN / f"{kind}.json"
        if path.exists():
            for line in differences(load(kind), answers, kind):
                print(line)
        path.write_text(dumped(answers) + "\n", encoding="utf-8")
        slowest = sorted(seconds, key=lambda name: -seconds[name])[:8]
        told = ", ".join(f"{name} {seconds[name]:.1f}" for name in slowest if seconds[name] > 0.5)
        print(f"{kind}: {len(answers)} answers, {sum(seconds.values()):.1f} CPU s ({told})", file=sys.stderr)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(f"{usage.ru_utime + usage.ru_stime:.1f} CPU s in all", file=sys.stderr)


if __name__ == "__main__":
    main()
