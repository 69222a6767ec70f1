"""Writes docs/chances.md: whether the chances of evidence/chances.py come true on published runs, publishers left out.

    python -m benchmarks.chances

Memory: each run's peak against cards whose size lies at given chances of its predicted peak, by the errors of all other
publishers. Order: every pair of layouts of one task, predicted without the task's publisher in constants and chances.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks.accuracy import table
from benchmarks.fit_risk import AS_OTHERS, FEWEST, Reading, Task, fit_memory, fit_order, readings, tasks
from cpsolver.evidence.chances import below, load_risk
from cpsolver.evidence.runs.table import PUBLISHED, read_runs
from cpsolver.evidence.runs.validation import predict, validate

OUTPUT = Path(__file__).parents[1] / "docs" / "chances.md"
GIVEN = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
"""Chances of running out for which cards are made up."""
SAID = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
"""Ends of the classes of what is said of the likelier layout of a pair."""
TOP = """\
# Chances

Beside each plan stand two chances. This page shows whether they come true on published runs. Chances of a publisher's
runs are always computed without any run of that publisher. Written by `python -m benchmarks.chances`; what the chances
rest on (`cpsolver/profiles/calibrations/risk.yaml`) by `python -m benchmarks.fit_risk`.

**P(out of memory)** (`out_of_memory_probability`): that the fullest stage needs more than all of its device's memory;
the margin (`cluster.memory_margin`) is room that the error may use. The error is that of readings of published runs,
log(measured / predicted), as Student's t with four degrees of freedom. There are two kinds of readings: a framework's
own count, which the model knows well, and a device's meter, which also shows what the allocator keeps. What a plan
needs lies between them, so its chance is the mean of what the two say. A stack with {fewest} readings or more of a kind
of model has errors of its own, in which all others together weigh as much as {others}. Runs of your own
(`apss-cp calibrate`) narrow the error by as much as they narrow the constants of memory. Not in it: sequences of uneven
length, experts' routing that is not balanced, other jobs on the device, memory that grows over days.

**P(fastest)** (`probability_fastest`; `P(cheapest)` with that objective): that a plan is truly the best of those
printed. What is wrong with all plans of a problem alike is left out. What remains between two of them has the scale
sqrt(own² + shares² · d²): `own` is each plan's, d the distance between the shares that the parts of the step (compute,
communication, bubble and so on) have in the two, and `shares` says how much more is unsure for it. Two plans with the
same breakdown differ by `own` alone; one that trades communication for bubble is less sure. With several plans, the
same errors are drawn 20,000 times.

What to hold against the tables: no row of the table of runs ran out of memory, so cards are made up; the few constants
of memory were fitted to all readings, and only the errors leave a publisher out; nine readings are of models with
experts; three quarters of the pairs of layouts are one publisher's; and what is said to be nearly certain of an order
holds some nine times in ten.
"""


def main() -> None:
    """Predict, judge, write."""
    found = read_runs(PUBLISHED)
    validation = validate(found.runs, predict, troubles=found.troubles)
    lines = [*_memory(readings(validation)), *_order(tasks(validation)), *_constants()]
    top = TOP.format(fewest=FEWEST, others=f"{AS_OTHERS:.0f}")
    OUTPUT.write_text("\n".join([top, *lines]) + "\n", encoding="utf-8")
    print(f"wrote docs/{OUTPUT.name}")


def chance_above(one: Reading, others: Sequence[Reading]) -> float:
    """How likely a reading as high as this one, or higher, is said to be by others."""
    groups = fit_memory(others)[one.kind]
    error = groups.get(one.group, groups[one.model])
    return 1.0 - below((one.off - error.middle) / error.scale)


def _memory(found: Sequence[Reading]) -> Iterator[str]:
    """A card at chance c of the predicted peak is too small exactly where the reading's own chance is below c."""
    whose = sorted({one.publisher for one in found})
    chances: dict[str, list[float]] = {"count": [], "meter": []}
    weights: dict[str, list[float]] = {"count": [], "meter": []}
    for publisher in whose:
        others = [one for one in found if one.publisher != publisher]
        mine = [one for one in found if one.publisher == publisher]
        for one in mine:
            chances[one.kind].append(chance_above(one, others))
            weights[one.kind].append(1.0 / len(mine))
    every, weight = [*chances["count"], *chances["meter"]], [*weights["count"], *weights["meter"]]
    yield "## Running out of memory"
    yield ""
    yield (
        f"{len(found)} readings of {len(whose)} publishers, each against made-up cards. Given: the chance of running\n"
        "out by the other publishers' errors. Ran out: the share of rows whose measured peak is above the card; by\n"
        "publisher: each counts the same, however many rows it has (two have one or two)."
    )
    yield ""
    rows = []
    for given in GIVEN:
        shares = [_share(given, chances[kind]) for kind in ("count", "meter")]
        by_publisher = np.average([each < given for each in every], weights=weight)
        rows.append([_per_cent(given), *map(_per_cent, [_share(given, every), *shares, float(by_publisher)])])
    heads = ("given", "ran out", "… frameworks' counts", "… devices' meters", "… by publisher")
    yield from table(heads, rows)
    yield ""


