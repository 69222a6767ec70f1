"""What the framework of a software stack runs: facts as a launcher's, and some that tell stacks apart.

Most stacks say nothing of it: that is the launcher's business. A stack that trains with sharded parameters (FSDP,
ZeRO-3) is one framework at one time, and its profile says which layouts that had. The rule `stack` judges plans by it,
with the means of the rule `launcher`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
from pydantic import Field

from cpsolver.plans.strategy import MODULES
from cpsolver.profiles.launcher import FACTS, Launcher
from cpsolver.profiles.runnable import Bools, Rows, allowed_variants
from cpsolver.profiles.switches import OffloadModule, OptimizerName, Precision, Switch
from models_zoo import Architecture

_SPLITS = ("uneven_layers", "uneven_interleaved", "uneven_context", "uneven_groups", "uneven_mtp")
_STRICTEST_FIRST: dict[str, tuple[str, ...]] = {
    "kv_groups": ("divides", "divides_or_multiple"),
    **dict.fromkeys(_SPLITS, ("none", "first_last", "any")),
    "expert_tensor_parallel": ("one", "without_bias", "any"),
    "experts_within": ("sharding_group", "stage"),
    "recompute_units": ("one", "any"),
}
_KINDS = ("selective", "block", "uniform")
_SHARDED = ("optimizer", "gradients", "parameters")
_UNSAID: dict[str, Any] = dict.fromkeys(FACTS, True) | {
    **{fact: values[-1] for fact, values in _STRICTEST_FIRST.items()},
    "uneven_flag": "",
    "zero_bubble": (),  # nothing searches for these, and no stack with facts has them
    **dict.fromkeys(("breadth_first", "dynamic_micro_batches"), False),  # nor for these
    "context_parallel": ("p2p", "allgather", "a2a", "a2a+p2p"),
    "sharded": _SHARDED,
    "sharded_pipeline": ("optimizer",),  # the rule sharding knows no more
    "sharding_groups": _SHARDED,
    "recompute": _KINDS,
    "recompute_modules": MODULES,
    "recompute_by_stage": _KINDS,
    "flash_attention": (False, True),
    "precisions": get_args(Precision),
    "optimizers": get_args(OptimizerName),
    "switches": get_args(Switch),
    "activation_offload": get_args(OffloadModule),
    "partial_offload": _SHARDED,
}
"""What a fact is where a profile does not state it."""


class Runs(Launcher):
    """The facts that a stack states, with their sources in `sources`; the others rule nothing out."""

    plain_tensor: bool = Field(default=True, description="tp > 1 without sequence parallelism")
    plain_weights: bool = Field(
        default=True, description="the optimizer's states may be whole on every rank: DDP, or a single replica"
    )


def read_runs(name: str, title: str, facts: Mapping[str, Mapping[str, Any]]) -> Runs:
    """Facts as a profile states them: a value and its source each."""
    values = {fact: entry["value"] for fact, entry in facts.items()}
    sources = {fact: entry["source"] for fact, entry in facts.items()}
    return Runs.model_validate({**_UNSAID, **values, "name": name, "title": title, "sources": sources})


def runs_variants(runs: Runs, model: Architecture, rows: Rows) -> Bools:
    """The variants that a stack's framework can run: `allowed_variants`, and the facts of its own."""
    allowed = allowed_variants(runs, model, rows)
    allowed &= runs.plain_tensor | rows.sequence_parallel | (rows.tp == 1)
    return np.asarray(allowed & (runs.plain_weights | rows.distributed_optimizer))


def both(first: Launcher | None, second: Launcher | None) -> Launcher | None:
    """The facts of what two profiles both run, for the search; None: either runs anything."""
    if first is None or second is None:
        return second if first is None else first
    facts = {name: _stricter(name, getattr(first, name), getattr(second, name)) for name in FACTS}
    return Launcher(name=f"{first.name} with {second.name}", title=first.title, sources={}, **facts)


def _stricter(fact: str, one: Any, other: Any) -> Any:
    if isinstance(one, bool):
        return one and other
    if isinstance(one, tuple):
        return tuple(value for value in one if value in other)
    return min(one, other, key=_STRICTEST_FIRST[fact].index) if fact in _STRICTEST_FIRST else one  # a flag's name
