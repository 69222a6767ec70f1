"""The tally of public training scripts: what counts, what helps, and the comparison with bash."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.corpus import documented, made_up, read, report, scripts
from benchmarks.corpus_bash import bash_runs, compared
from tests.doors.importing.test_import_scripts import LLAMA, STEP, torchrun

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
SIZED = "SIZE=$1\nif [ $SIZE = 7B ]; then L=32; fi\nset -e\nmissing-program\n" + torchrun(LLAMA + STEP).replace(
    "--num-layers 32", "--num-layers $L"
)
CHIPS = ("h100",)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A folder with a script that needs an argument, the same once more, and one that trains no decoder."""
    (tmp_path / "docs.md").write_text("```\nbash run.sh \\\n  7B\n```\n", encoding="utf-8")
    (tmp_path / "run.sh").write_text(SIZED, encoding="utf-8")
    (tmp_path / "same.sh").write_text(SIZED, encoding="utf-8")
    (tmp_path / "t5.sh").write_text(torchrun(LLAMA + STEP).replace("pretrain_gpt", "pretrain_t5"), encoding="utf-8")
    (tmp_path / "ls.sh").write_text("ls\n", encoding="utf-8")
    return tmp_path


def test_each_text_counts_once_with_its_documented_arguments(repository: Path) -> None:
    assert [file.name for file in scripts(repository)] == ["run.sh", "t5.sh"]
    assert documented(repository)["run.sh"] == [("7B",)]
    assert made_up(SIZED) == ("7B",)
    outcomes = [read(file, CHIPS, documented(repository)[file.name]) for file in scripts(repository)]
    assert [outcome.what for outcome in outcomes] == ["spec and plan", "out of scope"]
    assert report("here", outcomes) == "| here | 1 | 1 | 0 | 0 | 1 | 100% |"


@needs_bash
def test_what_bash_starts_is_noted_and_compared(repository: Path) -> None:
    file = repository / "run.sh"
    assert bash_runs(file, ("7B",)) == []  # it stops where a program is missing
    assert bash_runs(file, ("7B",), stops=False)[0][-2:] == ["64", "--bf16"]
    lines = list(compared([read(file, CHIPS, [("7B",)])], repository))
    assert lines == ["compared with bash: 1 agrees"]
