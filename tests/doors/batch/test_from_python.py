"""sweep and compare from Python: lazy, kept, resumed; the same cells and options as the commands'."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cpsolver as apss
from cpsolver.doors.batch import pool, run
from cpsolver.doors.batch.pool import CellOutcome, CellTask
from tests.support.command import in_tmp, write
from tests.support.command import run as command

__all__ = ["in_tmp"]

SMALL: dict[str, Any] = {"seq": 512, "top": 1, "pin": {"tp": 1, "pp": 1, "vpp": 1, "mbs": 1}}


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Cells are solved in this process; the keys of those that were."""
    found: list[str] = []

    def in_turn(tasks: list[CellTask], _jobs: int) -> Any:
        for task in tasks:
            found.append(task.key)
            yield pool.solve(task)

    monkeypatch.setattr(run, "solve_in_processes", in_turn)
    return found


def sizes(**more: Any) -> apss.LazySweep:
    return apss.sweep("llama2-7b", on=[{"a800": 8}, "a800:16"], batch=[16, 32], **SMALL, **more)


def test_nothing_is_solved_before_it_is_read_and_nothing_twice(solved: list[str]) -> None:
    asked = sizes(db="kept.sqlite")
    assert (len(asked), repr(asked), solved) == (4, "<sweep of 4 cells, 0 of them known>", [])
    assert "<table>" in asked._repr_html_()
    first = next(iter(asked))
    assert first["status"] == "optimal"
    assert first["labels"] == {"training.global_batch_size": "16", "on": "a800:8"}
    assert len(solved) == 1
    again = sizes(db="kept.sqlite")
    cells = list(again)
    assert [cell["key"] for cell in cells][:1] == [first["key"]]
    assert len(solved) == len(set(solved)) == 4
    frame = again.to_frame()
    assert (len(frame), len(solved)) == (4, 4)
    assert list(frame["num_gpus"]) == [8, 16, 8, 16]
    assert list(frame["axis:on"]) == ["a800:8", "a800:16"] * 2
    assert "a800:16" in again._repr_html_()
    assert again.to_dict()["counts"] == {"optimal": 4}


