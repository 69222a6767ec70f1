"""Hardware catalogue: accelerators with peaks, memory, fabrics and achieved efficiencies, with sources.

Imports nothing of the planner.
"""

from hw_specs.catalogue import UnknownChipError, chip_names, complete_chip, list_chips, load_chip
from hw_specs.schema import EFFICIENCY_NAMES, BlockFormat, Chip, Dtype, Efficiency, UnknownFigureError, unusable_reasons

__all__ = [
    "EFFICIENCY_NAMES",
    "BlockFormat",
    "Chip",
    "Dtype",
    "Efficiency",
    "UnknownChipError",
    "UnknownFigureError",
    "chip_names",
    "complete_chip",
    "list_chips",
    "load_chip",
    "unusable_reasons",
]
