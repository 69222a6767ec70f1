"""examples/planning.ipynb: its cells run one after the other, as Jupyter runs them, and show what they should."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest

from tests.support.checkout import ROOT
from tests.support.command import in_tmp

__all__ = ["in_tmp"]

NOTEBOOK = json.loads((ROOT / "examples" / "planning.ipynb").read_text(encoding="utf-8"))


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell; the value of its last line where that is an expression."""
    tree = ast.parse(source)
    last = tree.body[-1]
    if not isinstance(last, ast.Expr):
        exec(compile(tree, "cell", "exec"), names)
        return None
    exec(compile(ast.Module(tree.body[:-1], []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def test_it_is_a_notebook_without_outputs() -> None:
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in NOTEBOOK["cells"]]
    assert len(ids) == len(set(ids))
    assert all(cell["outputs"] == [] for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code")


@pytest.mark.full
def test_its_cells_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "notebook"}
    shown: list[str] = []
    for cell in NOTEBOOK["cells"]:
        if cell["cell_type"] == "code":
            value = run_cell("".join(cell["source"]), names)
            shown.append(value._repr_html_() if hasattr(value, "_repr_html_") else repr(value))
    assert "Where the memory goes" in shown[0]
    assert "run this" in shown[1]
    assert "4 cells, 4 of them known" in str(shown)
    assert "options compared, the winner" in str(shown)
    told = capsys.readouterr().out
    assert "--tensor-model-parallel-size" in told
    assert "did you mean 'llama2-7b'" in told
