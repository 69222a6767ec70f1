"""A whole plan from some of its decisions: the rest is filled in evenly, and told."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod
from typing import Any

from cpsolver.inputs.errors import InputError, Trouble, nearest_names, shown
from cpsolver.inputs.language import counted, later, say
from cpsolver.plans.dimensions import DEGREES, DIMENSIONS, OF_DEVICES, PLAN_FIELDS, SIZES
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.strategy_file import strategy_from_fields

_OF_A_STAGE = re.compile(r"stages\[(\d+)\]\.(\w+)(.*)")
_LISTS = ("layers", "stage_chips", "recompute_modules")
SETTABLE = (*PLAN_FIELDS, *_LISTS, "recompute", "recompute_layers")
"""What may be said of a plan: the decisions that are one value, layers and chips of each stage, recomputation."""


@dataclass(frozen=True)
class Filled:
    """A plan, and those of its decisions that nobody gave, by name in the order in which people read a plan."""

    strategy: Strategy
    added: Mapping[str, Any]

    def __str__(self) -> str:
        return ", ".join(f"{name} {_shown(value)}" for name, value in self.added.items())


def read_settings(texts: Iterable[str]) -> dict[str, Any]:
    """`tp=8`, `recompute=selective`, `layers=20,20` as decisions by name; raises InputError with all that is wrong."""
    found: dict[str, Any] = {}
    wrong: list[Trouble] = []
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        name = name.lower().replace("-", "_")
        if not equals or not name or not value:
            wrong.append(Trouble("--set", "is no NAME=VALUE", text, later("tp=8 say")))
        elif name in found:
            wrong.append(Trouble("--set", later("says {name} twice", name=name), text))
        else:
            values = [_scalar(part.strip()) for part in value.split(",")]
            found[name] = values if len(values) > 1 or name in _LISTS else values[0]
    wrong += _troubles(found)
    if wrong:
        raise InputError(wrong)
    return found


def fill_strategy(problem: Problem, given: Mapping[str, Any]) -> Filled:
    """The plan with the decisions `given`; all others as evenly and as plainly as the spec's launcher has them.

    Degrees are 1, but that all devices are used: dp is what is left, or pp where dp is given. The micro batch is 1,
    layers are split evenly over the stages, chip types stand in the spec's order with as many stages as they have
    devices for; sequence parallelism, flash attention and a distributed optimizer are on where the launcher has them.

    Raises InputError for decisions that there are not, values that they cannot have, and sizes that leave a rest.
    """
    wrong = _troubles(given)
    if wrong:
        raise InputError(wrong)
    values = {**_sizes(problem, given), **given}
    values |= {name: value for name, value in _usual(problem, values).items() if name not in given}
    values.setdefault("stage_chips", _stage_chips(problem, values))
    values.setdefault("layers", _even_layers(problem.model.layers, values["pp"], values["vpp"]))
    values.setdefault("recompute", "none")
    if values["recompute"] in ("block", "uniform"):
        values.setdefault("recompute_layers", 1)
    fields = {name: value for name, value in values.items() if name in PLAN_FIELDS}
    try:
        strategy = strategy_from_fields({**fields, "stages": _stages(values)}, problem)
    except InputError as error:
        texts = dict.fromkeys(str(_as_decision(trouble)) for trouble in error.troubles)
        raise InputError(Trouble("--set", text) for text in texts) from None
    one_chip = len(problem.supplies) == 1
    quiet = {"stage_chips"} if one_chip else set()
    if problem.model.moe is None:
        quiet |= {"ep", "etp"}
    told = [name for name in (*DIMENSIONS, *SETTABLE) if name in values and name not in given and name not in quiet]
    return Filled(strategy, {name: values[name] for name in dict.fromkeys(told)})


def _as_decision(trouble: Trouble) -> Trouble:
    """A trouble of a plan's file, `stages[1].layers`, in the name of the decision: `layers[1]`, `recompute`."""
    found = _OF_A_STAGE.fullmatch(trouble.where)
    if found is None:
        return trouble
    stage, name, rest = found.groups()
    listed = {"layers": "layers", "chip": "stage_chips"}.get(name)
    return replace(trouble, where=f"{name}{rest}" if listed is None else f"{listed}[{stage}]{rest}")


def _scalar(text: str) -> Any:
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    return {"true": True, "on": True, "false": False, "off": False}.get(text.lower(), text)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        runs = [(len(list(run)), entry) for entry, run in groupby(value)]
        return " + ".join(say("{entry} in {stages}", entry=entry, stages=counted(n, "stage")) for n, entry in runs)
    return say("on" if value else "off") if isinstance(value, bool) else str(value)


