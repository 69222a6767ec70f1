"""What the model needs of one plan: integer times, recomputation options, and the layers that fit under each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cpsolver.coefficients import Coefficients, Stages, allowed_kinds
from cpsolver.compile.scaling import Scale
from cpsolver.cost.memory import activation_bytes
from cpsolver.cost.shard import Ints
from cpsolver.decisions import forbidden_for, pinned_for
from cpsolver.problem import Problem
from cpsolver.schedule import peak_live_total
from cpsolver.strategy import RecomputeKind


@dataclass(frozen=True)
class Option:
    """One way to recompute: kind and number, and the layers of each chunk that it runs twice (`longest` for all)."""

    kind: RecomputeKind
    amount: int
    repeats: int


@dataclass(frozen=True)
class PlanData:
    """One plan's coefficients by stage, times in integer steps.

    `fits[p, o]`: the most layers in each chunk of stage p under option o (0: none); options are those of the
    stage's chip type, padded with zeros. A chunk of l layers, r of them recomputed, adds layer * l + repeat * r.
    """

    row: int
    chips: tuple[int, ...]
    vpp: int
    microbatches: int
    longest: int
    options: dict[int, tuple[Option, ...]]
    fits: dict[int, Ints]
    layer: Ints
    repeat: Ints
    selective: Ints
    fixed: Ints
    after_layer: Ints
    after_fixed: Ints
    degrees: tuple[int, ...]
    error_s: float

    @property
    def pp(self) -> int:
        """Pipeline stages."""
        return len(self.chips)

    @property
    def longest_stage(self) -> int:
        """No stage takes more integer steps for a microbatch."""
        return int(((self.layer + self.repeat + self.selective) * self.longest + self.fixed).max())

    @property
    def longest_after(self) -> int:
        """Nothing that follows the pipeline takes more integer steps."""
        return int((self.after_layer * self.longest + self.after_fixed).max())

    def places(self, chip: int) -> list[int]:
        """Positions of the stages on that chip type."""
        return [position for position, index in enumerate(self.chips) if index == chip]


def plan_data(table: Coefficients, row: int, chips: Ints, scale: Scale, within_s: float) -> PlanData:
    """The data of one plan; layer counts that no step time within `within_s` allows are left out."""
    problem, rows = table.problem, table.rows
    stages = table.stages(np.array([row]), chips[None, :])
    vpp, pp = int(rows.vpp[row]), len(chips)
    longest = _longest_chunk(table, row, stages, within_s)
    options: dict[int, tuple[Option, ...]] = {}
    fits: dict[int, Ints] = {}
    for chip in dict.fromkeys(chips.tolist()):
        places = np.nonzero(chips == chip)[0]
        all_options = _options(problem, problem.chip_names[chip], longest)
        table_fits = _fits(table, row, stages, places, all_options, longest)
        keep = _undominated(all_options, table_fits)
        options[chip], fits[chip] = tuple(all_options[i] for i in keep), table_fits[:, keep]
    first, second = (float(weight[0]) for weight in table.weights(np.array([row])))
    counts = (rows.tp, rows.pp, rows.dp, rows.mbs, rows.vpp)
    flags = (rows.sequence_parallel, rows.distributed_optimizer, rows.flash_attention)
    return PlanData(
        row=row,
        chips=tuple(chips.tolist()),
        vpp=vpp,
        microbatches=int(rows.microbatches[row]),
        longest=longest,
        options=options,
        fits=fits,
        layer=scale.integers(vpp * stages.layer[0]),
        repeat=scale.integers(vpp * stages.recompute[0]),
        selective=scale.integers(vpp * stages.selective[0]),
        fixed=scale.integers(stages.fixed[0]),
        after_layer=scale.integers(vpp * stages.after_layer[0]),
        after_fixed=scale.integers(stages.after_fixed[0]),
        degrees=tuple(int(column[row]) for column in (*counts, *flags)),
        error_s=scale.error_s(first, second, pp, longest),
    )


def _longest_chunk(table: Coefficients, row: int, stages: Stages, within_s: float) -> int:
    """The most layers in a chunk: what the other chunks leave, and what the step time of interest allows."""
    vpp, pp = int(table.rows.vpp[row]), stages.layer.shape[1]
    left = table.problem.model.layers // vpp - (pp - 1)
    first, second = (weight[0] for weight in table.weights(np.array([row])))
    slowest = within_s / (first + second)
    in_time = np.floor((slowest - stages.fixed[0]) / (vpp * stages.layer[0]) + 1e-6).max()
    return int(max(0, min(left, in_time)))


def _options(problem: Problem, chip: str, longest: int) -> list[Option]:
    """All ways to recompute that the pins leave, cheapest first. Uniform units of 1 equal block over all layers."""
    kinds = allowed_kinds(problem, chip)
    found: list[Option] = []
    if "none" in kinds:
        found.append(Option("none", 0, 0))
    if "selective" in kinds:
        found.append(Option("selective", 0, 0))
    pinned = pinned_for(problem.spec.search.pin.recompute_num_layers, chip)
    more = sorted(amount for amount in pinned or () if amount > longest)  # more than a chunk has: all of it
    amounts = [*range(1, longest + 1), *more]
    if "block" in kinds:
        found += [Option("block", amount, amount) for amount in amounts]
    if "uniform" in kinds:
        found += [Option("uniform", amount, longest) for amount in amounts]
    banned = forbidden_for(problem.spec.search.forbid.recompute_num_layers, chip)
    return [o for o in found if (pinned is None or o.amount in pinned) and o.amount not in banned]


def _fits(table: Coefficients, row: int, stages: Stages, places: Ints, options: list[Option], longest: int) -> Ints:
    """The most layers in a chunk for each place and option, by the memory model itself (no linear stand-in)."""
    memory, vpp = table.memory, int(table.rows.vpp[row])
    pp = stages.layer.shape[1]
    m = min(int(table.rows.microbatches[row]), 4 * pp)
    live = peak_live_total(pp, vpp, m)[places][:, None]
    layers = np.arange(1, longest + 1)[None, :]
    layer = (float(memory.full[row]), float(memory.selective[row]), float(memory.checkpoint[row]))
    states = memory.layer_states[row] * vpp * layers
    room = stages.room[0][places][:, None]
    factor = 1.0 + memory.overhead
    most = np.zeros((len(places), len(options)), dtype=np.int64)
    for index, option in enumerate(options):
        held = activation_bytes(layer, live, layers, option.kind, np.array(option.amount))
        most[:, index] = (states + factor * held <= room).cumprod(axis=1).sum(axis=1)
    return most


def _undominated(options: list[Option], fits: Ints) -> list[int]:
    """Options for which no other is as cheap and fits as much everywhere; of equals the first stays."""
    keep: list[int] = []
    for index, option in enumerate(options):
        if not fits[:, index].any():
            continue
        beaten = any(
            options[other].kind != "selective"
            and options[other].repeats <= option.repeats
            and bool((fits[:, other] >= fits[:, index]).all())
            for other in keep
        )
        if not beaten:
            keep.append(index)
    return keep
