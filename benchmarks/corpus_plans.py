"""What becomes of imported plans: do the rules allow them, and are they the same after export and import.

`judged` evaluates each plan by the rules; `round_trips` exports it for its own launcher, imports what was written and
compares spec and plan field by field.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.corpus_devices import shorter, wider
from cpsolver.doors.export.judge import launch_of
from cpsolver.doors.export.launch import CannotExpress, write_files
from cpsolver.doors.importing.imported import Imported, ImportOptions, import_source
from cpsolver.evaluation.evaluate import stage_memory
from cpsolver.inputs.errors import InputError
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.problem.strategy_file import strategy_to_dict
from cpsolver.rules import Violation, violations
from cpsolver.spec.spec import parse_spec
from models_zoo.params import total_parameters
from models_zoo.schema import DESCRIPTIVE_FIELDS

_TARGETS = {"mindspeed": "mindspeed-llm", "ascendspeed": "mindspeed-llm"}
"""By stack, the target that a plan without a launcher is exported to; megatron-lm by all others, and by deepspeed."""
_FORK = "megatron-deepspeed"
"""The target of scripts on DeepSpeed whose model Megatron-LM has no arguments for."""
_TOLD = {
    "model.position": " positions: no option says so",
    "model.activation": "has the activation ",
    "model.embedding_norm": "a norm after the embedding: no option",
}
"""Fields that some targets have no option for, and how the notes of the export say so."""
_NEAR = 1.1
"""Need of memory, of the device's, up to which the memory model's own error may decide."""
_STATES = 14
"""Bytes that a weight takes at least, however shared out: itself in 16 bits, fp32 master and moments."""
_MADE_UP = ("devices", "variables", "arguments")
"""Help that decides what a plan needs or has: with it the plan is the corpus's, not the script's."""
_SEQUENCES = "sequences as long as their data"
_LEGAL, _WITHIN = "legal", "legal on the whole device, not below the margin"
_COMPLETED = "legal on more devices than its default, or with shorter sequences, which the script leaves open"
_OPEN = "; it leaves open: "


def judged(outcomes: Sequence[Any], folder: Path) -> Iterator[str]:
    """A line for each plan that breaks a rule whatever is filled in for what its script leaves open, and how many do.

    A margin of memory is for plans to come; what somebody runs is judged by all of the device.
    """
    verdicts: Counter[str] = Counter()
    for outcome in outcomes:
        imported = outcome.imported
        if imported is None or imported.strategy is None:
            continue
        verdict, broken = _verdict(outcome, folder)
        verdicts[verdict] += 1
        if verdict.startswith("refused"):
            said = "; ".join(f"{violation.rule}: {violation.message}" for violation in broken)
            chip = imported.spec["cluster"]["chips"]
            yield f"refused\t{outcome.file.relative_to(folder)}\t{chip}\t{verdict}\t{said[:400]}"
    yield from _shares(verdicts)


def _verdict(outcome: Any, folder: Path) -> tuple[str, Sequence[Violation]]:
    """What the rules make of a plan, in words, and what they refuse it for as it stands."""
    opened = _left_open(outcome, folder / outcome.file.relative_to(folder).parts[0])
    beside = _OPEN + ", ".join(opened) if opened else ""
    if not violations(problem_of(outcome.imported), outcome.imported.strategy):
        return _LEGAL + beside, ()
    broken = violations(problem_of(outcome.imported, margin=0.0), outcome.imported.strategy)
    if not broken:
        return _WITHIN + beside, ()
    if any(_is_legal(imported) for imported in _completed(outcome, opened)):
        return _COMPLETED + beside, broken
    said = "; ".join(f"{violation.rule}: {violation.message}" for violation in broken)
    return f"refused: {_who_is_right(outcome, {violation.rule for violation in broken}, said)}{beside}", broken


def _is_legal(imported: Imported) -> bool:
    return imported.strategy is not None and not violations(problem_of(imported, margin=0.0), imported.strategy)


def _completed(outcome: Any, opened: Sequence[str]) -> Iterator[Imported]:
    """Other ways to fill in what the script leaves open."""
    for imported in (outcome.imported, *wider(outcome)):
        yield imported
        if _SEQUENCES in opened:
            yield from shorter(imported)


def _shares(verdicts: Counter[str]) -> Iterator[str]:
    """How many plans are refused, of all and of those that leave nothing open, and every verdict."""
    settled = Counter({text: count for text, count in verdicts.items() if _OPEN not in text})
    as_legal = sum(count for text, count in verdicts.items() if text.split(_OPEN)[0] == _LEGAL)
    strict = verdicts.total() - as_legal
    yield f"rules: {verdicts.total()} plans, {strict} refused by a rule as they stand ({_share(strict, verdicts)})"
    yield f"judged: {verdicts.total()} plans, {_refused(verdicts)} whatever they leave open"
    yield f"settled: {settled.total()} that leave nothing open, {_refused(settled)}"
    yield from (f"{count:4d}  {text}" for text, count in verdicts.most_common())


def _refused(verdicts: Counter[str]) -> str:
    refused = sum(count for text, count in verdicts.items() if text.startswith("refused"))
    return f"{refused} refused ({_share(refused, verdicts)})"


def _share(part: int, verdicts: Counter[str]) -> str:
    return f"{part / max(1, verdicts.total()):.1%}"


def _left_open(outcome: Any, repository: Path) -> tuple[str, ...]:
    """What of the plan's memory the script leaves to others."""
    opened = [name for name in _MADE_UP if name in outcome.helped]
    told = [note for note in outcome.imported.notes if "as long as their data" in note]
    if told and not (all("until 2025" in note for note in told) and _pads(repository)):
        opened.append(_SEQUENCES)
    return tuple(opened)


