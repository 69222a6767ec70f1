"""docs/calibrate.md says what is measured, and what the code does."""

from __future__ import annotations

import subprocess
import sys

from cpsolver.profiles.constants import Overlay
from tests.support.checkout import ROOT

PAGE = (ROOT / "docs" / "calibrate.md").read_text(encoding="utf-8")


def test_the_page_has_the_measured_table() -> None:
    comment, _, table = (ROOT / "benchmarks" / "results" / "calibrate_published.md").read_text().partition("\n")
    assert comment.startswith("<!--")
    assert table.strip() in PAGE


def test_the_page_has_every_field_of_the_file() -> None:
    names = {field.alias or name for name, field in Overlay.model_fields.items()} - {"file"}
    assert {name for name in names if f"`{name}`" not in PAGE} == set()


def test_using_the_file_needs_no_scipy() -> None:
    modules = "cpsolver.evidence.posterior.forecast, cpsolver.evidence.runs.validation, sys"
    script = f"import {modules}; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 0
