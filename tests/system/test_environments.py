"""Environments that machines have: no asserts and docstrings, no HOME, no UTF-8, a terminal without columns."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkout import ROOT
from tests.support.command import in_tmp, write

__all__ = ["in_tmp"]

SPEC = """\
model: llama2-7b
cluster: {num_gpus: 8, chips: h100}
training: {global_batch_size: 32, sequence_length: 4096}
search: {top: 1, pin: {pp: 1, cp: 1}}
"""
BARE = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}


def solved(environment: dict[str, str], *flags: str) -> str:
    """What `solve --proof` prints there, without the times that it took."""
    write("spec.yaml", SPEC)
    command = [sys.executable, *flags, str(ROOT / "cli.py"), "solve", "spec.yaml", "--proof"]
    found = subprocess.run(command, env=environment, capture_output=True, check=True)
    return "".join(
        line for line in found.stdout.decode(errors="replace").splitlines(keepends=True) if "s in all" not in line
    )


@pytest.mark.full
def test_the_answer_is_the_same() -> None:
    usual = solved(BARE | {"PYTHONUTF8": "1"})
    assert "cut by" in usual or "proof" in usual.lower()
    assert solved(BARE | {"PYTHONUTF8": "1", "HOME": "/no/such/folder"}, "-OO") == usual
    assert solved(BARE | {"PYTHONUTF8": "1", "COLUMNS": "0", "TERM": "dumb"}) == usual
    assert solved(BARE | {"LANG": "C", "PYTHONIOENCODING": "ascii"}).isascii()


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_told() -> None:
    write("spec.yaml", SPEC)
    Path().chmod(0o555)
    command = [sys.executable, str(ROOT / "cli.py"), "solve", "spec.yaml", "--output", "answer.txt"]
    found = subprocess.run(command, env=BARE, capture_output=True, text=True, check=False)
    Path().chmod(0o755)
    assert (found.returncode, "permission denied" in found.stderr) == (2, True)
