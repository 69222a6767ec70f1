"""What tests of `apss-cp tune` share: a small spec, its command, the state read back."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from cpsolver.doors.tune.state import State
from cpsolver.doors.tune.trial import Trial
from cpsolver.problem.load import load_problem
from cpsolver.problem.problem import Problem
from tests.support.command import run, write
from tests.support.fake_training import FILE

SPEC = """\
model: llama2-7b
cluster: {num_gpus: 8, chips: h100}
training: {global_batch_size: 32, sequence_length: 4096}
launcher: megatron-lm
search: {top: 3, pin: {pp: 1, cp: 1}}
"""
TOP = ("--policy", "top")
"""The plain chooser: these tests are about all else."""
TRAINING = shlex.join([sys.executable, str(FILE)])


def spec() -> str:
    """The spec as a file in the test's folder."""
    return write("spec.yaml", SPEC)


def problem() -> Problem:
    """The spec's problem."""
    return load_problem(spec())


def tune(*args: str, code: int = 0) -> dict[str, Any]:
    """The answer of `apss-cp tune spec.yaml` with these options, which ends with that exit code."""
    result = run("tune", spec(), *TOP, *args, "--json")
    assert result.exit_code == code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def errors(*args: str) -> str:
    """What is wrong with these options, as told."""
    result = run("tune", spec(), *TOP, *args)
    assert result.exit_code == 2, result.output
    return result.stderr


def kept(folder: str = "spec.tune") -> list[Trial]:
    """The trials of a state."""
    with State(Path(folder)) as state:
        return state.trials()
