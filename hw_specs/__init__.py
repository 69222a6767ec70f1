"""Hardware catalogue: accelerators with peaks, memory, fabrics and achieved efficiencies, and networks, with sources.

Imports nothing of the planner.
"""

from hw_specs.catalogue import UnknownChipError, chip_names, complete_chip, list_chips, load_chip
from hw_specs.network import (
    FastDomain,
    NetworkFigures,
    NetworkLevel,
    NetworkPreset,
    UnknownNetworkError,
    list_networks,
    load_network,
    network_names,
)
from hw_specs.schema import EFFICIENCY_NAMES, BlockFormat, Chip, Dtype, Efficiency, UnknownFigureError, unusable_reasons

__all__ = [
    "EFFICIENCY_NAMES",
    "BlockFormat",
    "Chip",
    "Dtype",
    "Efficiency",
    "FastDomain",
    "NetworkFigures",
    "NetworkLevel",
    "NetworkPreset",
    "UnknownChipError",
    "UnknownFigureError",
    "UnknownNetworkError",
    "chip_names",
    "complete_chip",
    "list_chips",
    "list_networks",
    "load_chip",
    "load_network",
    "network_names",
    "unusable_reasons",
]
