"""Figures of a row, lines of a sweep, estimates of time, and the store."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from cpsolver.doors.batch.lines import MEASURES, lines_of
from cpsolver.doors.batch.progress import duration, remaining_s
from cpsolver.doors.batch.rows import Row, figures, new_row, per_dollar, strategy_text
from cpsolver.doors.batch.stills import PlotAxis, _runs, axes
from cpsolver.doors.batch.store import SCHEMA_VERSION, Store
from cpsolver.inputs.errors import InputError
from tests.support.batch_sweeps import cases_of
from tests.support.command import in_tmp, write

__all__ = ["in_tmp"]

STRATEGY = {
    "tp": 4,
    "pp": 3,
    "dp": 2,
    "mbs": 1,
    "cp": 1,
    "vpp": 2,
    "sequence_parallel": True,
    "distributed_optimizer": True,
    "sharded": "gradients",
    "stages": [
        {"chip": "a800", "layers": [8, 9], "recompute": "none"},
        {"chip": "h800", "layers": [16], "recompute": "block"},
    ],
}
PLAN = {
    "devices": 24,
    "step_time_s": 2.0,
    "step_time_low_s": 1.5,
    "step_time_high_s": 3.0,
    "mfu": 0.5,
    "throughput_tokens_per_s": 5e5,
    "throughput_tokens_per_s_per_gpu": 2e4,
    "dollars_per_million_tokens": 0.02,
    "days": {"low": 9.0, "mean": 10.0, "high": 12.0},
    "dollars": None,
    "deadline_probability": None,
    "memory_gib": {"a800": 40.0, "h800": 60.0},
    "capacity_gib": {"a800": 80.0, "h800": 75.0},
    "strategy": STRATEGY,
}
DOCUMENT = {"status": "optimal", "plans": [PLAN], "proof": {}, "reasons": []}


def test_dollars_an_hour_follow_from_dollars_a_token_and_tokens_a_second() -> None:
    row = figures(DOCUMENT)
    assert row["dollars_per_hour"] == pytest.approx(0.02 / 1e6 * 5e5 * 3600)  # 36 dollars
    assert per_dollar(row) == pytest.approx(5e5 / 36)


def test_memory_is_the_fullest_chip_s_share() -> None:
    assert figures(DOCUMENT)["memory_share"] == pytest.approx(60 / 75)


def test_without_prices_or_plans_there_is_nothing_per_dollar() -> None:
    unpriced = {**DOCUMENT, "plans": [{**PLAN, "dollars_per_million_tokens": None}]}
    assert per_dollar(figures(unpriced)) is None
    assert figures({**DOCUMENT, "plans": [], "reasons": ["no room"]})["reasons"] == '["no room"]'


def test_a_plan_in_one_line() -> None:
    told = "tp 4 pp 3 dp 2 mbs 1 vpp 2 sp zero-2, a800 8,9 layers; h800 1 × 16 layers block"
    assert strategy_text(STRATEGY) == told


def test_lines_are_by_model_and_mix_and_ordered_by_size() -> None:
    grid = """
grid:
  cluster.num_gpus: [32, 16]
  mix: [{label: plain, cluster.chips: a800}, {label: half, cluster.chips: {a800: 50 %, h800: 50 %}}]
