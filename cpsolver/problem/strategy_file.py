"""A plan as a file: YAML or JSON in and out, and the seed tool's output dictionary in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, ValidationError

from cpsolver.inputs.document import Document, load_yaml
from cpsolver.inputs.errors import InputError, Trouble, dotted, validation_trouble
from cpsolver.inputs.errors import Path as KeyPath
from cpsolver.plans.strategy import CORE, Schedule, Sharded, StageGroup, Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.seed_format import SEED_KEYS, chip_troubles, merged_groups, seed_strategy
from cpsolver.problem.seed_format import SHARDING_STRATEGIES as SHARDING_STRATEGIES
from cpsolver.spec.decisions import Count, CountFrom0, Name, Recompute


def _one_or_more(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else (value,)


_KINDS = ("cp", "ulysses", "cp_gather", "ep", "etp", "sharded", "sharding_group", "schedule", "micro_batches")
"""Fields of a strategy that a file may leave out, and that are then as if there were no such thing."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Stages(_Part):
    """Neighbouring stages on one chip type."""

    chip: Name
    layers: Annotated[tuple[Count, ...], BeforeValidator(_one_or_more), Field(min_length=1)]
    recompute: Recompute = "none"
    recompute_layers: Annotated[tuple[CountFrom0, ...], BeforeValidator(_one_or_more)] = ()
    recompute_modules: Annotated[tuple[Name, ...], BeforeValidator(_one_or_more)] = ()


class _Plan(_Part):
    """The file."""

    tp: Count
    pp: Count | None = None
    dp: Count
    mbs: Count
    vpp: Count = 1
    sequence_parallel: StrictBool | None = None
    distributed_optimizer: StrictBool | None = None
    flash_attention: StrictBool = True
    cp: Count = 1
    ulysses: Count = 1
    cp_gather: StrictBool = False
    ep: Count = 1
    etp: Count = 1
    sharded: Sharded = "optimizer"
    sharding_group: CountFrom0 = 0
    schedule: Schedule = "1f1b"
    micro_batches: tuple[Count, ...] = ()
    stages: Annotated[tuple[_Stages, ...], Field(min_length=1)]


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
    if number > most:
        raise InputError(Trouble("--plan-rank", "is no plan of the file", number, f"1 to {most}", file=document.file))
    if isinstance(plans, list) and plans and isinstance(plans[number - 1], Mapping):  # what `solve --json` prints
        data, prefix = plans[number - 1], ("plans", number - 1)
    inner = data.get("strategy")
    fields: Mapping[str, Any] = inner if isinstance(inner, Mapping) else data
    prefix = (*prefix, "strategy") if isinstance(inner, Mapping) else prefix
    seed = any(key in fields for key in SEED_KEYS)
    read = seed_strategy if seed else _from_fields
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
    return {
        "tp": strategy.tp,
        "pp": strategy.pp,
        "dp": strategy.dp,
        "mbs": strategy.mbs,
        "vpp": strategy.vpp,
        "sequence_parallel": strategy.sequence_parallel,
        "distributed_optimizer": strategy.distributed_optimizer,
        "flash_attention": strategy.flash_attention,
        **{name: getattr(strategy, name) for name in _KINDS},
        "micro_batches": list(strategy.micro_batches),
        "stages": [_group_to_dict(group) for group in strategy.groups],
    }


def _group_to_dict(group: StageGroup) -> dict[str, Any]:
    fields: dict[str, Any] = {"chip": group.chip, "layers": list(group.layers), "recompute": group.recompute}
    amounts = group.stage_recompute_layers
    if any(amounts):
        fields["recompute_layers"] = amounts[0] if len(set(amounts)) == 1 else list(amounts)
    if group.modules not in ((), CORE):
        fields["recompute_modules"] = list(group.modules)
    return fields


def _placed(trouble: Trouble, prefix: KeyPath) -> Trouble:
    path = (*prefix, *trouble.path)
    return replace(trouble, where=dotted(path), path=path) if prefix else trouble


def _fields_at(path: KeyPath) -> Mapping[str, Any]:
    if not path:
        return _Plan.model_fields
    return _Stages.model_fields if len(path) == 2 and path[0] == "stages" else {}


def _from_fields(data: Mapping[str, Any], problem: Problem | None) -> Strategy:
    try:
        plan = _Plan.model_validate(dict(data))
    except ValidationError as error:
        details = error.errors(include_url=False)
        found = [validation_trouble(detail, data, _fields_at) for detail in details]
        raise InputError((*found, *chip_troubles(_chips_written(data), problem))) from None
    found = list(_length_troubles(plan))
    found += chip_troubles([(("stages", i, "chip"), part.chip) for i, part in enumerate(plan.stages)], problem)
    if found:
        raise InputError(found)
    groups = tuple(_group(part) for part in plan.stages)
    replicas = plan.dp * plan.cp
    read = Strategy(
        tp=plan.tp,
        pp=plan.pp or sum(group.num_stages for group in groups),
        dp=plan.dp,
        mbs=plan.mbs,
        vpp=plan.vpp,
        sequence_parallel=plan.tp > 1 if plan.sequence_parallel is None else plan.sequence_parallel,
        distributed_optimizer=replicas > 1 if plan.distributed_optimizer is None else plan.distributed_optimizer,
        flash_attention=plan.flash_attention,
        groups=merged_groups(groups),
        **{name: getattr(plan, name) for name in _KINDS},
    )
    alike = problem is not None and read.micro_batches == (plan.mbs,) * read.microbatches(problem.batch)
    return replace(read, micro_batches=()) if alike else read


def _group(part: _Stages) -> StageGroup:
    amounts = part.recompute_layers or (0,)
    spread = amounts * len(part.layers) if len(amounts) == 1 else amounts
    return StageGroup(part.chip, part.layers, part.recompute, spread, part.recompute_modules)


def _length_troubles(plan: _Plan) -> Iterator[Trouble]:
    for index, part in enumerate(plan.stages):
        path: KeyPath = ("stages", index, "recompute_layers")
        given, stages = len(part.recompute_layers), len(part.layers)
        if given > 1 and given != stages:
            message = f"has {given} entries for the {stages} stages of layers"
            yield Trouble(dotted(path), message, None, f"one number, or {stages} of them", path=path)


def _chips_written(data: Mapping[str, Any]) -> list[tuple[KeyPath, str]]:
    stages = data.get("stages")
    parts = enumerate(stages) if isinstance(stages, list) else ()
    named = [(index, part.get("chip")) for index, part in parts if isinstance(part, Mapping)]
    return [(("stages", index, "chip"), chip) for index, chip in named if isinstance(chip, str)]