def _troubles(given: Mapping[str, Any]) -> list[Trouble]:
    """Decisions that there are not, and sizes that are none."""
    found = []
    for name, value in given.items():
        if name not in SETTABLE:
            near = nearest_names(name, SETTABLE)
            told = later("{name!r} is no decision of a plan", name=name)
            found.append(Trouble("--set", told, None, None if near else ", ".join(SETTABLE), near))
        elif name in SIZES and (type(value) is not int or value < 1):
            found.append(Trouble(f"--set {name}", "must be a whole number, 1 or more", value))
        elif name in ("layers", "stage_chips") and not (isinstance(value, list) and value):
            found.append(Trouble(f"--set {name}", "must be a list, an entry a stage", value))
    return found


def _sizes(problem: Problem, given: Mapping[str, Any]) -> dict[str, int]:
    """All sizes that are not given, so that all devices are used. Raises InputError where that leaves a rest."""
    sizes = {name: given.get(name, 1) for name in DEGREES}
    listed = next((given[name] for name in ("layers", "stage_chips") if isinstance(given.get(name), list)), None)
    if listed is not None and "pp" not in given:
        sizes["pp"] = len(listed)
    free = "dp" if "dp" not in given else "pp" if "pp" not in given and listed is None else None
    if free is None:
        return sizes
    said = {name: sizes[name] for name in OF_DEVICES if name != free}
    product = prod(said.values())
    if problem.num_gpus % product:
        sizes_text = " * ".join(f"{name} {shown(size)}" for name, size in said.items())
        message = later(
            "{sizes} = {product} does not divide the cluster's {num_gpus} devices: no {free} fits",
            sizes=sizes_text,
            product=shown(product),
            num_gpus=problem.num_gpus,
            free=free,
        )
        raise InputError(Trouble("--set", message))
    return {**sizes, free: problem.num_gpus // product}


def _usual(problem: Problem, values: Mapping[str, Any]) -> dict[str, Any]:
    """The flags as the launcher has them; where the spec names none, as Megatron-LM has them."""
    launcher, several = problem.launcher, values["dp"] * values["cp"] > 1
    flags: dict[str, Any] = {"sequence_parallel": values["tp"] > 1, "distributed_optimizer": several}
    flags["flash_attention"] = launcher is None or True in launcher.flash_attention
    if launcher is None:
        return flags
    flags["sequence_parallel"] &= launcher.sequence_parallel
    shares = launcher.sharded if values["pp"] == 1 else launcher.sharded_pipeline
    flags["distributed_optimizer"] &= bool(shares)
    if flags["distributed_optimizer"] and "optimizer" not in shares:
        flags["sharded"] = shares[-1]
    if values["cp"] > 1 and not {"ulysses", "cp_gather"} & values.keys() and "p2p" not in launcher.context_parallel:
        gathers = "allgather" in launcher.context_parallel
        flags |= {"cp_gather": True} if gathers else {"ulysses": values["cp"]}
    return flags


def _stage_chips(problem: Problem, values: Mapping[str, Any]) -> list[str]:
    """A chip for each stage: the spec's chips in their order, each with as many stages as it has devices for."""
    if len(problem.supplies) == 1:
        return [problem.supplies[0].name] * int(values["pp"])
    devices = values["tp"] * values["cp"] * values["dp"]
    room = {supply.name: supply.limit // devices for supply in problem.supplies}
    chips = [name for name, stages in room.items() for _ in range(stages)]
    if len(chips) < values["pp"]:
        told = ", ".join(f"{name} {stages}" for name, stages in room.items())
        message = later(
            "a stage is {devices} devices of one chip type, and there is room for fewer than pp {pp}: {room}",
            devices=devices,
            pp=values["pp"],
            room=told,
        )
        raise InputError(Trouble("--set", message))
    return chips[: values["pp"]]


def _even_layers(layers: int, pp: int, vpp: int) -> list[int]:
    """Layers of each stage, in whole layers of all its chunks; what is over goes to stages between the ends first.

    With chunks the last stage may have some layers less, in whose place the head stands.
    """
    units = -(-layers // vpp)
    each, over = divmod(units, pp)
    order = [*range(1, pp - 1), 0, *([pp - 1] if pp > 1 else [])]
    spread = [each + (stage in order[:over]) for stage in range(pp)]
    counts = [vpp * count for count in spread]
    counts[-1] -= units * vpp - layers
    return counts


def _stages(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The stages as a plan's file has them, one entry each. Raises InputError for lists of different lengths."""
    chips, layers = values["stage_chips"], values["layers"]
    if not isinstance(layers, list) or len(chips) != len(layers) or len(chips) != values["pp"]:
        message = later(
            "pp {pp}, {chips} chips and the layers {layers} are not as many stages",
            pp=values["pp"],
            chips=len(chips),
            layers=layers,
        )
        raise InputError(Trouble("--set", message))
    more = {name: values[name] for name in ("recompute_layers", "recompute_modules") if name in values}
    return [
        {"chip": c, "layers": n, "recompute": values["recompute"], **more} for c, n in zip(chips, layers, strict=True)
    ]
