"""How far hard specs get: ``python -m benchmarks.hard [--only h1,m4] [--most 120] [--save]``.

Each spec is searched in a process of its own, and once more for what the recommendation looks for. CPU seconds count
from the spec to the end of the search, imports left out; gaps are what the best plan known at that time might still
lose. Memory is the operating system's count of the process. With --save the table goes to benchmarks/results/hard.md.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from benchmarks.solve_time import RESULTS, heading
from benchmarks.workloads import TWENTY

_ASKED_S = (10.0, 60.0)
"""CPU seconds after which a gap is shown."""
_MOST_BYTES = 6 * 2**30
"""Address space of a process that is measured: more ends it."""


@dataclass(frozen=True)
class Run:
    """What became of one spec: `search_s` and `all_s` are CPU seconds of the search, and with the recommendation."""

    name: str
    status: str
    stop: str
    first_s: float | None
    search_s: float
    all_s: float
    peak_mib: int
    gaps: tuple[float | None, ...]
    best: tuple[float, ...]


class _Watch:
    """Listens to a search: when it knew its first plan, how far its bound was, and when it is to be stopped."""

    def __init__(self, most_s: float) -> None:
        self._began, self._most_s = time.process_time(), most_s
        self.first_s: float | None = None
        self._gap: float | None = None
        self._gaps: list[float | None] = []

    @property
    def cpu_s(self) -> float:
        return time.process_time() - self._began

    def __call__(self, progress: Any) -> None:
        used = self.cpu_s
        self._gaps += [self._gap] * sum(used >= asked for asked in _ASKED_S[len(self._gaps) :])
        if progress.plans and self.first_s is None:
            self.first_s = used
        self._gap = max(0.0, 1.0 - progress.bound_s / progress.best_s) if isfinite(progress.best_s) else None
        if used > self._most_s:
            raise KeyboardInterrupt

    def gaps(self, last: float | None) -> tuple[float | None, ...]:
        """The gaps when they were asked for; after the end that of the answer."""
        return (*self._gaps, *[last] * (len(_ASKED_S) - len(self._gaps)))


def measure(name: str, spec: Mapping[str, Any], most_s: float) -> Run:
    """Search one spec in this process, for no more than so many CPU seconds."""
    from cpsolver.explanation.recommendation import recommend
    from cpsolver.problem.resolve import resolve
    from cpsolver.search.search import search
    from cpsolver.search.space import Spaces
    from cpsolver.spec.spec import parse_spec

    problem = resolve(parse_spec(spec))
    watch, spaces = _Watch(most_s), Spaces()
    result = search(problem, watch, spaces=spaces)
    search_s = watch.cpu_s
    gaps = watch.gaps(result.plans[0].gap if result.plans else None)
    best = tuple(plan.evaluation.step_time_s for plan in result.plans[:3])
    recommend(problem, result, spaces)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return Run(name, result.status, result.proof.stop, watch.first_s, search_s, watch.cpu_s, peak, gaps, best)


def _apart(name: str, most_s: float) -> Run | None:
    """The same in a process of its own; None where that broke, by too little memory say."""
    command = [sys.executable, "-m", "benchmarks.hard", "--one", name, "--most", str(most_s)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    return Run(**json.loads(done.stdout)) if done.returncode == 0 else None


def table(runs: Mapping[str, Run | None]) -> str:
    """The runs as a Markdown table."""
    lines = [
        "| spec | what | status | CPU s | with roles | first plan, CPU s | gap at 10 s | gap at 60 s | MiB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, run in runs.items():
        cells = [name, described(TWENTY[name])]
        if run is None:
            cells += ["broke", *[""] * 6]
        else:
            first = "" if run.first_s is None else f"{run.first_s:.1f}"
            cells += [run.status, f"{run.search_s:.1f}", f"{run.all_s:.1f}", first]
            cells += ["no plan" if gap is None else f"{gap:.1%}" for gap in run.gaps] + [f"{run.peak_mib:,}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def described(spec: Mapping[str, Any]) -> str:
    """A spec in a few words."""
    cluster, training, search = spec["cluster"], spec["training"], spec.get("search", {})
    chips = cluster["chips"]
    chips = chips if isinstance(chips, str) else ", ".join(f"{count:,} {name}" for name, count in chips.items())
    words = [f"{spec['model']}, {cluster['num_gpus']:,} of {chips}", f"sequence {training['sequence_length']:,}"]
    words += ["idle"] * bool(cluster.get("idle"))
    words += [f"{name} {value}" for name, value in search.items() if name != "deadline"]
    return "; ".join(words)


def main() -> None:
    """Run the specs asked for and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names of specs, separated by commas")
    parser.add_argument("--most", type=float, default=120.0, help="CPU seconds after which a search is stopped")
    parser.add_argument("--save", action="store_true", help="write the table to benchmarks/results/hard.md")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
        print(json.dumps(asdict(measure(arguments.one, TWENTY[arguments.one], arguments.most))))
        return
    runs: dict[str, Run | None] = {}
    for name in arguments.only.split(",") if arguments.only else TWENTY:
        runs[name] = _apart(name, arguments.most)
        print(f"{name}: {runs[name]}", file=sys.stderr, flush=True)
    text = f"{heading()}\n\n{table(runs)}\n"
    print(text)
    if arguments.save:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "hard.md").write_text("# hard\n\n" + text, encoding="utf-8")


if __name__ == "__main__":
    main()
