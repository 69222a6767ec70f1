"""How figures and tables are written."""

from __future__ import annotations

import csv
from io import StringIO

import pytest

from cpsolver.inputs.text import csv_text, signed_percent


@pytest.mark.parametrize("name", ["=HYPERLINK(1)", "+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1"])
def test_no_text_of_a_table_is_a_formula_to_a_spreadsheet(name: str) -> None:
    rows = list(csv.reader(StringIO(csv_text([name, "step"], [(name, -1.5), ("plain, =1", None)]), newline="")))
    assert rows == [[f"'{name}", "step"], [f"'{name}", "-1.5"], ["plain, =1", ""]]


def test_what_rounds_to_nothing_has_one_sign() -> None:
    assert [signed_percent(share) for share in (-1e-9, 0.0, 1e-9, -0.0123)] == ["+0.0 %", "+0.0 %", "+0.0 %", "-1.2 %"]
