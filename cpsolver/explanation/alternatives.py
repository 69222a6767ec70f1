"""What a spec fixes and might fix otherwise: batch, devices, stack, launcher, memory margin, length of sequences.

Each kind names the few values nearby that promise most, before anything is solved: batches and numbers of devices by
how many layouts and micro batches they divide into; stacks that were measured on the chips; launchers of these stacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from cpsolver.cost.shard import Candidates
from cpsolver.explanation.changes import SHORTEST, Changes, grown
from cpsolver.inputs.language import later, say
from cpsolver.problem.problem import Problem
from cpsolver.profiles.constants import load_calibration
from cpsolver.profiles.default_stack import foreign_kernels
from cpsolver.profiles.framework import launcher_names, load_launcher
from cpsolver.profiles.stack import Stack, load_stack, stack_names
from cpsolver.search.filters import LAYOUT_FILTERS
from cpsolver.search.space import all_layouts, divisors
from cpsolver.spec.training import MOST

_NEAR_BATCH = 0.03  # of the batch: as far as another one may be from it, and at least a sequence
_NEAR_NODES = 2  # nodes more or fewer that are tried in any case
_ROUNDER = 0.1  # of the devices: as far as a number may be that divides better
_STEPS = 16  # numbers of devices on either side among which that is looked for
_TRIES = 4  # batches on either side that are solved


@dataclass(frozen=True)
class Alternative:
    """Other values for a spec. `kind`: of KINDS; `side`: -1 less, 1 more, 0 neither; `size`: how far from what the spec
    says, as a share of it, 0 where that is no number.

    `text`: the change in words; `note`: what else the user has to know of it, a clause that stands alone.
    """

    kind: str
    side: int
    changes: Changes
    text: str
    note: str
    size: float = 0.0


def layouts_without(rule: str, problem: Problem) -> Candidates:
    """The layouts that no rule on degrees refuses, but for one rule that is not asked."""
    layouts = all_layouts(problem)
    rules = (allows for name, allows in LAYOUT_FILTERS.items() if name != rule)
    return layouts.take(np.logical_and.reduce([allows(problem, layouts) for allows in rules]))


def _ways(problem: Problem, layouts: Candidates, batches: Iterable[int]) -> dict[int, int]:
    """In how many ways each batch divides into these layouts and micro batches."""
    sizes, counts = np.unique(layouts.dp, return_counts=True)
    replicas = dict(zip(sizes.tolist(), counts.tolist(), strict=True))
    allows = partial(problem.spec.search.allows, "mbs")
    return {
        batch: sum(count * sum(map(allows, divisors(batch // dp))) for dp, count in replicas.items() if batch % dp == 0)
        for batch in batches
    }


def _promising(ways: Mapping[int, int], now: int) -> list[int]:
    """The values with any way, those with most first, of equals the nearest."""
    return sorted((value for value in ways if ways[value]), key=lambda value: (-ways[value], abs(value - now)))


def _batches(problem: Problem) -> Iterator[Alternative]:
    now = problem.batch
    near, layouts = max(1, int(_NEAR_BATCH * now)), layouts_without("batch", problem)
    for side in (-1, 1):
        batches = (now + side * step for step in range(1, near + 1))
        ways = _ways(problem, layouts, (batch for batch in batches if 0 < batch <= MOST))
        for batch in _promising(ways, now)[:_TRIES]:
            text = say("a batch of {batch:,} sequences instead of {now:,}", batch=batch, now=now)
            off = f"{100 * abs(batch / now - 1):.2g} %"
            note = say("a batch of {batch:,} is another training than {now:,} by {off}", batch=batch, now=now, off=off)
            changes: Changes = {("training", "global_batch_size"): batch}
            yield Alternative("batch", side, changes, text, note, abs(batch / now - 1))


def _devices(problem: Problem) -> Iterator[Alternative]:
    """A node or two more or fewer, and the number not far away that most layouts divide."""
    now, node = problem.num_gpus, problem.node
    if problem.spec.search.objective == "fewest_chips":
        return  # which looks among fewer, and wants no more
    stride = node << max(0, (int(_ROUNDER * now) // (_STEPS * node)).bit_length())
    for side in (-1, 1):
        steps = {*(node * step for step in range(1, _NEAR_NODES + 1)), *range(stride, int(_ROUNDER * now) + 1, stride)}
        counts = [now + side * step for step in steps if 0 < now + side * step <= MOST]
        ways = {count: _ways_of_size(problem, count) for count in counts}
        order = _promising(ways, now)
        nearest = [count for count in order[1:] if abs(count - now) <= _NEAR_NODES * node]
        for count in order[:1] + nearest:
            raised = say(" (chip limits raised to match)") if side > 0 and _limited(problem) else ""
            text = say("{count:,} GPUs instead of {now:,}{raised}", count=count, now=now, raised=raised)
            yield Alternative("devices", side, grown(problem, count), text, "", abs(count / now - 1))


def _ways_of_size(problem: Problem, devices: int) -> int:
    other = problem.with_(cluster={"num_gpus": devices})
    return _ways(other, layouts_without("chip_count", other), [problem.batch])[problem.batch]


def _limited(problem: Problem) -> bool:
    return any(request.max is not None for request in problem.spec.cluster.chips.values())


def _stacks(problem: Problem) -> Iterator[Alternative]:
    """Stacks with runs on these chips that the spec's launcher goes with, those with most runs first."""
    launcher = problem.named_launcher
    fits = {name: runs for name in stack_names() if (runs := _measured(problem, name))}
    for name in sorted(fits, key=lambda name: -fits[name]):
        other = load_stack(name)
        if name != problem.stack.name and (launcher is None or _goes_with(other, launcher.stack)):
            text = say("stack {name} instead of {name2}", name=name, name2=problem.stack.name)
            yield Alternative("stack", 0, {("stack",): name}, text, _stack_note(problem, other))


