"""The map of the proof: its cells add up to the account, and no plan is better than the bound of its cell."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cpsolver.cost.shard import Candidates
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.search.cells import count_cells
from cpsolver.search.objective import objective_of
from cpsolver.search.proof_map import ProofMap, proof_map
from cpsolver.search.result import Result
from cpsolver.search.search import search
from cpsolver.search.space import enumerate_rows
from cpsolver.spec.spec import parse_spec
from tests.support.problems import chip_spec, model_spec
from tests.support.selection import first

X = {"spec": chip_spec()}
SPECS: dict[str, dict[str, Any]] = {
    "one chip type": {},
    "little memory": {"model": {"hidden": 12288, "ffn": 49152, "heads": 96}},
    "stopped": {"search": {"time_limit_s": 1e-6}},
    "devices idle": {"cluster": {"idle": True, "prices": {"x": 2.0}}, "search": {"objective": "cost"}},
    "two chip types": {"cluster": {"chips": {"x": {**X, "max": 6}, "y": {"spec": chip_spec(50)}}}},
}


def solved(name: str) -> tuple[Problem, Result, ProofMap]:
    spec: dict[str, Any] = {
        "model": model_spec(name="m", layers=4),
        "cluster": {"num_gpus": 8, "gpus_per_node": 2, "chips": {"x": X}},
        "training": {"global_batch_size": 16, "sequence_length": 1024},
        "search": {"top": 3},
    }
    problem = resolve(parse_spec({key: {**value, **SPECS[name].get(key, {})} for key, value in spec.items()}))
    result = search(problem)
    found = proof_map(problem, result)
    assert found is not None
    return problem, result, found


@pytest.mark.parametrize("name", first(3, SPECS))
def test_the_cells_add_up_to_the_account(name: str) -> None:
    problem, result, found = solved(name)
    proof, refused = result.proof, Counter[str]()
    for cell in found.cells:
        refused.update(cell.refused)
        assert min(cell.memory, cell.bounded, cell.solved, cell.open) >= 0
    assert refused == proof.refused
    for name in ("considered", "memory", "bounded", "solved", "open"):
        assert sum(getattr(cell, name) for cell in found.cells) == getattr(proof, name), name
    assert problem.may_idle or {cell.tp * cell.pp for cell in found.cells} == {1, 2, 4, 8}
    assert Counter(rank for cell in found.cells for rank in cell.plans) == {plan.rank: 1 for plan in result.plans}


def best_of_cells(problem: Problem, cells: ProofMap) -> dict[tuple[int, int], float]:
    """The best score in each cell that has candidates, by a search that is pinned to it."""
    objective, found = objective_of(problem), {}
    for cell in cells.cells:
        if cell.considered == sum(cell.refused.values()):
            continue
        pins = problem.spec.search.pin.model_copy(update={"tp": (cell.tp,), "pp": (cell.pp,)})
        result = search(problem.with_(search={"pin": pins, "top": 1, "time_limit_s": None}))
        scores = [objective.score(plan.strategy, plan.evaluation.formula_s) for plan in result.plans]
        found[cell.tp, cell.pp] = min(scores, default=float("inf"))
    return found


@pytest.mark.full
@pytest.mark.parametrize("name", first(1, SPECS))
def test_no_plan_is_better_than_its_cell_says(name: str) -> None:
    problem, result, found = solved(name)
    best = best_of_cells(problem, found)
    for cell in found.cells:
        truly = best.get((cell.tp, cell.pp), float("inf"))
        assert cell.bound <= truly * (1 + 1e-9), (cell, truly)
        if cell.plans and result.status == "optimal":
            assert cell.bound == pytest.approx(truly, rel=1e-9)
    assert any(cell.bound > 0 for cell in found.cells)


def test_what_a_cell_is_shown_as() -> None:
    _, result, found = solved("little memory")
    by_place = {(cell.tp, cell.pp): cell for cell in found.cells}
    assert by_place[1, 8].ending == "refused"  # four layers are too few for eight stages
    assert by_place[1, 8].rule == "pipeline_depth"
    assert by_place[1, 8].bound == float("inf")
    assert by_place[1, 1].ending == "memory"
    assert {cell.ending for cell in found.cells if cell.plans} == {"plan"}
    assert result.plans


def test_without_tallies_there_is_no_map() -> None:
    problem, result, _ = solved("stopped")
    bare = replace(result, proof=replace(result.proof, tallies=None))
    assert proof_map(problem, bare) is None


def test_rows_are_counted_by_cell() -> None:
    problem, _, _ = solved("one chip type")
    space = enumerate_rows(problem)
    rows: Candidates = space.rows
    counted = count_cells(rows.tp, rows.pp)
    assert counted == Counter(zip(rows.tp.tolist(), rows.pp.tolist(), strict=True))
    assert count_cells(space.frames.tp, space.frames.pp, space.rows_of) == counted
    assert count_cells(np.arange(0), np.arange(0)) == Counter()
