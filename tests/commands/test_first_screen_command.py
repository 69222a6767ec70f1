"""The first screen of `solve` and `plan`: flags, commands to go on with, output that is no terminal."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from cpsolver.commands.next_steps import Given
from tests.support.checkout import ROOT
from tests.support.command import in_tmp, run, write  # noqa: F401
from tests.support.selection import full

SPEC = """\
model: mixtral-8x7b
cluster: {num_gpus: 32, chips: h100}
training: {global_batch_size: 64, sequence_length: 4096}
search: {top: 2}
"""
LINE = ("plan", "llama2-7b", "--on", "a800:16", "--batch", "32", "--seq", "2048")
TOO_BIG = """\
model: llama2-70b
cluster: {num_gpus: 8, chips: a800}
training: {global_batch_size: 8, sequence_length: 4096}
"""


def commands(screen: str) -> Iterator[list[str]]:
    """The commands after `Next`, as a shell would read them."""
    text = screen.partition("\nNext  ")[2].replace("\\\n", "")
    for line in text.splitlines():
        yield shlex.split(line)


def decisions(launch: Path) -> dict[str, Any]:
    """What the script of a launch sets."""
    words = (launch / "train.sh").read_text(encoding="utf-8").split()
    flags = {"tp": "--tensor-model-parallel-size", "pp": "--pipeline-model-parallel-size", "mbs": "--micro-batch-size"}
    return {name: int(words[words.index(flag) + 1]) if flag in words else 1 for name, flag in flags.items()}


@pytest.mark.full
def test_the_commands_that_are_next_work_and_export_the_plan_to_run() -> None:
    screen = run("solve", write("spec.yaml", SPEC)).stdout
    document = json.loads(run("solve", "spec.yaml", "--json").stdout)
    place = document["recommendation"]["run_this"]
    plan = document["plans"][place]
    assert plan["added"]  # none of the K best: export has to look for it, too
    export, explain, full = commands(screen)
    assert export == ["apss-cp", "export", "spec.yaml", "--to", "megatron-lm", *rank(place), "-o", "launch"]
    assert run(*export[1:]).exit_code == 0
    wanted = {name: plan["strategy"][name] for name in ("tp", "mbs")} | {"pp": len(plan["stages"])}
    assert decisions(Path("launch")) == wanted
    assert run(*full[1:]).stdout.count("\n") > 60
    assert explain == ["apss-cp", "explain", "spec.yaml"]


def rank(place: int) -> list[str]:
    return ["--plan-rank", str(place + 1)]


@pytest.mark.full
def test_options_that_export_has_not_got_go_through_a_file() -> None:
    spec = write("spec.yaml", SPEC)
    screen = run("solve", spec, "--top", "1", "--time-limit", "60").stdout
    solve, export, *_, full = commands(screen)
    assert solve[2:] == ["spec.yaml", "--top", "1", "--time-limit", "60", "--json", "-o", "plans.json"]
    assert full == ["apss-cp", "solve", "spec.yaml", "--top", "1", "--time-limit", "60", "--full"]
    assert run(*solve[1:]).exit_code == 0
    assert run(*export[1:]).exit_code == 0
    document = json.loads(Path("plans.json").read_text(encoding="utf-8"))
    place = document["recommendation"]["run_this"]
    assert export[5:9] == ["--plan", "plans.json", *rank(place)]
    assert decisions(Path("launch"))["tp"] == document["plans"][place]["strategy"]["tp"]


@pytest.mark.full
def test_a_line_is_written_as_a_spec_first() -> None:
    screen = run(*LINE, "--top", "2", "--launcher", "megatron-lm").stdout
    plan, export, *_ = commands(screen)
    assert plan[-2:] == ["--write-spec", "spec.yaml"]
    assert not Path("spec.yaml").exists()
    assert run(*plan[1:]).exit_code == 0
    assert export[2] == "spec.yaml"
    assert run(*export[1:]).exit_code == 0
    written = run(*LINE, "--write-spec", "other.yaml").stdout
    assert next(commands(written))[:3] == ["apss-cp", "export", "other.yaml"]


@pytest.mark.full
def test_ranks_count_as_in_the_answer_of_solve_also_beyond_its_plans() -> None:
    spec = write("spec.yaml", SPEC)
    plans = json.loads(run("solve", spec, "--json").stdout)["plans"]
    for number, plan in enumerate(plans, 1):
        ranks = run("export", spec, "--to", "megatron-lm", "--plan-rank", str(number), "-o", f"launch{number}")
        assert ranks.exit_code == 0
        assert decisions(Path(f"launch{number}"))["pp"] == len(plan["stages"])
    beyond = len(plans) + 1
    assert run("export", spec, "--to", "megatron-lm", "--plan-rank", str(beyond), "-o", "more").exit_code == 0
    missing = run("export", spec, "--to", "megatron-lm", "--plan-rank", "101")
    assert missing.exit_code == 2
    assert f"--plan-rank = 101: is no plan of the answer (allowed: 1 to {len(plans)})" in missing.stderr


def test_a_calibration_and_strange_names_are_kept() -> None:
    given = Given("my spec.yaml", "our runs.yaml", {"--top": 3, "--time-limit": None})
    assert given.options == ["--top", "3"]
    assert given.command("explain", given.spec) == "apss-cp explain 'my spec.yaml' --calibration 'our runs.yaml'"


@pytest.mark.full
def test_without_a_plan_explain_is_next() -> None:
    result = run("solve", write("spec.yaml", TOO_BIG))
    assert result.exit_code == 3
    assert list(commands(result.stdout)) == [
        ["apss-cp", "explain", "spec.yaml"],
        ["apss-cp", "solve", "spec.yaml", "--full"],
    ]


@pytest.mark.parametrize(
    ("flag", "title"),
    [
        ("--time", "Where the time goes"),
        ("--memory", "Where the memory goes"),
        ("--proof", "Proof"),
        ("--evidence", "What this is"),
        ("--legend", "What the words mean"),
        ("--full", "Plans"),
    ],
)
def test_flags_print_their_sections(flag: str, title: str) -> None:
    assert f"\n{title}" in run(*LINE, "--top", "1", flag).stdout


def test_several_flags_go_together_and_json_has_all_of_it_anyway() -> None:
    text = run(*LINE, "--top", "1", "--proof", "--memory").stdout
    assert text.index("\nWhere the memory goes") < text.index("\nProof")
    assert "\nWhere the time goes" not in text
    assert "proof" in json.loads(run(*LINE, "--top", "1", "--json", "--memory").stdout)


def piped(*args: str, **environment: str) -> str:
    """stdout of the command in a process of its own, whose stdout is no terminal."""
    there = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")}
    command = [sys.executable, "-m", "cli", *args]
    done = subprocess.run(command, cwd=ROOT, env={**there, **environment}, capture_output=True, check=True)
    return done.stdout.decode("utf-8")


@pytest.mark.parametrize("width", [80, full(100), full(140)])
def test_what_is_piped_has_no_colours_and_80_columns_or_as_many_as_columns_says(width: int) -> None:
    text = piped(*LINE, **({} if width == 80 else {"COLUMNS": str(width)}))
    assert "\x1b" not in text
    lines = text.splitlines()
    assert len(lines) <= 24
    assert max(map(cell_len, lines)) <= width
    assert width == 80 or max(map(cell_len, lines)) > 80


@pytest.mark.full
def test_a_locale_without_utf_8_is_no_trouble() -> None:
    text = piped(*LINE, PYTHONIOENCODING="ascii", LC_ALL="C", PYTHONUTF8="0")
    assert text.isascii()
    assert "?" not in text
    assert "#" in text
    assert "> 1 " in text or ">1 " in text
