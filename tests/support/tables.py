"""The cost tables remembered, or bent at random, for the tests that compare with brute force."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from cpsolver.cost import memory, states
from cpsolver.cost.kinds import kind_shares, layer_kinds
from cpsolver.cost.shard import Candidates, Floats, Shard
from cpsolver.cost.tables import MemoryTable, TimeTable, memory_table, pass_seconds, time_table
from cpsolver.evaluation import evaluate
from cpsolver.plans.dimensions import DIMENSIONS
from cpsolver.plans.strategy import MODULES, StageGroup, Strategy
from cpsolver.problem.problem import Problem, Supply
from cpsolver.search import frontier
from cpsolver.search.arrangements import arrangements, mixes
from cpsolver.search.bounds import coefficients, quick
from cpsolver.search.filters import may_mix
from tests.support.oracle import short_of

Maker = Callable[..., Any]

ALL = tuple(field.name for field in fields(Candidates))
LAYER = tuple(field.name for field in fields(Shard))
"""What a layer's time and bytes depend on: bounds of frames count on it, and that bytes grow with the micro batch."""
NOT_OF_MEMORY = ("sharding_group", "vpp", "schedule", "embedding_slot", "loss_slot")
UNGROUPED = tuple(name for name in ALL if name not in NOT_OF_MEMORY)
"""What memory beside the states depends on: a larger group never needs more, nor does it matter how stages are cut, or
their passes ordered."""
OF_PARAMETERS = ("tp", "cp", "pp", "dp", "ep", "etp")
"""What parameters on a device depend on: replicas that agree in these communicate as much."""
OF_LAYERS = ("recompute", "embedding", "head", "hop_near", "hop_far", "chunk")
APART = ("hop_waited", "layer_tp", "kind_layer_tp", "end_tp", "mtp_tp", "layer", "kind_layer", "modules")
"""Columns that name a part or a share of others, or are bent for each kind of layer or module."""


@contextmanager
def quick_tables(bend: int | None = None, by_events: bool = False) -> Iterator[None]:
    """Remember the tables of single rows (brute force asks for the same ones often); `bend` multiplies every one
    of them by random factors of that seed, the same for all readers. Step times over several chip types are those of
    the formula, which bounds are about, unless `by_events` leaves the schedule the last word."""
    time, space, parts = time_table, memory_table, memory.stage_parameters
    if bend is not None:
        parts = _bent_parts(bend, parts)
        time, space = _bent_time(bend), _bent_memory(bend)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "stage_parameters", _remembered(parts))
        patch.setattr(states, "state_bytes", _remembered(states.state_bytes))
        for module in (coefficients, quick, frontier):
            patch.setattr(module, "memory_table", space)
        patch.setattr(coefficients, "time_table", time)
        if bend is not None:
            patch.setattr(quick, "pass_seconds", passes_of(time))
        patch.setattr(evaluate, "time_table", _remembered(time))
        patch.setattr(evaluate, "memory_table", _remembered(space))
        if not by_events:
            patch.setattr(evaluate, "_by_events", _on_one_chip_type(evaluate._by_events))
        patch.setattr(evaluate, "model_flops_per_step", lambda problem: 1.0)  # for mfu only
        yield


def _on_one_chip_type(by_events: Callable[..., dict[str, float]]) -> Callable[..., dict[str, float]]:
    """Steps event by event there, and by formula over several."""

    def of_plan(problem: Problem, strategy: Strategy, *rest: Any) -> dict[str, float]:
        by_formula: dict[str, float] = rest[-1]
        return by_formula if problem.mixed else by_events(problem, strategy, *rest)

    return of_plan


def passes_of(make: Maker) -> Maker:
    """`pass_seconds` that agrees with a time table."""

    def columns(problem: Problem, supply: Supply, rows: Candidates) -> dict[str, Floats]:
        table = make(problem, supply, rows)
        return {name: getattr(table, name) for name in pass_seconds(problem, supply, rows)}

    return columns


def _remembered(make: Maker) -> Maker:
    known: dict[tuple[Any, ...], Any] = {}

    def table(problem: Problem, *rest: Any, **sets: Any) -> Any:
        rows = next(part for part in rest if isinstance(part, Candidates))
        if len(rows) != 1:
            return make(problem, *rest, **sets)
        others = (part.name if isinstance(part, Supply) else int(part[0]) for part in rest if part is not rows)
        key = (id(problem), str(sets), *others, *(int(getattr(rows, name)[0]) for name in ALL))
        if key not in known:
            known[key] = make(problem, *rest, **sets)
        return known[key]

    return table


