"""What rows have to beat where plans are to be of different layout families."""

from __future__ import annotations

import numpy as np

from cpsolver.plans.dimensions import family, family_name
from cpsolver.search.frontier import Limits
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
