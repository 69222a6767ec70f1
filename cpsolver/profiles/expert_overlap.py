"""Where the experts' all-to-alls can travel while another microbatch computes (`Strategy.expert_overlap`).

Megatron's conditions (--overlap-moe-expert-parallel-comm; core/transformer/transformer_config.py at d98e8a6), once for
the rule, the search and its bounds. As in facts.py, `x` is candidate rows, a column a decision, or one plan.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from models_zoo import Architecture

MOST_MTP = 1
"""Layers of multi-token prediction beside which Megatron overlaps."""
_FULL = ("block", "uniform")


def has_exchange(model: Architecture, x: Any) -> Any:
    """Where experts communicate in a model that may overlap: what a variant decides."""
    return (x.ep > 1) & (model.mtp_layers <= MOST_MTP)


def has_other_microbatch(x: Any) -> Any:
    """Where another microbatch's compute is at hand: chunks of a pipeline in turn, or no pipeline; a frame decides."""
    return (x.vpp > 1) | ((x.pp == 1) & (x.microbatches > 1))


def recomputes_exchange(kind: str, modules: Collection[str]) -> bool:
    """Recomputation of that kind, or of those modules, runs the exchange again: there is no overlap beside it."""
    return kind in _FULL or "moe" in modules
