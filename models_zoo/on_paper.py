"""What an entry of the catalogue says of a model beside its layers."""

from __future__ import annotations

ON_PAPER = {
    "name",
    "aliases",
    "family",
    "max_positions",
    "published_params_billion",
    "published_params_basis",
    "published_params_gap",
    "sources",
    "confidence",
    "proposal",
    "inferred_fields",
    "notes",
}
"""Fields of an architecture that say nothing of its layers: two that differ in these alone train alike."""
