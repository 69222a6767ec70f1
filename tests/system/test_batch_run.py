"""apss-cp batch from end to end: rows, files, resuming, kills, Ctrl-C, workers that die."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import signal
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from cpsolver.doors.batch import pool
from cpsolver.doors.batch.pool import CellTask, solve_in_processes
from tests.support.batch_sweeps import BASE, EIGHT, answers, cases_of, group_is_gone, rows, start, wait_for_rows
from tests.support.command import in_tmp, run, write
from tests.support.html_page import assert_stands_alone
from tests.support.selection import full

__all__ = ["in_tmp"]

MIXED = BASE + "list: [{cluster.num_gpus: 16}, {model: llama9}, {search.pin.mbs: 128}]"
"""A plan, a broken cell, and one that no plan meets."""


@pytest.mark.full
def test_each_cell_is_a_row_whatever_becomes_of_it() -> None:
    write("sweep.yaml", MIXED)
    result = run("batch", "sweep.yaml", "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    plan, broken, infeasible = document["cells"]
    assert [cell["status"] for cell in document["cells"]] == ["optimal", "error", "infeasible"]
    assert "unknown model" in broken["error"]
    assert infeasible["reasons"]
    assert (document["solved"], document["database"]) == (2, "sweep.sqlite")
    assert plan["labels"] == {"cell": "16"}
    assert 0 < plan["memory_share"] <= 1
    again = json.loads(run("batch", "sweep.yaml", "--json").stdout)
    assert again["solved"] == 0
    assert again["cells"] == document["cells"]


@pytest.mark.full
def test_a_cell_s_plans_are_those_of_solve() -> None:
    write("sweep.yaml", BASE + "list: [{cluster.num_gpus: 32}]")
    write("spec.yaml", BASE.replace("base:", "").replace("num_gpus: 16", "num_gpus: 32").replace("\n  ", "\n"))
    (cell,) = json.loads(run("batch", "sweep.yaml", "--json").stdout)["cells"]
    solved = json.loads(run("solve", "spec.yaml", "--json").stdout)
    assert cell["plans"] == solved["plans"]
    best = solved["plans"][0]
    assert (cell["step_time_s"], cell["mfu"], cell["devices"]) == (best["step_time_s"], best["mfu"], 32)


@pytest.mark.full
def test_files_and_the_report_at_80_and_160_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    text = MIXED.replace("{cluster.num_gpus: 16}", '{label: "<b>&", cluster.num_gpus: 16, cluster.prices: {a800: 2}}')
    write("sweep.yaml", text)
    result = run("batch", "sweep.yaml", "--csv", "out.csv", "--html", "out.html")
    with Path("out.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert [line["status"] for line in table] == ["optimal", "error", "infeasible"]
    assert table[0]["axis:cell"] == "<b>&"
    cost = float(table[0]["tokens_per_s"]) / float(table[0]["tokens_per_s_per_dollar_per_hour"])
    assert cost == pytest.approx(16 * 2)
    assert table[2]["reasons"]
    page = Path("out.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;&amp;" in page
    assert "<b>" not in page
    assert page.count('<svg class="plot"') == 3
    assert_stands_alone(page)
    for columns in (80, 160):
        monkeypatch.setenv("COLUMNS", str(columns))
        shown = run("batch", "sweep.yaml").stdout
        assert max(map(len, shown.splitlines())) <= columns
        assert ("80 % interval" in shown) == (columns == 160)
    assert "3 cells: 1 optimal, 1 infeasible, 1 error" in result.stdout
    assert "unknown model" in result.stdout


@pytest.mark.full
@pytest.mark.parametrize(
    ("cells", "code"),
    [full("[{model: llama9}]", 2), ("[{search.pin.mbs: 128}, {model: llama9}]", 3)],
)
def test_exit_codes_without_a_plan(cells: str, code: int) -> None:
    write("sweep.yaml", f"{BASE}list: {cells}")
    assert run("batch", "sweep.yaml").exit_code == code


def test_options_that_cannot_work_are_told_before_anything_is_solved() -> None:
    write("sweep.yaml", BASE + "list: [{cluster.num_gpus: 16}]")
    for options, told in (
        (["--html", "no/where.html"], "there is no directory"),
        (["--csv", "sweep.yaml"], "is an input of this command"),
        (["--db", "no/where.sqlite"], "there is no directory"),
        (["--ray-address", "x:1"], "--on ray is missing"),
    ):
        result = run("batch", "sweep.yaml", *options)
        assert result.exit_code == 2, options
        assert told in result.stderr
    assert not Path("sweep.sqlite").exists()


def test_without_its_package_parquet_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "ray", None)
    write("sweep.yaml", BASE + "list: [{cluster.num_gpus: 16}]")
    for options, package in ((["--parquet", "a.parquet"], "apss-cp[batch]"), (["--on", "ray"], "apss-cp[ray]")):
        result = run("batch", "sweep.yaml", *options)
        assert result.exit_code == 2
        assert package in result.stderr


def test_parquet_has_the_columns_with_their_types() -> None:
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    write("sweep.yaml", MIXED)
    assert run("batch", "sweep.yaml", "--parquet", "out.parquet").exit_code == 0
    table = parquet.read_table("out.parquet")
    assert table.column("status").to_pylist() == ["optimal", "error", "infeasible"]
    assert str(table.schema.field("step_time_s").type) == "double"
    assert json.loads(table.column("plans")[0].as_py())[0]["rank"] == 1


@pytest.mark.full
def test_a_time_limit_is_each_cell_s_and_a_longer_one_tries_again() -> None:
    base = BASE.replace("llama2-7b", "llama2-70b").replace("num_gpus: 16", "num_gpus: 256").replace("pin:", "forbid:")
    write("sweep.yaml", base.replace("tp: 2, cp: 1, mbs: 1, vpp: 1", "") + "list: [{training.global_batch_size: 512}]")
    (cut,) = json.loads(run("batch", "sweep.yaml", "--json", "--time-limit", "0.001").stdout)["cells"]
    assert cut["status"] in ("feasible", "unknown")
    assert json.loads(run("batch", "sweep.yaml", "--json", "--time-limit", "0.001").stdout)["solved"] == 0
    document = json.loads(run("batch", "sweep.yaml", "--json").stdout)
    assert (document["solved"], document["cells"][0]["status"]) == (1, "optimal")


@pytest.mark.full
def test_a_row_s_time_limit_is_the_one_that_it_was_solved_with() -> None:
    write("sweep.yaml", BASE + "grid: {search.time_limit_s: [1, 60]}")
    assert json.loads(run("batch", "sweep.yaml", "--json").stdout)["solved"] == 1
    assert [row["time_limit_s"] for row in rows("sweep.sqlite").values()] == [60]


@pytest.mark.full
def test_a_killed_run_goes_on_to_the_same_rows_and_does_nothing_twice() -> None:
    write("sweep.yaml", EIGHT)
    process = start("--jobs", "1")
    wait_for_rows(process, 3)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert group_is_gone(process.pid), "workers went on for nobody"
    before = rows("sweep.sqlite")
    assert 3 <= len(before) < 8
    resumed = json.loads(run("batch", "sweep.yaml", "--json").stdout)
    assert resumed["solved"] == 8 - len(before)
    after = rows("sweep.sqlite")
    assert {key: after[key] for key in before} == before, "a row that was there was written again"
    assert run("batch", "sweep.yaml", "--db", "whole.sqlite", "--jobs", "2").exit_code == 0
    assert len(answers("whole.sqlite")) == 8
    assert answers("sweep.sqlite") == answers("whole.sqlite")


def test_ctrl_c_stops_keeps_what_is_done_and_tells_how_to_go_on() -> None:
    write("sweep.yaml", EIGHT)
    process = start("--jobs", "1")
    wait_for_rows(process, 1)
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate()
    assert process.returncode == 130
    kept = len(rows("sweep.sqlite"))
    assert 1 <= kept < 8
    assert f"stopped: {kept} of 8 cells are kept in" in told
    assert "the same command goes on with the other" in told
    assert "Traceback" not in told
    assert group_is_gone(process.pid)


def test_a_worker_that_is_killed_costs_its_cell_and_nothing_else() -> None:
    first, second = cases_of("list: [{cluster.num_gpus: 16}, {cluster.num_gpus: 32}]")
    tasks = [CellTask(case.key, case.problem) for case in (first, second) if case.problem is not None]
    killer = Thread(target=kill_the_next_child)
    killer.start()
    outcomes = list(solve_in_processes(tasks, 1))
    killer.join()
    assert [(one.key, one.columns["status"]) for one in outcomes] == [(first.key, "error"), (second.key, "optimal")]
    assert "the worker was killed (SIGKILL)" in outcomes[0].columns["error"]
    assert not multiprocessing.active_children()


@pytest.mark.full
def test_a_worker_that_stops_is_ended_after_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_OVERDUE_S", 0.3)
    (case,) = cases_of("list: [{cluster.num_gpus: 16}]", BASE.replace("{top: 1,", "{top: 1, time_limit_s: 0.1,"))
    assert case.problem is not None
    killer = Thread(target=kill_the_next_child, args=[signal.SIGSTOP])
    killer.start()
    (outcome,) = solve_in_processes([CellTask(case.key, case.problem)], 1)
    killer.join()
    assert outcome.columns["error"] == "the worker did not answer: ended 0.4 s after its time limit of 0.1 s"
    assert not multiprocessing.active_children()


def kill_the_next_child(number: int = signal.SIGKILL) -> None:
    while not (children := multiprocessing.active_children()):
        time.sleep(0.01)
    os.kill(children[0].pid or 0, number)


@pytest.mark.full
def test_what_failed_is_kept_and_solved_again_only_when_asked_to() -> None:
    write("sweep.yaml", BASE + "list: [{cluster.num_gpus: 16}, {cluster.num_gpus: 32}]")
    run("batch", "sweep.yaml")
    with closing(sqlite3.connect("sweep.sqlite")) as database, database:
        database.execute("UPDATE cells SET status = 'error', error = 'it died', checksum = NULL WHERE num_gpus = 16")
    shown = run("batch", "sweep.yaml").stdout
    assert "it died" in shown
    assert "--retry-failed" in shown
    document = json.loads(run("batch", "sweep.yaml", "--retry-failed", "--json").stdout)
    assert (document["solved"], document["counts"]) == (1, {"optimal": 2})


@pytest.mark.full
def test_an_error_that_several_cells_have_is_told_once() -> None:
    write("sweep.yaml", BASE + "grid: {model: [llama2-7b, llama9], cluster.num_gpus: [16, 32]}")
    told = " ".join(run("batch", "sweep.yaml").stdout.split())
    assert told.count("unknown model") == 1
    assert "error llama9, 16 and 1 more cell:" in told
    assert "None" not in told


def test_one_file_cannot_be_two() -> None:
    write("sweep.yaml", BASE + "list: [{cluster.num_gpus: 16}]")
    for options in (["--csv", "out", "--html", "out"], ["--csv", "sweep.sqlite"], ["--html", "a", "--db", "a"]):
        refused = run("batch", "sweep.yaml", *options)
        assert refused.exit_code == 2
        assert "give two" in refused.output
