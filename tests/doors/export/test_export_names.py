"""Names of a spec in exported files: none leaves its comment, its docstring or its word."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from cpsolver.doors.export.launch import EXPORTERS, Launch, exporter
from cpsolver.doors.export.report import launch_text
from cpsolver.inputs.errors import one_line
from tests.support.problems import chip_spec, model_spec, problem_of, strategy_of

NAMES = {
    "line feed": "x\ntouch PWNED #",
    "carriage return": "x\rtouch PWNED #",
    "end of a docstring": 'x"""\nopen("PWNED", "w")\n"""',
    "quotes first and last": '"""x"',
    "backslash at the end": "x\\",
    "NUL": "x\0\ntouch PWNED",
    "line separator": "x\u2028touch PWNED\u0085touch PWNED\x0ctouch PWNED",
    "substitution": "$(touch PWNED)${x:=$(touch PWNED)}",
    "backticks": "`touch PWNED`",
    "option": "--x #; touch PWNED",
    "terminal": "x\x1b]0;x\x07\x1b[2J",
}
STUB = "#!/bin/sh\necho $# words\n"


@cache
def launch(target: str, name: str, mixed: bool = False) -> Launch:
    """The target's export where the model and the chips have that name."""
    chips: dict[str, Any] = {name: chip_spec(), f"{name}2": chip_spec(tflops=50)}
    groups = "x:2 y:2" if mixed else "x:4"
    problem = problem_of(chips, model_spec(name=name), gpus=8 if mixed else 4)
    names, plan = {"x": name, "y": f"{name}2"}, strategy_of(groups, flags="f")
    renamed = tuple(replace(group, chip=names[group.chip]) for group in plan.groups)
    return exporter(target)(problem, replace(plan, groups=renamed))


CASES = [(target, mixed) for target in EXPORTERS for mixed in (False, True) if not (mixed and target == "accelerate")]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("target", "mixed"), CASES)
def test_no_name_adds_a_line_or_leaves_its_comment(target: str, mixed: bool, name: str) -> None:
    """All lines are those of a harmless name but for comments, the table of nodes, and FlagScale's device types."""
    plain, made = launch(target, "plain", mixed), launch(target, NAMES[name], mixed)
    assert set(made.files) == set(plain.files)
    for file, text in made.files.items():
        assert all(each.isprintable() or each in "\n\t" for each in text), file
        before, after = plain.files[file].splitlines(), text.splitlines()
        assert len(after) == len(before), file
        changed = [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]]
        if file.endswith(".sh"):
            assert all(line.startswith("# ") for pair in changed for line in pair)
        elif file.endswith(".py"):
            trees = [ast.parse(each) for each in (plain.files[file], text)]
            assert len({ast.dump(ast.Module(tree.body[1:], [])) for tree in trees}) == 1
            assert all(ast.get_docstring(tree) for tree in trees)
    assert all(line.startswith("# - ") for line in launch_text(made).splitlines() if line not in _all_lines(made))


def _all_lines(made: Launch) -> set[str]:
    """Lines of the launch's own: files, environment, arguments and headings."""
    lines = {line.rstrip() for text in made.files.values() for line in text.splitlines()}
    shown = launch_text(Launch(made.target, made.arguments, made.environment, made.files, made.main))
    return lines | set(shown.splitlines())


@pytest.mark.parametrize("target", EXPORTERS)
def test_scripts_run_nothing_but_the_framework(target: str, tmp_path: Path) -> None:
    """Every script in real bash, with a stub for what it starts; nothing but the files is in the folder afterwards."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for program in ("torchrun", "deepspeed", "accelerate", "python3", "paddleformers-cli", "msrun"):
        (programs / program).write_text(STUB, encoding="utf-8")
        (programs / program).chmod(0o755)
    there = {"PATH": f"{programs}:{os.environ['PATH']}", "NODE_RANK": "0", "MASTER_ADDR": "here"}
    there |= {"DATA_PATH": "d", "TOKENIZER_PATH": "t", "PYTHONPATH": ""}
    there |= {"MODEL_PATH": "m", "TRAIN_FILES": "t", "VAL_FILES": "v"}
    for number, name in enumerate(NAMES.values()):
        folder = tmp_path / str(number)
        folder.mkdir()
        made = launch(target, name)
        for file, text in made.files.items():
            (folder / file).write_text(text, encoding="utf-8")
            if file.endswith(".sh"):
                subprocess.run(["bash", "-n", file], cwd=folder, check=True)
                done = subprocess.run(["bash", file], cwd=folder, env=there, capture_output=True, text=True, check=True)
                assert done.stdout.endswith(" words\n")
                assert not done.stderr
            elif file.endswith(".py"):
                compile(text, file, "exec")
        assert {file.name for file in folder.iterdir()} == set(made.files)


@pytest.mark.parametrize("name", NAMES)
def test_flagscales_device_types_are_words_and_agree_with_the_host_file(name: str) -> None:
    made = launch("flagscale", NAMES[name], mixed=True)
    types = YAML(typ="safe").load(made.files["plan_train.yaml"])["system"]["hetero"]["hetero_device_types"]
    hosts = [line.split() for line in made.files["hostfile"].splitlines()[1:]]
    assert [host[2] for host in hosts] == [f"type={each}" for each in types]
    assert all(re.fullmatch(r"[A-Za-z0-9_][\w.-]*", each, re.ASCII) for each in types)
    assert len(set(types)) == 2


def test_a_docstring_says_the_name() -> None:
    text = launch("megatron-bridge", 'a "b" \\').files["plan.py"]
    assert (ast.get_docstring(ast.parse(text)) or "").startswith('a "b" \\ on 4 devices')


def test_one_line() -> None:
    assert one_line("llama2-7b é 中 \U0001f600 \\") == "llama2-7b é 中 \U0001f600 \\"
    assert one_line("a\nb\r\tc\0\x7f\x85\u2028\u202e") == r"a\nb\r\tc\x00\x7f\x85\u2028\u202e"
