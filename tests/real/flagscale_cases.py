"""Plans in FlagScale's heterogeneous mode: equal and unequal degrees, two and three types, experts, shared tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cpsolver.plans.strategy import Mesh, Strategy
from cpsolver.problem.problem import Problem
from tests.support.problems import chip_spec, model_spec, problem_of, strategy_of, with_meshes

SHAPE: dict[str, Any] = {"layers": 8, "heads": 16, "kv_heads": 8}
EXPERTS = {"experts": 8, "top_k": 2, "expert_ffn": 512}
MODELS = {
    "dense": model_spec(**SHAPE),
    "experts": model_spec(**SHAPE, moe=EXPERTS),
    "tied": model_spec(**SHAPE, tied_embeddings=True),
    "mtp": model_spec(**SHAPE, mtp_layers=1),
}


@dataclass(frozen=True)
class Case:
    """A plan from text (tests.support.problems.strategy_of), its chip types' meshes and its model, in nodes of one."""

    name: str
    groups: str
    fields: dict[str, Any]
    meshes: dict[str, Mesh] = field(default_factory=dict)
    model: str = "dense"

    @cached_property
    def strategy(self) -> Strategy:
        """The plan."""
        return with_meshes(strategy_of(self.groups, **{"flags": "fsz", **self.fields}), **self.meshes)

    @cached_property
    def problem(self) -> Problem:
        """The problem it is for."""
        chips = {chip: chip_spec(gb=1000) for chip in dict.fromkeys(self.strategy.stage_chips)}
        devices = self.strategy.devices
        return problem_of(
            chips, MODELS[self.model], devices, 1, batch=48, sequence=2048, launcher="flagscale", degrees_by_chip=True
        )


def _tp(tp: int, dp: int, **more: int) -> Mesh:
    return Mesh(tp, 1, dp, **more)


PLAIN = {"flags": "fz"}
CASES = (
    Case("equal, two types", "x:4 y:4", {"tp": 2, "dp": 2}),
    Case("equal, stages of each", "x:2,2 y:2,2", {"tp": 2, "dp": 1, "flags": "fs"}),
    Case("equal, replicas and stages", "x:2,3 y:1,2", {"tp": 2, "dp": 2}),
    Case("equal, three types", "x:2 y:3 z:3", {"tp": 1, "dp": 4, **PLAIN}),
    Case("equal, experts", "x:4 y:4", {"tp": 2, "dp": 4, "ep": 4}, model="experts"),
    Case("equal, tied", "x:4 y:4", {"tp": 2, "dp": 4}, model="tied"),
    Case("one mesh, any layers", "x:1,3,2,2", {"tp": 2, "dp": 2}),
    Case("wider on the second", "x:4 y:4", {"tp": 2, "dp": 4}, {"y": _tp(4, 2)}),
    Case("narrower on the second", "x:4 y:4", {"tp": 4, "dp": 2, "mbs": 2}, {"y": _tp(2, 4)}),
    Case("as many devices, other dp", "x:4 y:4", {"tp": 1, "dp": 8, **PLAIN}, {"y": _tp(1, 4)}),
    Case("fewer replicas", "x:5 y:3", {"tp": 2, "dp": 4, "mbs": 1}, {"y": _tp(2, 2)}),
    Case("more replicas", "x:5 y:3", {"tp": 2, "dp": 2, "mbs": 2}, {"y": _tp(2, 4)}),
    Case("no divisor of each other", "x:4 y:4", {"tp": 2, "dp": 3, "mbs": 2}, {"y": _tp(2, 2)}),
    Case("from tp 1 to 8", "x:4 y:4", {"tp": 1, "dp": 2}, {"y": _tp(8, 1)}),
    Case("several stages, one replica", "x:2,1 y:2,3", {"tp": 4, "dp": 1, "mbs": 2}, {"y": _tp(2, 2)}),
    Case("several stages and replicas", "x:2,1 y:2,3", {"tp": 2, "dp": 4}, {"y": _tp(4, 2)}),
    Case("three types, all unequal", "x:2 y:3 z:3", {"tp": 2, "dp": 2, "mbs": 2}, {"y": _tp(4, 1), "z": _tp(1, 4)}),
    Case("three types, stages of each", "x:1,1 y:2 z:2,2", {"tp": 2, "dp": 4}, {"y": _tp(1, 4), "z": _tp(4, 2)}),
    Case("two of three alike", "x:2 y:3 z:3", {"tp": 2, "dp": 2, "mbs": 2}, {"z": _tp(2, 4)}),
    Case("experts on both", "x:4 y:4", {"tp": 2, "dp": 4, "ep": 4}, {"y": _tp(4, 2, ep=2)}, "experts"),
    Case("experts cut by tensor", "x:4 y:4", {"tp": 2, "dp": 4, "ep": 2, "etp": 2}, {"y": _tp(2, 2, ep=4)}, "experts"),
    Case("experts whole", "x:4 y:4", {"tp": 2, "dp": 2, "mbs": 2}, {"y": _tp(1, 4)}, "experts"),
    Case("experts, stages", "x:2,2 y:1,3", {"tp": 2, "dp": 4, "ep": 8}, {"y": _tp(4, 2, ep=4)}, "experts"),
    Case("tied, other dp", "x:4 y:4", {"tp": 2, "dp": 2, "mbs": 2}, {"y": _tp(2, 4)}, "tied"),
    Case("tied, dp by three", "x:4 y:4", {"tp": 2, "dp": 6}, {"y": _tp(2, 2)}, "tied"),
    Case("tied, whole states", "x:4 y:4", {"tp": 1, "dp": 3, "mbs": 2, "flags": "f"}, {"y": _tp(1, 2)}, "tied"),
    Case("tied around another", "x:2 y:3 z:3", {"tp": 2, "dp": 2}, {"y": _tp(4, 1)}, "tied"),
    Case("token prediction", "x:4 y:4", {"tp": 2, "dp": 4}, {"y": _tp(2, 2)}, "mtp"),
    Case("recomputed", "x:4 y:4", {"tp": 2, "dp": 4, "recompute": "uniform", "amount": 2}, {"y": _tp(4, 2)}),
)