def _goes_with(stack: Stack, own: str | None) -> bool:
    """Whether a stack is a launcher's own, or one fitted with that."""
    return own in (stack.name, *stack.fitted_with)


def _measured(problem: Problem, stack: str) -> int:
    """Published runs of the stack on the cluster's chips, of the chip with the fewest; 0 where it cannot run there."""
    chips, runs = [supply.chip for supply in problem.supplies], load_calibration().measured_on(stack)
    fewest = min(0 if chip.architecture is None else runs.get(chip.architecture, 0) for chip in chips)
    return fewest if fewest and foreign_kernels(load_stack(stack), chips) is None else 0


def _stack_note(problem: Problem, stack: Stack) -> str:
    chips = say(" and ").join(dict.fromkeys(str(supply.chip.architecture) for supply in problem.supplies))
    note = say(
        "stack {name} is {title}; {measured} measured runs on {chips}",
        name=stack.name,
        title=say(stack.title),
        measured=_measured(problem, stack.name),
        chips=chips,
    )
    own, now = float(stack.memory_margin), problem.memory_margin
    if problem.spec.cluster.memory_margin is None and own != now:
        note += say("; its own memory margin is {own:g} %, not {now:g} %", own=100 * own, now=100 * now)
    return note


def _launchers(problem: Problem) -> Iterator[Alternative]:
    """Other launchers than the one that the spec names: with the spec's stack, or with their own that was measured."""
    now = problem.named_launcher
    for name in launcher_names() if now is not None else ():
        other = load_launcher(name)
        if now is None or name == now.name or other.stack is None:
            continue
        changes: dict[tuple[str, ...], Any] = {("launcher",): name}
        text, note = (
            say("launcher {name} instead of {name2}", name=name, name2=now.name),
            say("launcher {name} is {title}", name=name, title=other.title),
        )
        if not _goes_with(problem.stack, other.stack):
            if not _measured(problem, other.stack):
                continue
            changes["stack",] = other.stack
            text += say(", with its stack {stack}", stack=other.stack)
            note = _stack_note(problem, load_stack(other.stack))
        yield Alternative("launcher", 0, changes, text, note)


def _degrees(problem: Problem) -> Iterator[Alternative]:
    """Degrees of their own for each chip type, where the spec says nothing of them and its launcher has none."""
    if not problem.mixed or problem.spec.search.degrees_by_chip is not None or problem.degrees_by_chip:
        return
    runs_them = [name for name in launcher_names() if load_launcher(name).degrees_by_chip]
    now = problem.named_launcher
    if now is None and problem.model.moe is not None:
        return  # experts' grids of any launcher are too many for the seconds that advice has
    changes: dict[tuple[str, ...], Any] = {("search", "degrees_by_chip"): True}
    changes |= {} if now is None else {("launcher",): runs_them[0]}
    known = say(" and ").join(runs_them)
    text = say("degrees of its own for each chip type") + (
        "" if now is None else say(", with launcher {runs_them}", runs_them=runs_them[0])
    )
    note = say(
        "tp, cp, dp and ep by chip type are what {known} alone runs (launcher: {runs_them}), with vpp 1",
        known=known,
        runs_them=runs_them[0],
    )
    yield Alternative("degrees", 0, changes, text, note)


def _margins(problem: Problem) -> Iterator[Alternative]:
    """Half of the margin, and none."""
    now = problem.memory_margin
    for margin in (now / 2, 0.0) if now > 0 else ():
        text = say("a memory margin of {margin:g} % instead of {now:g} %", margin=100 * margin, now=100 * now)
        note = say("with a smaller memory margin it is likelier that memory runs out")
        yield Alternative("memory margin", -1, {("cluster", "memory_margin"): margin}, text, note)


def _sequences(problem: Problem) -> Iterator[Alternative]:
    """As many tokens a step in sequences half as long: what a spec can say of data whose documents are short."""
    length, batch = problem.sequence // 2, 2 * problem.batch
    if problem.sequence % 2 or length < SHORTEST or batch > MOST or problem.spec.training.lengths is not None:
        return
    changes: Changes = {("training", "sequence_length"): length, ("training", "global_batch_size"): batch}
    text = say(
        "{batch:,} sequences of {length:,} tokens instead of {batch2:,} of {sequence:,}",
        batch=batch,
        length=length,
        batch2=problem.batch,
        sequence=problem.sequence,
    )
    note = say(
        "sequences of {length:,} tokens are for short documents: longer ones are cut, which is another training",
        length=length,
    )
    yield Alternative("sequence length", -1, changes, text, note)


KINDS: Mapping[str, Callable[[Problem], Iterator[Alternative]]] = {
    later("batch"): _batches,
    later("devices"): _devices,
    later("stack"): _stacks,
    later("launcher"): _launchers,
    later("degrees"): _degrees,
    later("memory margin"): _margins,
    later("sequence length"): _sequences,
}
"""Kind -> its alternatives for a problem, of each side the most promising first."""
TIED = ("batch", "devices")
"""Kinds that decide together what divides: with one changed the best values of the other are others."""
ALONE = ("sequence length", "degrees")
"""Kinds that are not joined with others: these are other questions."""
ASKED_FOR = ("degrees",)
"""Kinds that are told however little they gain: people want to know what it is that they leave out."""
