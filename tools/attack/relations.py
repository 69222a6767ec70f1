"""Answers at realistic sizes against each other: what a change of the spec may do to them is known without any plan.

A pin, a ban or a launcher takes plans away, so that nothing gets better; more memory, idle devices and wider limits of
a chip type leave them all, so that nothing gets worse; the first plans of a longer list are the shorter one; the order
in which chips are named means nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise
from math import isclose
from random import Random
from typing import Any

import cpsolver
from cpsolver import InputError, Plan, Result
from tools.attack.compare import as_yaml
from tools.attack.findings import Finding, Report
from tools.attack.specs import Fields

CLOSE = 1e-6
"""The solver counts time in whole steps."""
LIMIT_S = 60.0
"""A search that takes longer is passed over: unfinished answers say nothing of each other."""
CLUSTERS: tuple[tuple[Fields, int, int], ...] = (
    ({"a800": -1}, 8, 64),
    ({"h100": -1}, 8, 128),
    ({"h100": -1}, 8, 1024),
    ({"gb200": -1}, 4, 128),
    ({"ascend_910b": -1}, 8, 256),
    ({"mi300x": -1}, 8, 512),
    ({"a800": 32, "h800": 32}, 8, 64),
    ({"h100": 64, "h200": 64}, 8, 128),
    ({"a100": 64, "h100": 64}, 8, 128),
)
"""Chips, devices in a node, devices."""
MODELS = ("llama2-7b", "llama2-13b", "llama3.1-8b", "llama2-70b", "qwen3-30b-a3b", "mixtral-8x7b", "qwen2.5-14b")


def realistic_spec(rng: Random) -> Fields:
    """A catalogue's model on a cluster, with nothing pinned but what keeps a search of mixed chips short."""
    chips, node, devices = deepcopy(rng.choice(CLUSTERS))
    spec: Fields = {
        "model": rng.choice(MODELS),
        "cluster": {
            "num_gpus": devices,
            "gpus_per_node": node,
            "chips": {name: {"max": n} for name, n in chips.items()},
        },
        "training": {"global_batch_size": devices * rng.choice((1, 2, 4)), "sequence_length": rng.choice((2048, 4096))},
        "search": {"top": rng.choice((1, 3)), "diverse": rng.random() < 0.5, "degrees_by_chip": False, "pin": {}},
    }
    if len(chips) > 1:
        spec["search"]["pin"] = {"cp": 1, "mbs": [1, 2], "sharding_group": 0}
    return spec


def related(seed: int) -> Report:
    """One spec, two answers: the change is drawn with the seed."""
    rng, report = Random(seed), Report()
    spec = realistic_spec(rng)
    name, change, holds = rng.choice(RELATIONS)
    other = deepcopy(spec)
    try:
        change(rng, other)
        before, after = answer(spec), answer(other)
        wrong = holds(before, after) if before and after else None
        report.counts[f"relations: {name}" if before and after else "relations: unfinished or refused"] += 1
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
    if wrong:
        text = f"{as_yaml(spec)}# and\n{as_yaml(other)}"
        report.findings.append(Finding(f"relations, {name}", wrong, str(seed), text))
    return report


def answer(spec: Fields) -> Result | None:
    """The proven answer; None where the spec is refused, or the proof takes too long."""
    try:
        result = cpsolver.solve({**spec, "search": {**spec["search"], "time_limit_s": LIMIT_S}})
    except InputError:
        return None
    return result if result.status in ("optimal", "infeasible") else None


def values(result: Result) -> list[float]:
    """Seconds of the plans that are proven: over several chip types of the first alone."""
    plans: list[Plan] = [plan for plan in result.plans if not plan.added]
    mixed = result.proof.by_events is not None
    return [plan.evaluation.step_time_s for plan in plans[: 1 if mixed else None]]


def no_better(before: Result, after: Result) -> str | None:
    """The K-th plan after the change is no faster than the K-th before."""
    one, other = values(before), values(after)
    if len(other) > len(one):
        return f"more plans than before: {len(one)}, then {len(other)}"
    worse = [(a, b) for a, b in zip(one, other, strict=False) if b < a * (1 - CLOSE)]
    return f"faster than without: {worse[0][0]} s, then {worse[0][1]} s" if worse else None