def _factor(rows: Candidates, seed: int, name: str, spread: float = 3.0, of: tuple[str, ...] = ALL) -> Floats:
    """Between 1/spread and spread, by the row's numbers, the seed and the name."""
    code = np.full(len(rows), seed * 1_000_003 + crc32(name.encode()), dtype=np.uint64)
    for column in of:
        code = (code ^ getattr(rows, column).astype(np.uint64)) * np.uint64(6364136223846793005) + np.uint64(1)
        code ^= code >> np.uint64(29)
    return np.asarray(spread ** (2 * (code % np.uint64(2**20)) / 2.0**20 - 1))


def _bent_kinds(problem: Problem, mean: Floats, more: Floats, factors: list[Floats]) -> tuple[Floats, Floats]:
    """The mean layer, and what each kind has more, when each kind's own is multiplied by its factor."""
    own = (mean + more) * np.stack(factors)
    bent = (np.array(kind_shares(problem.model))[:, None] * own).sum(axis=0)
    return bent, own - bent


def _bent_time(seed: int) -> Maker:
    def table(problem: Problem, supply: Supply, rows: Candidates) -> TimeTable:
        made = time_table(problem, supply, rows)

        def factor(name: str) -> Floats:
            return _factor(rows, seed, supply.name + name, of=LAYER if name in OF_LAYERS else ALL)

        kinds = range(len(layer_kinds(problem.model)))
        each = [_factor(rows, seed, f"{supply.name} kind {kind}", of=LAYER) for kind in kinds]
        bent = {f.name: getattr(made, f.name) * factor(f.name) for f in fields(TimeTable) if f.name not in APART}
        bent["layer"], bent["kind_layer"] = _bent_kinds(problem, made.layer, made.kind_layer, each)
        bent["modules"] = made.modules * [_factor(rows, seed, f"{supply.name} {name}", of=LAYER) for name in MODULES]
        bent["recompute"] = np.minimum(bent["recompute"], 0.9 * bent["layer"])  # a layer takes longer than its forward
        return replace(made, **bent)

    return table


def _bent_memory(seed: int) -> Maker:
    widths = tuple(name for name in LAYER if name != "mbs")

    def table(problem: Problem, rows: Candidates) -> MemoryTable:
        made = memory_table(problem, rows)
        names = {"full": widths, "checkpoint": widths, "buffer": UNGROUPED, "last_buffer": UNGROUPED}
        bent = {name: getattr(made, name) * _factor(rows, seed, name, of=of) for name, of in names.items()}
        bent["short"] = made.short * _factor(rows, seed, "full", of=widths)
        bent["freed"] = made.freed * [_factor(rows, seed, f"freed {name}", of=widths) for name in MODULES]
        bent["checkpoint"] = np.minimum(bent["checkpoint"], 0.9 * bent["full"])
        return replace(made, **bent)

    return table


def _bent_parts(seed: int, make: Maker) -> Maker:
    def parts(problem: Problem, rows: Candidates) -> memory.StageParameters:
        made = make(problem, rows)

        def factor(name: str) -> Floats:
            return _factor(rows, seed, name, 1.5, OF_PARAMETERS)

        bent = {name: getattr(made, name) * factor(name) for name in ("first", "last", "last_experts")}
        for name in ("layer", "experts"):
            each = [factor(f"{name} {kind.experts}") for kind in layer_kinds(problem.model)]  # windows have no weights
            bent[name], bent[f"kind_{name}"] = _bent_kinds(
                problem, getattr(made, name), getattr(made, f"kind_{name}"), each
            )
        changed: memory.StageParameters = replace(made, **bent)
        return changed

    return parts


def all_orders(problem: Problem, rows: Candidates, row: int) -> list[tuple[tuple[int, ...], np.ndarray]]:
    """Every mix of a row, with each chip type by stage that it allows."""
    mixed = bool(may_mix(problem, rows.take([row]))[0])
    found = mixes(problem, int(rows.stage_devices[row]), int(rows.pp[row]), mixed)
    return [(tuple(mix.tolist()), order) for mix in found for order in arrangements(problem, mix)]


def plan_of(problem: Problem, rows: Candidates, row: int, order: np.ndarray) -> Strategy:
    """The plan of a row with those chips by stage, one layer each."""
    names = {field.name for field in fields(Strategy)} & set(ALL)
    chosen: dict[str, Any] = {name: getattr(rows, name)[row].item() for name in names}
    chosen |= {name: DIMENSIONS[name].decoded(chosen[name]) for name in ("sharded", "schedule")}
    if rows.both_ways[row]:
        chosen |= {name: int(rows.unfolded(name)[row]) for name in ("pp", "dp", "vpp")}
        layers = (1 + int(rows.loss_slot[row]), *[1] * (chosen["pp"] - 1))
        return Strategy(**chosen, groups=(StageGroup(problem.chip_names[order[0]], layers),))
    groups = tuple(StageGroup(problem.chip_names[chip], (chosen["vpp"],)) for chip in order)
    slots = int(rows.embedding_slot[row]), int(rows.loss_slot[row])
    return short_of(Strategy(**chosen, groups=groups), slots)
