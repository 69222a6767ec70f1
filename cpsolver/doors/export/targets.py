"""Which exporter serves which target. Targets have the names of the launcher profiles."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from cpsolver.doors.export.base import Launch
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem

Exporter = Callable[[Problem, Strategy], Launch]

EXPORTERS = {
    "megatron-lm": "megatron:megatron_lm",
    "megatron-core-0.13": "megatron:core_0_13",
    "megatron-core-0.12": "megatron:core_0_12",
    "mindspeed-llm": "mindspeed:mindspeed_llm",
    "loongforge": "loongforge:loongforge",
    "megatron-bridge": "bridge:megatron_bridge",
    "flagscale": "flagscale:export",
    "deepspeed": "deepspeed:export",
    "torchtitan": "torchtitan:export",
    "accelerate": "accelerate:export",
}
"""Target -> "module:function", the module one of this package; loaded when the target is asked for."""


def exporter(target: str) -> Exporter:
    """The exporter of that target; raises KeyError where there is none."""
    module, name = EXPORTERS[target].split(":")
    found: Exporter = getattr(import_module(f"cpsolver.doors.export.{module}"), name)
    return found
