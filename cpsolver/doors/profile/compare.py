"""The measured figures beside those of the catalogue's entry, and beside what planning makes of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cpsolver.doors.profile.figures import Figure
from cpsolver.profiles.constants import load_calibration
from hw_specs import EFFICIENCY_NAMES, Chip


@dataclass(frozen=True)
class Row:
    """One figure. `catalogue`: the entry's; `planned`: that with the factors fitted to published runs; None: has none.

    `measured` is None where it was not measured, `spread` then too.
    """

    name: str
    catalogue: float | None
    planned: float | None
    confidence: str
    measured: float | None
    spread: float | None

    @property
    def ratio(self) -> float | None:
        """Measured over the catalogue's."""
        return None if self.measured is None or self.catalogue is None else self.measured / self.catalogue


def comparison(entry: Chip | None, found: Sequence[Figure]) -> list[Row]:
    """A row for each figure that was measured or that the entry has of a precision that it knows."""
    measured = {each.name: each for each in found}
    planned = None if entry is None else load_calibration().chip(entry)
    rows = []
    for name in EFFICIENCY_NAMES:
        figure = measured.get(name)
        known = entry is not None and _has(entry, name)
        if figure is None and not known:
            continue
        rows.append(
            Row(
                name,
                entry.efficiency_value(name) if entry is not None and known else None,
                planned.efficiency_value(name) if planned is not None and known else None,
                entry.efficiency[name].confidence if entry is not None and known else "",
                None if figure is None else figure.value,
                None if figure is None else figure.spread,
            )
        )
    return rows


def _has(entry: Chip, name: str) -> bool:
    precision = name.removeprefix("gemm_")
    return precision == name or getattr(entry.peak_tflops, precision) is not None
