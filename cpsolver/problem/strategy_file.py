"""A plan as a file: YAML or JSON in and out, and the seed tool's output dictionary in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, ValidationError, create_model

from cpsolver.inputs.document import Document, load_yaml
from cpsolver.inputs.errors import InputError, Trouble, dotted, validation_trouble
from cpsolver.inputs.errors import Path as KeyPath
from cpsolver.inputs.language import later
from cpsolver.plans.dimensions import DIMENSIONS, PLAN_FIELDS, Dimension, Kind
from cpsolver.plans.strategy import CORE, Mesh, RecomputeKind, StageGroup, Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.seed_format import SEED_KEYS, chip_troubles, merged_groups, seed_strategy
from cpsolver.spec.search import CountFrom0
from cpsolver.spec.training import Count, Name


def _one_or_more(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else (value,)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Mesh(_Part):
    """Degrees of stages where they are not the plan's."""

    tp: Count
    dp: Count
    cp: Count = 1
    ep: Count = 1
    etp: Count = 1


class _Stages(_Part):
    """Neighbouring stages on one chip type."""

    chip: Name
    layers: Annotated[tuple[Count, ...], BeforeValidator(_one_or_more), Field(min_length=1)]
    recompute: RecomputeKind = "none"
    recompute_layers: Annotated[tuple[CountFrom0, ...], BeforeValidator(_one_or_more)] = ()
    recompute_modules: Annotated[tuple[Name, ...], BeforeValidator(_one_or_more)] = ()
    mesh: _Mesh | None = None


_TYPES: dict[Kind, Any] = {"size": Count, "size_or_all": CountFrom0, "flag": StrictBool, "sizes": tuple[Count, ...]}


def _field(one: Dimension) -> tuple[Any, Any]:
    """Type and default of a decision in the file; what follows from the others may be left out."""
    known = Literal[one.values] if one.kind == "choice" else _TYPES[one.kind]
    return (known | None, None) if one.default is None else (known, one.default)


_FIELDS: dict[str, Any] = {name: _field(DIMENSIONS[name]) for name in PLAN_FIELDS}
_FIELDS["stages"] = (Annotated[tuple[_Stages, ...], Field(min_length=1)], ...)
_Plan = create_model("_Plan", __base__=_Part, **_FIELDS)
"""The file: every decision of plans/dimensions.py that is one value for the whole plan, and the stages."""


def load_strategy(path: str | Path, problem: Problem | None = None, number: int = 1) -> Strategy:
    """The plan in a YAML or JSON file ("-": standard input), plan `number` of `solve --json`, or one dictionary of the
    seed tool's output.

    With a `problem` the chips must be its own, and the seed tool's dictionaries can be read: they leave out what
    follows from the model and the number of GPUs. Whether the plan is legal is for `rules` to say.

    Raises InputError with every problem, each with its line and column.
    """
    document = load_yaml(path, collect=True)
    return strategy_from(document, problem, number)


def strategy_from(document: Document, problem: Problem | None = None, number: int = 1) -> Strategy:
    """As `load_strategy`, from a document that is already read."""
    data: Any = document.data
    prefix: KeyPath = ()
    plans = data.get("plans")
    most = max(1, len(plans) if isinstance(plans, list) else 1)
    if not 1 <= number <= most:
        raise InputError(
            Trouble(
                "--plan-rank",
                "is no plan of the file",
                number,
                later("{least} to {most}", least=1, most=most),
                file=document.file,
            )
        )
    if isinstance(plans, list) and plans and isinstance(plans[number - 1], Mapping):  # what `solve --json` prints
        data, prefix = plans[number - 1], ("plans", number - 1)
    inner = data.get("strategy")
    fields: Mapping[str, Any] = inner if isinstance(inner, Mapping) else data
    prefix = (*prefix, "strategy") if isinstance(inner, Mapping) else prefix
    seed = any(key in fields for key in SEED_KEYS)
    read = seed_strategy if seed else strategy_from_fields
    found = list(document.troubles)
    strategy: Strategy | None = None
    try:
        strategy = read(fields, problem)
    except InputError as error:
        found += [_placed(trouble, prefix) for trouble in error.troubles]
    if found or strategy is None:
        raise InputError(document.in_order(found))
    return strategy


def strategy_to_dict(strategy: Strategy) -> dict[str, Any]:
    """A strategy as a file holds it: plain values that `load_strategy` reads back to an equal strategy."""
    values = {name: getattr(strategy, name) for name in PLAN_FIELDS}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return {**plain, "stages": [_group_to_dict(group) for group in strategy.groups]}


