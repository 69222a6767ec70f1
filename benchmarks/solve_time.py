"""How long whole solves take: ``python -m benchmarks.solve_time [--only W1,W4] [--repeat 3] [--save]``.

Each workload is solved by the command line in a process of its own, start-up and imports included. CPU seconds and
peak memory are the operating system's count of that process. With --save the table goes to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.workloads import BALANCE, HARD, HARDEST, WORKLOADS

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Run:
    """One workload's figures: the solver's account and the process's."""

    name: str
    status: str
    step_time_s: float | None
    proof: dict[str, Any]
    cpu_s: float
    memory_mb: float


def run(name: str, spec: dict[str, Any], repeat: int) -> Run:
    """Solve a spec `repeat` times; CPU seconds are the median, memory the largest."""
    document: dict[str, Any] = {}
    seconds, memory = [], []
    for _ in range(repeat):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            json.dump(spec, file)
            file.flush()
            document, usage = _solve(file.name)
        seconds.append(usage.ru_utime + usage.ru_stime)
        memory.append(usage.ru_maxrss / 1024)
    plans = document["plans"]
    step = plans[0]["step_time_s"] if plans else None
    return Run(name, document["status"], step, document["proof"], statistics.median(seconds), max(memory))


def _solve(path: str) -> tuple[dict[str, Any], resource.struct_rusage]:
    command = [sys.executable, "-m", "cli", "solve", path, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 3):
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return json.loads(output), usage


def table(runs: list[Run]) -> str:
    """The runs as a Markdown table."""
    lines = [
        "| workload | status | step s | candidates | by rules | no memory | by bound | solved | CP-SAT | gap "
        "| CPU s | solver s | MB |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in runs:
        proof = one.proof
        step = "" if one.step_time_s is None else f"{one.step_time_s:.3f}"
        counts = [proof["considered"], sum(proof["refused"].values()), proof["memory"], proof["bounded"]]
        cells = [one.name, one.status, step, *(f"{count:,}" for count in counts), f"{proof['solved']:,}"]
        gap = "0" if proof["stop"] == "complete" else "open"
        cells += [f"{proof['solver_calls']:,}", gap, f"{one.cpu_s:.2f}", f"{proof['solver_seconds']:.2f}"]
        lines.append("| " + " | ".join([*cells, f"{one.memory_mb:.0f}"]) + " |")
    return "\n".join(lines)


def heading() -> str:
    """Date, machine and versions."""
    from importlib.metadata import version

    cores = os.cpu_count()
    return (
        f"{date.today().isoformat()}, {platform.machine()}, {cores} cores, Python {platform.python_version()}, "
        f"OR-tools {version('ortools')}, numpy {version('numpy')}"
    )


def main() -> None:
    """Run the workloads asked for and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names of workloads, separated by commas")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each but the hard ones; the median is shown")
    parser.add_argument("--save", action="store_true", help="write the table to benchmarks/results/solve_time.md")
    arguments = parser.parse_args()
    every = {**WORKLOADS, **BALANCE, **HARD, **HARDEST}
    names = arguments.only.split(",") if arguments.only else [name for name in every if name not in HARDEST]
    runs = []
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        runs.append(run(name, every[name], 1 if name in {**HARD, **HARDEST} else arguments.repeat))
    text = f"{heading()}\n\n{table(runs)}\n"
    print(text)
    if arguments.save:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "solve_time.md").write_text("# solve_time\n\n" + text, encoding="utf-8")


if __name__ == "__main__":
    main()
