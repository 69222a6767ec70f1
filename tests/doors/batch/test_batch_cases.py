"""From cells to problems: keys, broken cells, a broken base, and what is still open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cpsolver.doors.batch import cases as cases_module
from cpsolver.doors.batch.cases import make_cases, problem_key, product_version
from cpsolver.doors.batch.rows import new_row
from cpsolver.doors.batch.run import open_tasks
from cpsolver.inputs.errors import InputError
from tests.support.batch_sweeps import BASE, cases_of, sweep_of
from tests.support.command import in_tmp, write

__all__ = ["in_tmp"]


def test_the_key_is_the_same_however_a_problem_is_written() -> None:
    one, other, longer, bigger = cases_of("""
list:
  - {label: 1, cluster.chips: a800}
  - {label: 2, cluster.chips: {a800: -1}}
  - {label: 3, search.time_limit_s: 60}
  - {label: 4, cluster.num_gpus: 32}
""")
    assert one.key == other.key == longer.key != bigger.key


def test_the_key_is_of_what_a_file_says_and_not_of_its_name() -> None:
    text = "{{name: own, layers: {}, hidden: 4096, ffn: 11008, heads: 32, vocab: 32000}}"
    write("a.yaml", text.format(32)), write("b.yaml", text.format(32)), write("c.yaml", text.format(33))
    a, b, c = cases_of("grid: {model: [a.yaml, b.yaml, c.yaml]}")
    assert a.error is None
    assert a.key == b.key != c.key


def test_another_version_of_the_product_has_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    (case,) = cases_of("list: [{cluster.num_gpus: 16}]")
    assert case.problem is not None
    monkeypatch.setattr(cases_module, "product_version", lambda: "another")
    assert problem_key(case.problem) != case.key


@pytest.mark.parametrize("name", ["memory.py", "params.py", "schema.py", "document.py", "columns.py", "units.py"])
def test_code_that_an_answer_comes_from_counts_as_the_version(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now, read = product_version.__wrapped__(), Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: read(self) + b"#" * (self.name == name))
    assert product_version.__wrapped__() != now


def test_of_cells_with_several_time_limits_the_longest_is_used() -> None:
    for limits in ("[1, 60, 5]", "[60, 1]"):
        cases = cases_of(f"grid: {{search.time_limit_s: {limits}}}")
        (task,) = open_tasks(cases, {}, retry_failed=False)
        assert task.problem.spec.search.time_limit_s == 60
    cases = cases_of("list: [{search.time_limit_s: 60}, {cluster.gpus_per_node: 8}]")
    (task,) = open_tasks(cases, {}, retry_failed=False)
    assert task.problem.spec.search.time_limit_s is None


def test_a_broken_cell_says_what_is_wrong_and_where_and_the_others_are_problems() -> None:
    sound, unknown, odd = cases_of("list: [{cluster.num_gpus: 16}, {model: llama9}, {cluster.num_gpus: 33}]")
    assert sound.problem is not None
    assert unknown.problem is None
    assert odd.problem is None
    assert unknown.error is not None
    assert unknown.error.startswith("sweep.yaml:7:33 model = 'llama9': unknown model")
    assert "not a multiple of cluster.gpus_per_node" in str(odd.error)
    row = new_row(unknown)
    assert (row["status"], row["model"], row["num_gpus"], row["plans"]) == ("error", "llama9", 16, None)


def test_what_is_wrong_with_the_base_is_told_at_once() -> None:
    with pytest.raises(InputError) as caught:
        cases_of("grid: {cluster.num_gpus: [8, 33]}", BASE.replace("a800", "a801").replace("top", "topp"))
    told = [str(trouble) for trouble in caught.value.troubles]
    assert [text.split(":")[1] for text in told] == ["4", "6"]
    assert "unknown chip" in told[0]
    assert "did you mean 'top'" in told[1]


def test_what_only_the_cells_values_break_is_no_fault_of_the_base() -> None:
    assert all(case.error for case in cases_of("grid: {cluster.num_gpus: [33, 34]}"))


def test_each_problem_is_solved_once_however_many_cells_ask_for_it() -> None:
    cases = cases_of("list: [{label: a, cluster.num_gpus: 16}, {label: b, cluster.num_gpus: 16}, {model: llama9}]")
    assert [task.key for task in open_tasks(cases, {}, retry_failed=False)] == [cases[0].key]


@pytest.mark.parametrize(
    ("row", "limit", "retry", "is_open"),
    [
        ({"status": "optimal", "time_limit_s": 5.0}, None, True, False),
        ({"status": "infeasible", "time_limit_s": None}, None, True, False),
        ({"status": "feasible", "time_limit_s": 5.0}, 5.0, True, False),
        ({"status": "feasible", "time_limit_s": 5.0}, 6.0, False, True),
        ({"status": "unknown", "time_limit_s": 5.0}, None, False, True),
        ({"status": "error", "time_limit_s": None}, None, False, False),
        ({"status": "error", "time_limit_s": None}, None, True, True),
    ],
)
def test_what_is_solved_again(row: dict[str, Any], limit: float | None, retry: bool, is_open: bool) -> None:
    (case,) = make_cases(sweep_of(BASE + "list: [{cluster.num_gpus: 16}]"), limit)
    assert bool(open_tasks([case], {case.key: row}, retry)) == is_open
