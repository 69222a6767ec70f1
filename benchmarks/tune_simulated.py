"""How well ways of choosing trials do on simulated clusters: ``python -m benchmarks.tune_simulated [--save]``.

On every cluster each policy has ten trials; no training command is run. A cluster is the cost model with constants
that the policies do not know (examples/simulated_cluster.py), with --misfit also with errors that no constant explains.
Records are kept in a file of JSON lines: a run that is stopped goes on where it was. With --save the tables go to
benchmarks/results/tune_simulated.md, of everything that the file holds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sys
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks import tune_report
from benchmarks.tune_policies import POLICIES, TASKS, TRIALS
from benchmarks.tune_study import DEEP, FAILURES, ITERATIONS, LEARNT, NOISE, Case, inputs, run_case
from cpsolver.evidence.posterior.misfit import load_spread

_RESULTS = Path(__file__).parent / "results"
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
Job = tuple[Case, tuple[str, ...], float | None]


def main() -> None:
    """Run what the file of records lacks, and print the tables."""
    asked = _parse()
    records = load(asked.records)
    jobs = missing(records, asked.clusters, asked.misfit, tuple(asked.policies.split(",")))
    with Path(asked.records).open("a", encoding="utf-8") as file:
        for found in _done(jobs, asked.jobs):
            records += found
            file.writelines(json.dumps(record) + "\n" for record in found)
            file.flush()
    text = report(records)
    print(text)
    if asked.save:
        (_RESULTS / "tune_simulated.md").write_text(text, encoding="utf-8")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=int, default=50, help="simulated clusters (default 50)")
    parser.add_argument("--misfit", action="store_true", help="with errors that no constant explains")
    parser.add_argument("--policies", default=",".join(POLICIES), help=f"of {', '.join(POLICIES)}, with commas")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--records", type=Path, default=Path("tune_simulated.jsonl"), help="file that is added to")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/tune_simulated.md")
    asked = parser.parse_args()
    if unknown := set(asked.policies.split(",")) - set(POLICIES):
        parser.error(f"--policies: {', '.join(sorted(unknown))}: allowed are {', '.join(POLICIES)}")
    return asked


def load(path: Path) -> list[dict[str, Any]]:
    """The records of a file; a last line that a stop cut short is none, nor are records of other inputs."""
    if not path.exists():
        return []
    whole = path.read_text(encoding="utf-8")
    lines = whole.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        path.write_text("".join(lines[:-1]), encoding="utf-8")
        lines = lines[:-1]
    records: list[dict[str, Any]] = [json.loads(line) for line in lines]
    known = [record for record in records if record["inputs"] == inputs(record["task"])]
    if len(known) < len(records):
        print(f"{path}: {len(records) - len(known)} records of other inputs are left aside", file=sys.stderr)
    return known


def missing(records: list[dict[str, Any]], clusters: int, misfit: bool, policies: tuple[str, ...]) -> list[Job]:
    """Clusters, the policies that have no record of them, and the best step time where a record has it."""
    best = {(record["misfit"], record["seed"]): record["best_s"] for record in records}
    known = {(record["misfit"], record["seed"], record["policy"]) for record in records}
    wanted = [
        (
            Case(seed, misfit),
            tuple(policy for policy in policies if (misfit, seed, policy) not in known),
            best.get((misfit, seed)),
        )
        for seed in range(clusters)
    ]
    return [job for job in wanted if job[1]]


def _done(jobs: list[Job], processes: int) -> Any:
    """The records of each job as it ends, with a bar on stderr."""
    from rich.console import Console
    from rich.progress import track

    if not jobs:
        return
    os.environ.update(dict.fromkeys(_THREADS, "1"))  # the processes are as many as the cores
    with multiprocessing.get_context("spawn").Pool(min(processes, len(jobs))) as pool:
        # neighbouring seeds are other tasks: those of one task share searches where they are in one process
        ordered = sorted(jobs, key=lambda job: job[0].task)
        found = pool.imap_unordered(_run, ordered)
        yield from track(found, "clusters", len(ordered), console=Console(stderr=True))


def _run(job: Job) -> list[dict[str, Any]]:
    return run_case(*job)


def report(records: list[dict[str, Any]]) -> str:
    """The tables as Markdown."""
    parts = ["# tune_simulated", _heading()]
    for misfit in (False, True):
        some = [record for record in records if record["misfit"] is misfit]
        if some:
            parts += _section(some, misfit)
    return "\n\n".join(parts) + "\n"


def _heading() -> str:
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    return f"""{date.today().isoformat()}, {machine}.
Simulated clusters, not measured ones: the cost model with constants drawn from the spreads of
cpsolver/profiles/calibrations/uncertain.yaml, those of step times {load_spread().scale} times as wide (spread.yaml).
Tasks in turn: {"; ".join(TASKS)}.
{TRIALS} trials of {ITERATIONS} iterations; step times scatter by {NOISE:.0%} from run to run and again in a run;
{FAILURES:.0%} of the runs fail whatever the plan, the same ones for every policy.

Regret: how much longer a step truly takes than with the fastest plan of all, with the plan that a policy settles for:
the one that measured best so far, or with thompson that which it believes to be the fastest of those measured.
While no trial has succeeded it counts as the worst of the table; "n without" counts these clusters.
thompson: `apss-cp tune` as it comes, which stops when little is left to gain; its regret then stays.
top-K: the plans of one exact search in order. random: layouts drawn evenly from those that the rules allow and the
planner believes fit, each with its best split of the layers. grid: tp, pp and mbs in nested loops, smallest first, the
planner deciding the rest of each. Who tunes by hand would skip much of what these two try.
CPU seconds are of choosing; in random and grid with searches that seeds share."""


def _section(records: list[dict[str, Any]], misfit: bool) -> list[str]:
    title = "## Constants and errors that no constant explains" if misfit else "## Constants alone"
    best = (
        "Levels of misfit are drawn as profiles/calibrations/spread.yaml has them. The fastest plan is not proven: it\n"
        f"is the fastest of the best {DEEP} without misfit and of all that any policy tried."
        if misfit
        else "The fastest plan is proven: an exact search with the true constants."
    )
    parts = [title, best, tune_report.regret_table(records), tune_report.share_table(records)]
    parts += [f"Mean regret after {LEARNT} trials, by task:", tune_report.task_table(records, LEARNT)]
    return [*parts, *filter(None, [tune_report.coverage_lines(records, LEARNT)])]


if __name__ == "__main__":
    main()
