"""tools/oldest.py: the lower bounds of pyproject.toml as constraints of pip."""

from __future__ import annotations

import pytest

from tests.support.checkout import ROOT
from tools.oldest import constraints, oldest


def test_bounds_become_the_releases_of_that_bound() -> None:
    assert [*oldest(["numpy>=1.26", "ortools>=9.12,<9.15", "ruamel.yaml>=0.18"])] == [
        "numpy==1.26.*",
        "ortools==9.12.*",
        "ruamel.yaml==0.18.*",
    ]
    with pytest.raises(ValueError, match="rich"):
        list(oldest(["rich"]))


def test_every_dependency_is_bound() -> None:
    names = [line.split("==")[0] for line in constraints(ROOT / "pyproject.toml")]
    assert names == [
        "click",
        "numpy",
        "ortools",
        "pydantic",
        "rich",
        "ruamel.yaml.clib",
        "ruamel.yaml",
        "scipy",
        "starlette",
        "uvicorn",
    ]