@cache
def _pads(repository: Path) -> bool:
    """Whether the repository's own code pads sequences where nothing forbids it, as MindSpeed-LLM does since 2025."""
    return any("no-pad-to-seq-lengths" in file.read_text(errors="replace") for file in repository.rglob("*.py"))


def _who_is_right(outcome: Any, rules: Set[str], said: str) -> str:
    """Whom to believe, by what is known of the script: its chip is often not."""
    if rules != {"memory"}:
        return "the rule or the script, " + ", ".join(sorted(rules))
    problem = problem_of(outcome.imported, margin=0.0)
    room = sum(supply.limit * problem.capacity_bytes(supply.chip) for supply in problem.supplies)
    if total_parameters(problem.model) * _STATES > room and not problem.spec.training.host_link:
        return "the rule, as weights and optimizer are more than all devices hold"
    if any("memory is predicted too high" in note for note in outcome.imported.notes):
        return "the script, as the plan lacks what saves memory there, which a note says"
    if least_of(problem, outcome.imported.strategy) > 1:
        return "the rule, as states and what backward passes need are more than a device holds"
    needed = [float(needs) / float(free) for needs, free in re.findall(r"needs ([\d.]+) GiB, ([\d.]+) GiB", said)]
    if max(needed) <= _NEAR:
        return f"open, at most {_NEAR - 1:.0%} more than the device has, within the error of the memory model"
    return "open, on a chip that the script does not name"


def least_of(problem: Problem, strategy: Strategy) -> float:
    """What the fullest stage needs at least, of its devices' memory: weights, gradients, the optimizer's states and the
    tensors that backward passes read of all microbatches in flight. No buffers, no allocator, no framework."""
    held = zip(strategy.stage_chips, stage_memory(problem, strategy), strict=True)
    each = ((need.allocated - need.buffers) / problem.capacity_bytes(problem.supply(chip).chip) for chip, need in held)
    return max(each)