def _group_to_dict(group: StageGroup) -> dict[str, Any]:
    fields: dict[str, Any] = {"chip": group.chip, "layers": list(group.layers), "recompute": group.recompute}
    amounts = group.stage_recompute_layers
    if any(amounts):
        fields["recompute_layers"] = amounts[0] if len(set(amounts)) == 1 else list(amounts)
    if group.modules not in ((), CORE):
        fields["recompute_modules"] = list(group.modules)
    if group.mesh is not None:
        fields["mesh"] = {name: size for name, size in vars(group.mesh).items() if size > 1 or name in ("tp", "dp")}
    return fields


def _placed(trouble: Trouble, prefix: KeyPath) -> Trouble:
    path = (*prefix, *trouble.path)
    return replace(trouble, where=dotted(path), path=path) if prefix else trouble


def _fields_at(path: KeyPath) -> Mapping[str, Any]:
    if not path:
        return _Plan.model_fields
    parts: dict[int, type[_Part]] = {2: _Stages, 3: _Mesh}
    return parts[len(path)].model_fields if len(path) in parts and path[0] == "stages" else {}


def strategy_from_fields(data: Mapping[str, Any], problem: Problem | None) -> Strategy:
    """The plan in plain values, as its file holds them. Raises InputError with every problem."""
    try:
        plan: Any = _Plan.model_validate(dict(data))
    except ValidationError as error:
        details = error.errors(include_url=False)
        if any(detail["loc"][:1] == ("stages",) and len(detail["loc"]) > 1 for detail in details):
            details = [one for one in details if one["loc"] != ("stages",)]  # entries that are wrong leave none
        found = [_with_example(validation_trouble(detail, data, _fields_at), problem) for detail in details]
        raise InputError((*found, *chip_troubles(_chips_written(data), problem))) from None
    found = list(_length_troubles(plan))
    found += chip_troubles([(("stages", i, "chip"), part.chip) for i, part in enumerate(plan.stages)], problem)
    if found:
        raise InputError(found)
    groups = tuple(_group(part) for part in plan.stages)
    follow = {
        "pp": sum(group.num_stages for group in groups),
        "sequence_parallel": plan.tp > 1,
        "distributed_optimizer": plan.dp * plan.cp > 1,
    }
    given = {name: getattr(plan, name) for name in PLAN_FIELDS}
    values = {name: follow[name] if value is None else value for name, value in given.items()}
    read = Strategy(**values, groups=merged_groups(groups)).canonical()
    alike = problem is not None and read.micro_batches == (plan.mbs,) * read.microbatches(problem.batch)
    return replace(read, micro_batches=()) if alike else read


def _with_example(trouble: Trouble, problem: Problem | None) -> Trouble:
    """Stages that are missing come with an example, and with the way to have them filled in; their fields by place."""
    name = trouble.path[0] if len(trouble.path) == 1 else None
    if name in _Stages.model_fields:
        return replace(trouble, nearest=(f"stages[0].{name}",), allowed=None)
    if trouble.path != ("stages",) or trouble.value is not None:
        return trouble
    chip = problem.chip_names[0] if problem is not None else "h100"
    example = later("stages: [{{chip: {chip}, layers: [20, 20]}}], layers of each stage in order", chip=chip)
    return replace(
        trouble, allowed=later("{example}; or --set tp=8 --set pp=2 for stages filled in evenly", example=example)
    )


def _group(part: _Stages) -> StageGroup:
    amounts = part.recompute_layers or (0,)
    spread = amounts * len(part.layers) if len(amounts) == 1 else amounts
    mesh = None if part.mesh is None else Mesh(**part.mesh.model_dump())
    return StageGroup(part.chip, part.layers, part.recompute, spread, part.recompute_modules, mesh)


def _length_troubles(plan: Any) -> Iterator[Trouble]:
    for index, part in enumerate(plan.stages):
        path: KeyPath = ("stages", index, "recompute_layers")
        given, stages = len(part.recompute_layers), len(part.layers)
        if given > 1 and given != stages:
            message = later("has {given} entries for the {stages} stages of layers", given=given, stages=stages)
            yield Trouble(
                dotted(path), message, None, later("one number, or {stages} of them", stages=stages), path=path
            )


def _chips_written(data: Mapping[str, Any]) -> list[tuple[KeyPath, str]]:
    stages = data.get("stages")
    parts = enumerate(stages) if isinstance(stages, list) else ()
    named = [(index, part.get("chip")) for index, part in parts if isinstance(part, Mapping)]
    return [(("stages", index, "chip"), chip) for index, chip in named if isinstance(chip, str)]