def test_a_script_sweeps_without_being_run_again_by_its_workers() -> None:
    """With no guard on its main part, as one writes a few lines."""
    asked = "apss.sweep('llama2-7b', on={'a800': 8}, batch=[16, 32], seq=512, top=1, pin={'tp': 1, 'pp': 1}, jobs=2)"
    write("few.py", f"import cpsolver as apss\nprint('once')\nfor cell in {asked}:\n    print(cell['status'])\n")
    done = subprocess.run([sys.executable, "few.py"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["once", "optimal", "optimal"], "")


def test_a_cell_is_what_plan_answers(solved: list[str]) -> None:
    (cell,) = (one for one in sizes() if one["num_gpus"] == 16 and one["global_batch_size"] == 32)
    best = apss.plan("llama2-7b", on={"a800": 16}, batch=32, **SMALL).best
    assert cell["step_time_s"] == best.step_time_s
    assert cell["gpus_per_node"] == 8


def test_a_sweep_file_and_its_fields_are_the_command_s(solved: list[str]) -> None:
    base = {
        "model": "llama2-7b",
        "cluster": {"num_gpus": 8, "chips": "a800"},
        "training": {"global_batch_size": 16, "sequence_length": 512},
        "search": {"top": 1, "pin": SMALL["pin"]},
    }
    fields = {"base": base, "grid": {"cluster.num_gpus": [8, 16]}}
    write("sweep.yaml", json.dumps(fields))
    told = json.loads(command("batch", "sweep.yaml", "--json").stdout)["cells"]
    from_file = [cell["step_time_s"] for cell in apss.sweep("sweep.yaml")]
    assert Path("sweep.sqlite").is_file()
    assert from_file == [cell["step_time_s"] for cell in told]
    assert [cell["step_time_s"] for cell in apss.sweep(fields)] == from_file
    write("sweep.yaml", json.dumps({**fields, "grid": {"cluster.num_gpu": [8]}}))
    with pytest.raises(apss.InputError, match=r"sweep\.yaml:1:\d+ grid"):
        apss.sweep("sweep.yaml")


def test_where_answers_pass_with_the_sweep_its_file_goes_too(solved: list[str]) -> None:
    asked = sizes()
    folder = Path(str(asked._request.db)).parent
    assert folder.is_dir()
    del asked
    assert not folder.exists()


def test_what_is_wrong_with_all_cells_is_an_error_and_with_one_a_row(solved: list[str]) -> None:
    with pytest.raises(apss.InputError, match="unknown model"):
        apss.sweep("llama2-7", on=[{"a800": 8}], batch=16, **SMALL)
    cells = list(apss.sweep(["llama2-7b", "llama2-7"], on={"a800": 8}, batch=16, **SMALL))
    assert sorted(cell["status"] for cell in cells) == ["error", "optimal"]
    with pytest.raises(apss.InputError, match="on = 'a800': must be CHIP:DEVICES"):
        apss.sweep("llama2-7b", on="a800", batch=[16], **SMALL)


def test_a_worker_that_fails_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = {"status": "error", "error": "lost"}
    monkeypatch.setattr(run, "solve_in_processes", lambda tasks, _: (CellOutcome(t.key, failed) for t in tasks))
    assert {cell["error"] for cell in sizes()} == {"lost"}


@pytest.mark.parametrize(("ray", "address"), [(True, None), ("auto", "auto")])
def test_on_ray_where_it_is_asked_for(ray: bool | str, address: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(run, "check_ray", asked.append)
    row = {"status": "infeasible", "reasons": "[]", "plans": "[]", "proof": "{}"}

    def on_ray(tasks: list[CellTask], jobs: int | None, where: str | None) -> Any:
        asked.append((jobs, where))
        return (CellOutcome(task.key, row) for task in tasks)

    monkeypatch.setattr(run, "solve_on_ray", on_ray)
    assert {cell["status"] for cell in sizes(ray=ray, jobs=3)} == {"infeasible"}
    assert asked == [address, (3, address)]


@pytest.mark.full
def test_options_are_weighed_as_by_the_command() -> None:
    more = {"tokens": 1e10, "nodes": False}
    priced = {"training": {"precision": "bf16"}, "cluster": {"prices": {"a800": 1.2}}}
    found = apss.compare("llama2-7b", on=["h800:8@2.1", {"a800": 8}], batch=16, seq=512, **priced, **more)  # type: ignore[arg-type]
    assert [option.answer.name for option in found.options] == ["h800:8@2.1", "a800:8"]
    spec = {
        "model": "llama2-7b",
        "cluster": {"num_gpus": 8, "chips": "a800", "prices": {"a800": 1.2}},
        "training": {"global_batch_size": 16, "sequence_length": 512},
    }
    write("spec.yaml", json.dumps(spec))
    asked = ("--on", "h800:8@2.1", "--on", "a800:8", "--tokens", "1e10", "--no-nodes", "--json")
    told = json.loads(command("compare", "spec.yaml", *asked).stdout)
    assert told["options"] == json.loads(json.dumps(found.to_dict()["options"]))
    frame = found.to_frame()
    assert list(frame["dollars_per_hour"]) == [pytest.approx(16.8), pytest.approx(9.6)]
    assert found.winner is not None
    assert list(frame["winner"]) == [option.answer is found.winner for option in found.options]
    assert found.winner.name in repr(found)
    assert "h800:8@2.1" in found._repr_html_()
    problem = apss.make_problem({**spec, "training": {**spec["training"], "tokens": 1e10}})  # type: ignore[dict-item]
    alone = apss.compare(problem, problem, nodes=False)
    assert alone.options[0].answer.outlook == found.options[1].answer.outlook
    with pytest.raises(apss.InputError, match="tokens: is for a spec, and a problem is given"):
        apss.compare(problem, problem, tokens=1e10)
    with pytest.raises(apss.InputError, match="sources: is alone"):
        apss.compare(problem)
