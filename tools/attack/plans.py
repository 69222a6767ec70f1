"""Every plan of a small problem, by plain loops; the rules and the judge alone say which are legal and how fast.

Loops take every number up to what could make sense, not what the search takes: the rules are asked whether a plan is
legal. Partial plans are given up early only by rules on what is already chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, product
from typing import Any

import cpsolver
from cpsolver import Problem, Strategy
from cpsolver.plans.strategy import MODULES, ON_REQUEST, RECOMPUTE_KINDS, SEARCHED_SCHEDULES, SHARDED, StageGroup
from cpsolver.rules import RULES

Values = Mapping[str, Any]
Amount = tuple[Any, int, tuple[str, ...]]
"""How a stage recomputes: kind, number of layers, modules."""

OF_SIZES = {"degrees", "heads", "kv_groups", "feed_forward", "tensor_nodes", "pipeline_depth", "adapters"}
OF_FRAMES = OF_SIZES | {"batch", "context_parallel", "interleaving", "schedule"}
OF_VARIANTS = OF_FRAMES | {
    *("experts", "expert_sequence_parallel", "sequence_parallel", "context_exchange"),
    *("distributed_optimizer", "optimizer", "sharding"),
}
"""Rules that look at nothing that is chosen after the sizes, the frame, the variant. `schedule` and `interleaving` look
at no layers; `expert_overlap`, `launcher`, `stack` and `pin` may, and wait for the whole plan."""
CHIPS = OF_VARIANTS | {"chip_count", "whole_nodes", "contiguous_chips"}


PARTS = 5
"""Parts of plans that may be looked at, for every plan that may."""


class TooManyPlans(Exception):
    """There are more plans to judge than may be."""


@dataclass(frozen=True)
class Judged:
    """A legal plan: seconds as the judge sees them, and by the formula that ignores waiting between chip types."""

    strategy: Strategy
    step_s: float
    formula_s: float


@dataclass
class Enumerator:
    """Goes through the plans of one problem; raises TooManyPlans after `most` of them were looked at, or
    many parts of them."""

    problem: Problem
    most: int
    looked_at: int = 0
    asked: int = 0

    def __post_init__(self) -> None:
        search = self.problem.spec.search
        self._pin, self._forbid = search.pin, search.forbid

    def judged(self) -> Iterator[Judged]:
        """Every legal plan with its seconds."""
        for strategy in list(self.whole()):
            if not cpsolver.check(self.problem, strategy):
                found = cpsolver.evaluate(self.problem, strategy)
                yield Judged(strategy, found.step_time_s, found.formula_s)

    def whole(self) -> Iterator[Strategy]:
        """Every plan that is worth a look, legal or not."""
        for variant in self._variants():
            for chips in self._chips(variant):
                for groups in self._stages(variant, chips):
                    self.looked_at += 1
                    if self.looked_at > self.most:
                        raise TooManyPlans
                    yield replace(variant, groups=groups)

    def _wanted(self, name: str, values: Iterable[Any]) -> list[Any]:
        """Those that neither a pin nor a ban takes away."""
        pinned, banned = getattr(self._pin, name), getattr(self._forbid, name) or ()
        return [value for value in values if (pinned is None or value in pinned) and value not in banned]

    def _broken(self, strategy: Strategy, by: set[str]) -> bool:
        self.asked += 1
        if self.asked > PARTS * self.most:
            raise TooManyPlans
        return any(any(RULES[name](self.problem, strategy)) for name in by)

    def _sizes(self) -> Iterator[Strategy]:
        devices, node = self.problem.num_gpus, self.problem.spec.cluster.gpus_per_node
        spec = self.problem.spec
        idle = spec.cluster.idle or spec.search.objective == "fewest_chips"
        numbers = range(1, devices + 1)
        for tp, pp in product(self._wanted("tp", numbers), self._wanted("pp", numbers)):
            if tp * pp > devices or pp > self.problem.model.layers:
                continue
            for cp, dp in product(self._wanted("cp", numbers), self._wanted("dp", numbers)):
                used = tp * pp * cp * dp
                if used == devices or (idle and used < devices and used % node == 0):
                    plan = self._plain(tp=tp, pp=pp, cp=cp, dp=dp)
                    if not self._broken(plan, OF_SIZES):
                        yield plan

    def _plain(self, tp: int, pp: int, cp: int, dp: int) -> Strategy:
        """With those sizes and nothing else that is out of the ordinary; the layers are wrong."""
        groups = (StageGroup(self.problem.chip_names[0], (1,) * pp),)
        return Strategy(tp, pp, dp, 1, 1, False, False, True, groups, cp)

    def _frames(self) -> Iterator[Strategy]:
        batch, layers = self.problem.batch, self.problem.model.layers
        unasked = (name for name in SEARCHED_SCHEDULES if name not in ON_REQUEST)
        listed = dict.fromkeys((*(self.problem.spec.search.schedules or unasked), *(self._pin.schedule or ())))
        for sizes in self._sizes():
            micro = [size for size in self._wanted("mbs", range(1, batch + 1)) if batch % (size * sizes.dp) == 0]
            chunks = self._wanted("vpp", range(1, layers + 2 if sizes.pp > 1 else 2))
            for mbs, vpp, schedule in product(micro, chunks, self._wanted("schedule", listed)):
                stage = (StageGroup(self.problem.chip_names[0], (vpp,) * sizes.pp),)
                plan = replace(sizes, mbs=mbs, vpp=vpp, schedule=schedule, groups=stage)
                if not self._broken(plan, OF_FRAMES):
                    yield plan

    def _variants(self) -> Iterator[Strategy]:
        yes_no, moe = (False, True), self.problem.model.moe
        for frame in self._frames():
            choices: dict[str, Iterable[Any]] = {
                "sequence_parallel": yes_no if frame.tp > 1 else (False,),
                "flash_attention": yes_no,
                "ulysses": range(1, frame.cp + 1),
                "cp_gather": yes_no if frame.cp > 1 else (False,),
                "ep": range(1, moe.experts + 1) if moe else (1,),
                "etp": range(1, frame.tp + 1) if moe else (1,),
                "expert_overlap": yes_no if moe and self._may_overlap() else (False,),
            }
            left = {name: self._wanted(name, values) for name, values in choices.items()}
            for picked in product(*left.values()):
                variant = replace(frame, **dict(zip(left, picked, strict=True)))
                for sharding in self._shardings(frame):
                    whole = replace(variant, **sharding)
                    if not self._broken(whole, OF_VARIANTS):
                        yield whole

    def _may_overlap(self) -> bool:
        """docs/space.md: on is tried where the stack hides a share of the exchange, or a pin asks for it."""
        return self.problem.stack.routing_overlap > 0 or True in (self._pin.expert_overlap or ())

    def _shardings(self, frame: Strategy) -> Iterator[dict[str, Any]]:
        for distributed in self._wanted("distributed_optimizer", (False, True)):
            kinds = SHARDED if distributed else SHARDED[:1]
            groups = range(frame.dp * frame.cp if distributed else 1)
            for sharded in self._wanted("sharded", kinds):
                for group in self._wanted("sharding_group", groups):
                    yield {"distributed_optimizer": distributed, "sharded": sharded, "sharding_group": group}

    def _chips(self, variant: Strategy) -> Iterator[tuple[str, ...]]:
        for chips in product(self.problem.chip_names, repeat=variant.pp):
            groups = tuple(StageGroup(chip, (variant.vpp,)) for chip in chips)
            if not self._broken(replace(variant, groups=groups), CHIPS):
                yield chips

    def _stages(self, variant: Strategy, chips: tuple[str, ...]) -> Iterator[tuple[StageGroup, ...]]:
        """Stages with every split of the layers and every recomputation; neighbours that are alike are one group."""
        amounts = {chip: self._amounts(chip) for chip in dict.fromkeys(chips)}
        by_stage = self.problem.spec.search.recompute_scope == "stage"
        keys: list[Any] = list(range(len(chips))) if by_stage else list(chips)
        owners = dict(zip(keys, chips, strict=True))
        for layers in self._splits(variant):
            for chosen in product(*(amounts[chip] for chip in owners.values())):
                told = dict(zip(owners, chosen, strict=True))
                yield tuple(
                    StageGroup(chip, (count,), told[key][0], (told[key][1],), told[key][2])
                    for key, chip, count in zip(keys, chips, layers, strict=True)
                )

    def _splits(self, variant: Strategy) -> Iterator[tuple[int, ...]]:
        """Every way to put the layers on the stages that could suit the chunks."""
        for cuts in combinations(range(1, self.problem.model.layers), variant.pp - 1):
            ends = (0, *cuts, self.problem.model.layers)
            layers = tuple(after - before for before, after in pairwise(ends))
            if variant.vpp == 1 or not any(count % variant.vpp for count in layers[1:-1]):
                yield layers

    def _amounts(self, chip: str) -> list[Amount]:
        """Ways to recompute on a chip type that its pins and bans leave."""
        kinds = self._of_chip("recompute", chip, RECOMPUTE_KINDS)
        sets = self._of_chip("recompute_modules", chip, _module_sets(self.problem))
        most = max((*range(1, self.problem.model.layers + 1), *_pinned(self._pin.recompute_num_layers, chip)))
        numbers = self._of_chip("recompute_num_layers", chip, range(most + 1))
        found: list[Amount] = []
        for kind in kinds:
            if kind == "selective":
                found += [(kind, 0, names) for names in sets]
            elif kind == "none":
                found.append((kind, 0, ()))
            else:
                found += [(kind, number, ()) for number in numbers if number > 0]
        return found

    def _of_chip(self, name: str, chip: str, values: Iterable[Any]) -> list[Any]:
        pins = getattr(self._pin, name)
        bans = getattr(self._forbid, name) or {}
        pinned = None if not pins else pins.get(chip, pins.get("*"))
        banned = (*bans.get("*", ()), *bans.get(chip, ()))
        return [value for value in values if (pinned is None or value in pinned) and value not in banned]


def _pinned(pins: Mapping[str, tuple[int, ...]] | None, chip: str) -> tuple[int, ...]:
    return () if not pins else pins.get(chip, pins.get("*", ()))


def _module_sets(problem: Problem) -> list[tuple[str, ...]]:
    """Every set of modules that the rule on recomputation takes."""
    sizes = range(1, len(MODULES) + 1)
    names = [name for name in MODULES if _takes(problem, (name,))]
    sets = [one for size in sizes for one in combinations(names, size) if _takes(problem, one)]
    return list(dict.fromkeys(StageGroup("", (1,), "selective", (0,), one).modules for one in sets))


def _takes(problem: Problem, modules: tuple[str, ...]) -> bool:
    stage = StageGroup(problem.chip_names[0], (problem.model.layers,), "selective", (0,), modules)
    plan = Strategy(1, 1, problem.num_gpus, 1, 1, False, False, True, (stage,))
    return not any(RULES["recompute"](problem, plan))


def best_of_each(
    plans: Iterable[Judged], key: Callable[[Strategy], Any], score: Callable[[Judged], Any]
) -> dict[Any, Any]:
    """Key -> the smallest score of the plans with that key."""
    best: dict[Any, Any] = {}
    for plan in plans:
        name, value = key(plan.strategy), score(plan)
        if name not in best or value < best[name]:
            best[name] = value
    return best