def _share(given: float, chances: Sequence[float]) -> float:
    return fmean(each < given for each in chances)


@dataclass(frozen=True)
class Pair:
    """Two layouts of a task: the chance said that the first is faster, and whether it was."""

    said: float
    was: bool
    publisher: str

    @property
    def brier(self) -> float:
        """The squared error of the chance."""
        return (self.said - self.was) ** 2

    @property
    def likelier(self) -> float:
        """What is said of the layout predicted faster."""
        return max(self.said, 1.0 - self.said)

    @property
    def right(self) -> bool:
        """The layout predicted faster was."""
        return (self.said > 0.5) == self.was


def pairs_of(found: Sequence[Task]) -> list[Pair]:
    """All pairs of layouts, each task's publisher left out of what its chances rest on."""
    pairs = []
    for publisher in sorted({task.publisher for task in found}):
        error = fit_order([task for task in found if task.publisher != publisher])
        for task in (task for task in found if task.publisher == publisher):
            for one, other in combinations(range(len(task.measured)), 2):
                scale = error.scale(task.shares[one], task.shares[other])
                said = below(float(task.predicted[other] - task.predicted[one]) / scale)
                pairs.append(Pair(said, bool(task.measured[one] < task.measured[other]), publisher))
    return pairs


def _order(found: Sequence[Task]) -> Iterator[str]:
    pairs = pairs_of(found)
    yield "## Which layout is faster"
    yield ""
    yield (
        f"{len(pairs)} pairs of layouts of {len(found)} tasks, each predicted without its publisher. The Brier score\n"
        "is the mean square of (chance − what happened): 0.25 for a coin; for the plain order, which is always\n"
        "certain, the share of pairs that it has wrong."
    )
    yield ""
    rows = [["all", *_scores(pairs)]]
    for publisher in sorted({pair.publisher for pair in pairs}):
        rows.append([publisher, *_scores([pair for pair in pairs if pair.publisher == publisher])])
    yield from table(("pairs of", "pairs", "Brier score", "plain order", "coin"), rows)
    yield ""
    yield "What was said of the layout predicted faster, and how often it was:"
    yield ""
    yield from table(("said", "pairs", "mean said", "was faster"), _classes(pairs))
    yield ""


def _scores(pairs: Sequence[Pair]) -> list[str]:
    wrong = fmean(not pair.right for pair in pairs)
    return [str(len(pairs)), f"{fmean(pair.brier for pair in pairs):.3f}", f"{wrong:.3f}", "0.250"]


def _classes(pairs: Sequence[Pair]) -> Iterable[list[str]]:
    for low, high in pairwise(SAID):
        some = [pair for pair in pairs if low <= pair.likelier < high or pair.likelier == high == 1.0]
        if some:
            said, was = fmean(pair.likelier for pair in some), fmean(pair.right for pair in some)
            yield [f"{_per_cent(low)} to {_per_cent(high)}", str(len(some)), _per_cent(said), _per_cent(was)]


def _constants() -> Iterator[str]:
    risk = load_risk()
    yield "## What the chances rest on"
    yield ""
    rows = [
        [kind, name, str(each.readings), f"{each.middle:+.3f}", f"{each.scale:.3f}"]
        for kind, groups in risk.memory.items()
        for name, each in groups.items()
    ]
    yield from table(("kind of reading", "runs of", "readings", "middle of the error", "scale of the error"), rows)
    order = risk.order
    yield ""
    yield (
        f"Order: own {order.own:.3f}, shares {order.shares:.3f}, from {order.layouts} layouts of {order.tasks} tasks. "
        "Middles and scales are of natural logarithms: 0.05 is 5 %."
    )


def _per_cent(share: float) -> str:
    return f"{share * 100:.0f} %"


if __name__ == "__main__":
    main()
