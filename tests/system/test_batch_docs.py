"""docs/batch.md and the example say what is true."""

from __future__ import annotations

import re

from cpsolver.doors.batch.cases import make_cases
from cpsolver.doors.batch.rows import COLUMNS
from cpsolver.doors.batch.sweep import load_sweep
from tests.support.batch_sweeps import sweep_of
from tests.support.checkout import ROOT
from tests.support.command import command, in_tmp

__all__ = ["in_tmp"]

PAGE = (ROOT / "docs" / "batch.md").read_text(encoding="utf-8")


def test_the_page_s_sweep_is_sound() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    cases = make_cases(sweep_of(text))
    assert len(cases) == 2 * 4 * 1 * 2 + 1
    assert not any(case.error for case in cases)


def test_the_example_is_sound() -> None:
    cases = make_cases(load_sweep(ROOT / "examples" / "sweep.yaml"))
    assert len(cases) == 2 * 4 * 2 + 1
    assert not any(case.error for case in cases)


def test_the_page_has_every_column_with_its_meaning() -> None:
    for column in COLUMNS:
        assert f"| `{column.name}` | {column.meaning} |" in PAGE


def test_the_page_has_every_option() -> None:
    for parameter in command("batch").params:
        for option in parameter.opts:
            if option.startswith("--"):
                assert f"`{option}" in PAGE, option
