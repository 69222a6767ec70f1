"""What rows have to beat where plans are to be of different layout families, and which families come first."""

from __future__ import annotations

import numpy as np

from cpsolver.plans.dimensions import family, family_name
from cpsolver.search.agenda import Agenda
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.frontier import Block, Branch, Limits, Node
from cpsolver.search.objective import objective_of
from cpsolver.search.space import enumerate_rows
from tests.support.problems import chip_spec, model_spec, problem_of
from tests.support.tables import plan_of

MOE = {"experts": 4, "top_k": 2, "expert_ffn": 512}


def test_a_row_has_to_beat_the_plan_of_its_family_or_the_worst_of_the_answer() -> None:
    problem = problem_of({"x": chip_spec()}, model_spec(layers=4, moe=MOE), 8, 8, 16, 512)
    rows = enumerate_rows(problem).rows
    chips = [np.zeros(int(pp), dtype=np.int64) for pp in rows.pp]
    plans = [plan_of(problem, rows, row, order) for row, order in enumerate(chips)]
    families = list(dict.fromkeys(map(family, plans)))
    assert len({family_name(plan) for plan in plans}) == len(families) > 20
    for chosen in (families[:3], families[5::7], families[-1:]):
        score = {each: 1.0 + place for place, each in enumerate(chosen)}
        limits = Limits(3.5, score)
        wanted = [min(3.5, score.get(family(plan), np.inf)) for plan in plans]
        assert limits.of_rows(rows).tolist() == wanted
        assert limits.of_rows(rows, np.arange(0, len(rows), 7)).tolist() == wanted[::7]
        assert [limits.of_row(rows, row) for row in range(0, len(rows), 97)] == wanted[::97]
    assert Limits(2.0, {}).of_rows(rows).tolist() == [2.0] * len(rows)


def test_families_without_a_plan_come_best_first() -> None:
    problem = problem_of({"x": chip_spec()}, model_spec(layers=4, moe=MOE), 8, 8, 16, 512)
    rows = enumerate_rows(problem).rows
    block = Block(Coefficients(problem, rows), np.zeros(len(rows)), np.ones(len(rows), dtype=np.int64))
    branch, agenda = Branch(problem, objective_of(problem), 0.0), Agenda()

    def node(row: int, plan: bool) -> Node:
        return agenda.node(float(row), float(row), branch, block, row, (1,) * plan, (0,) * plan)

    plans, mixes = [node(row, True) for row in range(40, 200)], [node(row, False) for row in range(0, 400, 3)]
    agenda.add_all([*plans, *mixes])
    known, below = {block.families[row] for row in range(20)}, 180.0
    first: dict[tuple[int, ...], Node] = {}
    for each in sorted([*plans, *mixes]):
        if block.families[each.row] not in known and each.bound < below:
            first.setdefault(block.families[each.row], each)
    best = list(first.values())
    assert 2 < len(best) < 100
    assert any(each.chips for each in best)
    assert agenda.take_others(known, below, 2) == best[:2]
    assert len(agenda) == len(plans) + len(mixes) - 2
    nodes = agenda.take_others({*known, *(block.families[each.row] for each in best[:2])}, below, 1000)
    assert nodes == best[2:]
    left = [each for each in plans if each not in best]
    assert agenda.take_plans(lambda each: each.bound < 100) == [each for each in left if each.bound < 100]
    assert not agenda.take_others({*known, *block.families}, below, 5)