def problem_of(imported: Imported, margin: float | None = None) -> Problem:
    """The problem of an imported spec; `margin`: the share of memory kept free, the stack's where it is None."""
    cluster = imported.spec["cluster"] | ({} if margin is None else {"memory_margin": margin})
    return resolve(parse_spec({**imported.spec, "cluster": cluster}))


def round_trips(outcomes: Sequence[Any], folder: Path) -> Iterator[str]:
    """A line for each plan that does not come back the same, and how many do."""
    tally: Counter[str] = Counter()
    fields: Counter[str] = Counter()
    for outcome in outcomes:
        if outcome.imported is None or outcome.imported.strategy is None:
            continue
        verdict, detail = _round_trip(outcome.imported)
        tally[verdict] += 1
        if verdict != "same":
            yield f"{verdict}\t{outcome.file.relative_to(folder)}\t{detail[:300]}"
        fields.update(part.split(":")[0] for part in detail.split("; ") if verdict == "differs")
    back = tally["same"] + tally["told"] + tally["differs"]
    counted = ", ".join(f"{count} {what}" for what, count in sorted(tally.items()))
    yield f"round trip: {counted}; {tally['differs'] / max(1, back):.1%} of those exported changed in silence"
    yield from (f"{count:4d}  {name}" for name, count in fields.most_common())


def _round_trip(imported: Imported) -> tuple[str, str]:
    """`same`, `told` (the export's notes name what its target cannot say), `differs`, `not exported` or `not imported`;
    and what is another. Of scripts on DeepSpeed by the fork's target too, where Megatron-LM's does not say all."""
    named, stack = imported.spec.get("launcher"), imported.spec.get("stack", "")
    target = named if named not in (None, "deepspeed") else _TARGETS.get(stack, "megatron-lm")
    verdict = _back(imported, str(target))
    if verdict[0] != "same" and stack.startswith(_FORK):
        other = _back(imported, _FORK)
        return other if other[0] == "same" else verdict
    return verdict


def _back(imported: Imported, target: str) -> tuple[str, str]:
    """The verdict on one target."""
    strategy, cluster, named = imported.strategy, imported.spec["cluster"], imported.spec.get("launcher")
    assert strategy is not None
    try:
        launch = launch_of(problem_of(imported), strategy, target)
    except CannotExpress as error:
        return "not exported", "; ".join(error.reasons)
    with tempfile.TemporaryDirectory() as name:
        write_files(name, launch)
        options = ImportOptions(
            cluster["chips"], cluster["num_gpus"], cluster["gpus_per_node"], imported.model.vocab,
            stack=imported.spec.get("stack"), launcher=named or "any",
        )  # fmt: skip
        try:
            again = import_source(str(Path(name) / str(launch.main)), options)
        except InputError as error:
            return "not imported", "; ".join(f"{trouble.where} {trouble.message}" for trouble in error.troubles)
    found = list(_differences(_fields(imported), _fields(again)))
    if again.strategy is None:
        found.append(f"plan: {'; '.join(again.refusals)}")
    if not found:
        return "same", ""
    told = all(any(_TOLD.get(part.split(":")[0], "?") in note for note in launch.notes) for part in found)
    return "told" if told else "differs", "; ".join(found)


def _fields(imported: Imported) -> dict[str, Any]:
    model = imported.model.model_dump(exclude_none=True, mode="json")
    for name in DESCRIPTIVE_FIELDS:
        model.pop(name, None)
    strategy = strategy_to_dict(imported.strategy) if imported.strategy else {}
    training = {**imported.spec["training"], "moe_dispatcher": problem_of(imported).copies_once}
    return {**_flat("model", model), **_flat("training", training), **_flat("plan", strategy)}


def _flat(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {where: value}
    return {key: one for name, part in value.items() for key, one in _flat(f"{where}.{name}", part).items()}


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*one, *other}):
        if one.get(name) != other.get(name):
            yield f"{name}: {one.get(name)} -> {other.get(name)}"
