"""Where the experts' all-to-alls can travel while another microbatch computes (`Strategy.expert_overlap`).

Megatron's conditions (--overlap-moe-expert-parallel-comm; core/transformer/transformer_config.py at d98e8a6), once for
the rule, the search and its bounds. As in facts.py, `x` is candidate rows, a column a decision, or one plan.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from cpsolver.plans.dimensions import DIMENSIONS
from cpsolver.plans.strategy import PAIRED, V_SHAPED
from cpsolver.profiles.judging import among
from models_zoo import Architecture

MOST_MTP = 1
"""Layers of multi-token prediction beside which Megatron overlaps."""
_SCHEDULE = DIMENSIONS["schedule"]
_PAIRED = tuple(_SCHEDULE.code(name) for name in PAIRED)
_IN_TURN = tuple(_SCHEDULE.code(name) for name in _SCHEDULE.values if name not in V_SHAPED)
_FULL = ("block", "uniform")


def has_exchange(model: Architecture, x: Any) -> Any:
    """Where experts communicate in a model that may overlap: what a variant decides."""
    return (x.ep > 1) & (model.mtp_layers <= MOST_MTP)


def has_other_microbatch(x: Any) -> Any:
    """Where another microbatch's compute is at hand: chunks of a pipeline in turn, as Megatron has it, schedules that
    run forwards beside backwards, or no pipeline; a frame decides."""
    in_turn = among(x.schedule, _IN_TURN) & (x.vpp > 1)
    return in_turn | among(x.schedule, _PAIRED) | ((x.pp == 1) & (x.microbatches > 1))


def recomputes_exchange(kind: str, modules: Collection[str]) -> bool:
    """Recomputation of that kind, or of those modules, runs the exchange again: there is no overlap beside it."""
    return kind in _FULL or "moe" in modules
