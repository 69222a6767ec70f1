"""Published runs beside a plan: the nearest ones, and what of the plan no run has had.

The runs come from nearest_runs.csv, the table of published runs with what a report needs of it and the predictions of
those that the cost model can judge (benchmarks/fit_risk.py writes it): reading the whole table takes too long here.
"""

from __future__ import annotations

import csv
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from math import log2, prod
from pathlib import Path
from typing import Any

from cpsolver.evidence.intervals import kind_of
from cpsolver.evidence.reach import beyond_runs
from cpsolver.inputs.language import say
from cpsolver.plans.dimensions import CUTS, OF_DEVICES
from cpsolver.plans.strategy import StageGroup, Strategy
from cpsolver.problem.problem import Problem
from models_zoo import total_parameters

NEAREST = Path(__file__).parent / "runs" / "nearest_runs.csv"
MOST = 3
"""So many runs stand beside a plan."""
_MAY_LACK = ("predicted_s", "measured_gib", "predicted_gib")


@dataclass(frozen=True)
class PublishedRun:
    """A published run. `stack` is empty where its framework is unknown or its layout beyond the cost model; what was
    predicted, or not measured, is None where there is nothing. `parameters` 0: not known.
    """

    id: str
    model: str
    parameters: float
    stack: str
    architecture: str
    chip: str
    experts: bool
    devices: int
    sequence: int
    tp: int
    pp: int
    cp: int
    ep: int
    vpp: int
    measured_s: float
    predicted_s: float | None = None
    measured_gib: float | None = None
    predicted_gib: float | None = None

    @classmethod
    def columns(cls) -> list[str]:
        """Of the file."""
        return [field.name for field in fields(cls)]

    def cells(self) -> list[str]:
        """Its row of the file."""
        values = [getattr(self, name) for name in self.columns()]
        return ["" if value is None else str(int(value) if isinstance(value, bool) else value) for value in values]


@cache
def published_runs() -> tuple[PublishedRun, ...]:
    """All runs of the file."""
    with NEAREST.open(encoding="utf-8", newline="") as file:
        return tuple(_read(row) for row in csv.DictReader(file))


def _read(row: dict[str, str]) -> PublishedRun:
    values: dict[str, Any] = dict(row)
    values |= {name: int(row[name]) for name in ("devices", "sequence", *CUTS)}
    values |= {name: float(row[name]) for name in ("parameters", "measured_s")}
    values |= {name: float(row[name]) if row[name] else None for name in _MAY_LACK}
    return PublishedRun(**{**values, "experts": row["experts"] == "1"})


def nearest_runs(problem: Problem, strategy: Strategy) -> list[PublishedRun]:
    """The predicted runs most like a plan, at most MOST: of the same kind of model, stack and architecture of chips
    first, then nearest in doublings of the model's size, the degrees, the devices and the sequence.
    """
    size, experts = total_parameters(problem.model), kind_of(problem) == "experts"
    architectures = _architectures(problem, strategy)

    def distance(run: PublishedRun) -> tuple[int, float, str]:
        unlike = (run.experts != experts) + (run.stack != problem.stack.name) + (run.architecture not in architectures)
        apart = sum(abs(log2(getattr(run, name) / getattr(strategy, name))) for name in CUTS)
        apart += abs(log2(run.parameters / size)) + abs(log2(run.sequence / problem.sequence))
        return unlike, apart + abs(log2(run.devices / strategy.devices)), run.id

    return sorted((run for run in published_runs() if run.predicted_s and run.parameters), key=distance)[:MOST]


def unmeasured(problem: Problem, strategy: Strategy) -> list[str]:
    """What of a plan no published run has had, in words; none where all of it lies within what was measured."""
    return [*beyond_runs(problem, strategy), *_pairs(problem, strategy)]


def unmeasured_values(problem: Problem) -> dict[str, range]:
    """Degree -> its values, from some number on, that no published run has had where it was like the problem.

    What lies beyond all runs in any case is left out: a new kind of chip, say, or what is pinned.
    """
    model, found = problem.model, dict[str, range]()
    experts = 1 if model.moe is None else model.moe.experts
    cp = min(problem.sequence, problem.num_gpus)
    most = {"tp": model.heads, "cp": cp, "pp": model.layers, "vpp": model.layers, "ep": experts}
    plain, always = _plain(problem), _always(problem)
    for name in (name for name in CUTS if getattr(problem.spec.search.pin, name) is None):

        def beyond(value: int, name: str = name) -> bool:
            dp = max(1, problem.num_gpus // value) if name in OF_DEVICES else problem.num_gpus
            sizes: dict[str, Any] = {"dp": dp, name: value}
            return len(unmeasured(problem, replace(plain, **sizes))) > always

        values = range(1, most[name] + 1)
        if left := values[bisect_left(values, True, key=beyond) :]:
            found[name] = left
    return found


def avoidable(problem: Problem, strategy: Strategy) -> int:
    """How much of what no run has had a plan could do without."""
    return max(0, len(unmeasured(problem, strategy)) - _always(problem))


def _always(problem: Problem) -> int:
    """How much no run has had of any plan of the problem: of its chips, say, its sequences or what is pinned."""
    return len(unmeasured(problem, _plain(problem)))


def _plain(problem: Problem) -> Strategy:
    """Data parallelism alone, but for what is pinned, on all the chip types."""
    groups = tuple(StageGroup(supply.name, (1,)) for supply in problem.supplies)
    pinned = {name: min(getattr(problem.spec.search.pin, name) or (1,)) for name in CUTS}
    dp = max(1, problem.num_gpus // prod(pinned[name] for name in OF_DEVICES if name in pinned))
    sizes: dict[str, Any] = {**pinned, "dp": dp, "mbs": 1}
    return Strategy(**sizes, sequence_parallel=False, distributed_optimizer=True, flash_attention=True, groups=groups)


def _pairs(problem: Problem, strategy: Strategy) -> Iterator[str]:
    """What was measured one by one, and not together."""
    runs, experts = published_runs(), kind_of(problem) == "experts"
    names = list(dict.fromkeys(strategy.stage_chips))
    if len(names) > 1:
        yield say("a pipeline over several chip types")
    if strategy.unequal:
        yield say("chip types with degrees of their own")
    if strategy.dynamic:
        yield say("microbatches of different sizes")
    for name in _architectures(problem, strategy):
        there = [run for run in runs if run.architecture == name]
        if not there:
            yield say("a chip of the kind {name}", name=name)
        elif not any(run.stack == problem.stack.name for run in there):
            yield say("{stack} on {kind}", stack=problem.stack.name, kind=name)
        elif not any(run.stack == problem.stack.name and run.experts == experts for run in there):
            yield say(
                "{experts} with {stack} on {kind}",
                experts=say("experts") if experts else say("dense models"),
                stack=problem.stack.name,
                kind=name,
            )
        if there and strategy.cp > 1 and not any(run.cp > 1 for run in there):
            yield say("cp on {name}", name=name)
    alike = [run for run in runs if run.experts == experts]
    if strategy.cp > 1 and not any(run.cp >= strategy.cp and run.sequence <= problem.sequence for run in alike):
        yield say("cp {cp} at {sequence:,} tokens", cp=strategy.cp, sequence=problem.sequence)


def _architectures(problem: Problem, strategy: Strategy) -> list[str]:
    chips = [problem.supply(name).chip for name in dict.fromkeys(strategy.stage_chips)]
    return list(dict.fromkeys(chip.architecture or chip.name for chip in chips))
