"""When runs are refused, and what counts as learnt: limits.yaml says why each number is what it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cpsolver.inputs.data import package_schema

_FILE = Path(__file__).parent / "limits.yaml"


@dataclass(frozen=True)
class Limits:
    """The numbers of limits.yaml."""

    fewest_runs: int
    repeats_apart: float
    unexplained: float
    implausible: float
    ran_out: float
    felt: float
    learnt: float


def limits() -> Limits:
    """The limits that come with the package."""
    return package_schema(_FILE, Limits)