def no_worse(before: Result, after: Result) -> str | None:
    """The other way round."""
    told = no_better(after, before)
    return f"it got worse (told backwards): {told}" if told else None


def same(before: Result, after: Result) -> str | None:
    """The same seconds, and for proofs the same candidates."""
    one, other = values(before), values(after)
    if len(one) != len(other) or not all(isclose(a, b, rel_tol=CLOSE) for a, b in zip(one, other, strict=True)):
        return f"other values: {one}, then {other}"
    if before.proof.considered != after.proof.considered:
        return f"other candidates: {before.proof.considered}, then {after.proof.considered}"
    return None


def prefix(before: Result, after: Result) -> str | None:
    """The longer list begins with the shorter one, and is in order."""
    one, other = values(before), values(after)
    if not all(isclose(a, b, rel_tol=CLOSE) for a, b in zip(one, other, strict=False)) or len(other) < len(one):
        return f"no beginning of the longer list: {one}, {other}"
    return None if all(a <= b for a, b in pairwise(other)) else f"not in order: {other}"


def _pin(rng: Random, spec: Fields) -> None:
    choices: dict[str, list[Any]] = {
        "tp": [1, 2, 4, 8],
        "pp": [1, 2, 4, 8],
        "dp": [1, 4, 8, 16],
        "vpp": [1, 2, 4],
        "distributed_optimizer": [True, False],
        "sharded": ["optimizer", "gradients", "parameters"],
        "recompute": ["none", "selective", "block", "uniform"],
        "sequence_parallel": [True, False],
    }
    name = rng.choice(list(choices))
    spec["search"]["pin"][name] = rng.sample(choices[name], rng.choice((1, 2)))


def _ban(rng: Random, spec: Fields) -> None:
    choices: dict[str, list[Any]] = {
        "tp": [1, 2, 4, 8],
        "pp": [1, 2, 4],
        "dp": [8, 16, 32, 64],
        "cp": [1],
        "mbs": [1, 2],
        "vpp": [1],
        "sharded": ["parameters"],
        "recompute": ["none", "selective"],
        "distributed_optimizer": [True],
    }
    name = rng.choice(list(choices))
    spec["search"]["forbid"] = {name: rng.sample(choices[name], 1)}
    if len(spec["cluster"]["chips"]) > 1 and name == "cp":
        spec["search"]["forbid"] = {"tp": [1]}


def _launcher(rng: Random, spec: Fields) -> None:
    """The stack stays that of the spec without a launcher: one that it names brings its own."""
    spec["stack"] = cpsolver.make_problem(spec).stack.name
    spec["launcher"] = rng.choice(("megatron-lm", "megatron-bridge", "mindspeed-llm", "megatron-core-0.12"))


def _more_memory(rng: Random, spec: Fields) -> None:
    spec["cluster"]["memory_margin"] = 0.0 if rng.random() < 0.5 else 0.01


def _longer(rng: Random, spec: Fields) -> None:
    spec["search"]["top"] += rng.randint(1, 4)


def _idle(_rng: Random, spec: Fields) -> None:
    spec["cluster"]["idle"] = True


def _wider(rng: Random, spec: Fields) -> None:
    chips = spec["cluster"]["chips"]
    name = rng.choice(list(chips))
    chips[name]["max"] = max(chips[name]["max"], spec["cluster"]["num_gpus"])


def _turned(_rng: Random, spec: Fields) -> None:
    chips = spec["cluster"]["chips"]
    spec["cluster"]["chips"] = dict(reversed(chips.items()))


Change = Callable[[Random, Fields], None]
Relation = tuple[str, Change, Callable[[Result, Result], str | None]]
RELATIONS: tuple[Relation, ...] = (
    ("a pin", _pin, no_better),
    ("a pin", _pin, no_better),
    ("a ban", _ban, no_better),
    ("a launcher", _launcher, no_better),
    ("more memory", _more_memory, no_worse),
    ("a longer list", _longer, prefix),
    ("idle devices", _idle, no_worse),
    ("a wider limit", _wider, no_worse),
    ("order of chips", _turned, same),
)
"""What is changed, and what must hold of the answers before and after."""
