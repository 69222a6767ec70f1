"""Writes frozen/*.json anew: ``python -m tests.net.freeze [KIND …]``. Says what differs from what was frozen."""

from __future__ import annotations

import json
import resource
import sys
import time

from tests.net.answers import FROZEN, ask, differences, dumped, load
from tests.net.cases import cases


def main() -> None:
    """Ask every question of the kinds given (default: all) and write the answers; CPU seconds go to stderr."""
    every = cases()
    for kind in sys.argv[1:] or sorted({case.kind for case in every}):
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
