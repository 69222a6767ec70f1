"""Whether predictions order layouts as measurements do: rank agreement, and what picking the predicted best costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from cpsolver.evidence.runs.columns import COLUMNS
from cpsolver.evidence.runs.run import MeasuredRun
from cpsolver.evidence.runs.score import Scored
from cpsolver.plans.dimensions import DIMENSIONS

FEWEST = 4
"""A group needs as many different layouts."""

_SHAPE = ("layers", "hidden", "ffn", "heads", "kv_heads", "vocab", "gated_mlp")
_EXPERTS = ("moe_experts", "moe_topk", "moe_ffn", "shared_expert_ffn", "mtp_layers")
_SWITCHES = ("fp8_recipe", "a2a_overlap", "routing", "dispatcher", "cuda_graph", "offload_layers", "flash_attention")
_TASK = (*_SHAPE, *_EXPERTS, "seq_len", "chip", "num_gpus", "gbs", "precision", "framework", *_SWITCHES)
_LAYOUT = (
    *(name for name in DIMENSIONS if name in COLUMNS and name not in _TASK),
    "layers_per_stage",
    "stages",
    "sharding",
)
"""The decisions that a table of runs has; what else a run switched on, flash attention too, is the task's."""


@dataclass(frozen=True)
class GroupRank:
    """One task run in several layouts. `ids`: its rows; those of the same layout count as one, averaged.

    `kendall_tau` (tau-b, from -1 to 1) is None where all measured or all predicted times are equal. `regret`: how
    much slower the layout predicted fastest was than the one measured fastest, as a share.
    """

    ids: tuple[str, ...]
    layouts: int
    kendall_tau: float | None
    regret: float


@dataclass(frozen=True)
class RankScore:
    """The groups, and the means over them; None where no group has a value."""

    groups: tuple[GroupRank, ...]
    kendall_tau: float | None
    regret: float | None


def task_of(run: MeasuredRun) -> tuple[object, ...]:
    """What was trained on what: all that runs have in common whose layouts can be compared."""
    return tuple(getattr(run, name) for name in _TASK)


def layout_of(run: MeasuredRun) -> tuple[object, ...]:
    """How a run was parallelised."""
    return tuple(getattr(run, name) for name in _LAYOUT)


def rank_score(scored: Iterable[Scored]) -> RankScore:
    """Rank agreement over all groups of runs that differ in nothing but the layout."""
    tasks: dict[tuple[object, ...], list[Scored]] = {}
    for one in scored:
        tasks.setdefault(task_of(one.run), []).append(one)
    groups = tuple(group for runs in tasks.values() if (group := _group(runs)) is not None)
    taus = [group.kendall_tau for group in groups if group.kendall_tau is not None]
    regrets = [group.regret for group in groups]
    return RankScore(groups, fmean(taus) if taus else None, fmean(regrets) if regrets else None)


def _group(runs: Sequence[Scored]) -> GroupRank | None:
    layouts: dict[tuple[object, ...], list[Scored]] = {}
    for one in runs:
        layouts.setdefault(layout_of(one.run), []).append(one)
    if len(layouts) < FEWEST:
        return None
    measured = [fmean(one.measured_s for one in same) for same in layouts.values()]
    predicted = [fmean(one.prediction.step_time_s for one in same) for same in layouts.values()]
    ids = tuple(one.run.id for one in runs)
    return GroupRank(ids, len(layouts), kendall_tau(measured, predicted), regret(measured, predicted))


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Kendall's tau-b of two lists of the same length; None where one of them is all ties."""
    agree = first_tied = second_tied = 0
    pairs = list(combinations(range(len(first)), 2))
    for one, other in pairs:
        signs = _order(first[one], first[other]), _order(second[one], second[other])
        agree += signs[0] * signs[1]
        first_tied += signs[0] == 0
        second_tied += signs[1] == 0
    ordered = (len(pairs) - first_tied) * (len(pairs) - second_tied)
    return agree / math.sqrt(ordered) if ordered else None


def _order(one: float, other: float) -> int:
    """-1, 0 or 1; times that differ by rounding alone are equal."""
    return 0 if math.isclose(one, other, rel_tol=1e-9) else 1 if one > other else -1


def regret(measured: Sequence[float], predicted: Sequence[float]) -> float:
    """Measured time of the layout predicted fastest, over the fastest measured, less 1; ties count by their mean."""
    best = min(predicted)
    picked = fmean(real for real, told in zip(measured, predicted, strict=True) if _order(told, best) == 0)
    return picked / min(measured) - 1