"""
    done = [(case, new_row(case) | {"status": "optimal", "step_time_s": 1.0, "mfu": 0.4}) for case in cases_of(grid)]
    lines = lines_of(done)
    assert [line.name for line in lines] == ["llama2-7b, plain", "llama2-7b, half"]
    assert [row["num_gpus"] for row in lines[0].planned] == [16, 32]
    best = lines[0].best(MEASURES[1])
    assert best is not None
    assert best["num_gpus"] == 16


def test_a_mix_without_a_label_is_told_by_its_shares() -> None:
    cases = cases_of("list: [{cluster.chips: {a800: 8, h800: -1}}, {cluster.chips: h800, training.sequence_length: 8}]")
    lines = lines_of([(case, new_row(case)) for case in cases])
    assert [line.name for line in lines] == ["llama2-7b, a800 50% + h800, seq. 4096", "llama2-7b, h800, seq. 8"]


def test_axes_start_at_nought_or_are_logarithmic_where_sizes_differ_by_much() -> None:
    x, y = axes([(16.0, 5.0), (480.0, 90.0)])
    assert (x.low, y.low, x.logarithmic) == (0.0, 0.0, False)
    assert x.high > 480
    far, _ = axes([(16.0, 5.0), (65536.0, 90.0)])
    assert far.logarithmic
    assert far.at(1024.0) - far.at(16.0) == pytest.approx(far.at(65536.0) - far.at(1024.0), abs=0.2)


def test_a_cell_without_a_plan_is_a_gap_in_its_line() -> None:
    cases = cases_of("grid: {cluster.num_gpus: [8, 16, 32]}")
    rows = [new_row(case) | {"step_time_s": 1.0, "mfu": 0.4} for case in cases]
    rows[1] |= {"step_time_s": None, "mfu": None}
    (line,) = lines_of(list(zip(cases, rows, strict=True)))
    assert [[size for size, _, _ in run] for run in _runs(line, MEASURES[1])] == [[8], [32]]


def test_ticks_are_round_and_inside() -> None:
    assert PlotAxis(0, 130, 0, 100, logarithmic=False).ticks() == [0, 20, 40, 60, 80, 100, 120]
    assert PlotAxis(15, 600, 0, 100, logarithmic=True).ticks() == [20, 50, 100, 200, 500]


def test_the_time_left_is_that_of_the_cells_so_far() -> None:
    assert remaining_s(30.0, 3, 6) == 60.0
    assert remaining_s(30.0, 0, 6) is None
    assert [duration(value) for value in (42.4, 180.0, 7500.0)] == ["42 s", "3 min", "2 h 05 min"]


def row() -> Row:
    (case,) = cases_of("list: [{cluster.num_gpus: 16}]")
    return new_row(case) | figures(DOCUMENT)


def test_a_row_comes_back_as_it_was_kept_and_a_later_one_takes_its_place() -> None:
    kept = row()
    with Store("r.sqlite") as store:
        store.put(kept)
    with Store("r.sqlite") as store:
        assert store.get([kept["key"], "other"]) == {kept["key"]: kept}
        store.put({**kept, "status": "feasible"})
        assert [found["status"] for found in store.get([kept["key"]] * 1001).values()] == ["feasible"]
    assert json.loads(kept["plans"]) == [PLAN]


def test_a_database_from_before_a_column_of_the_report_gets_it() -> None:
    kept = row()
    with Store("r.sqlite") as store:
        store.put(kept)
    with closing(sqlite3.connect("r.sqlite")) as database, database:
        database.execute("ALTER TABLE cells DROP COLUMN mfu")
        database.execute("ALTER TABLE cells DROP COLUMN checksum")  # from before there were any
    with Store("r.sqlite") as store:
        assert store.get([kept["key"]])[kept["key"]] == {**kept, "mfu": None}
        store.put(kept)
        assert store.get([kept["key"]])[kept["key"]] == kept


def refusal() -> str:
    with pytest.raises(InputError) as caught:
        Store("r.sqlite")
    return str(caught.value)


def test_a_database_of_another_version_is_refused_with_what_to_do() -> None:
    with Store("r.sqlite"):
        pass
    with closing(sqlite3.connect("r.sqlite")) as database, database:
        database.execute("UPDATE schema_version SET version = 99")
    told = refusal()
    assert f"has version 99 of the tables, and this apss-cp reads and writes version {SCHEMA_VERSION}" in told
    assert "--db" in told


def test_files_that_are_no_such_database_are_refused_and_left_as_they_are() -> None:
    write("r.sqlite", "some text that is no database at all\n" * 50)
    assert "is not a SQLite database" in refusal()
    with Path("r.sqlite").open(encoding="utf-8") as file:
        assert file.read().startswith("some text")
    write("r.sqlite", "")
    with closing(sqlite3.connect("r.sqlite")) as database, database:
        database.execute("CREATE TABLE mine (x)")
    assert "is a database of something else" in refusal()


def test_one_run_at_a_time_has_the_database() -> None:
    with Store("r.sqlite"):
        assert "is in use by another `apss-cp batch`" in refusal()
    with Store("r.sqlite"):
        pass
