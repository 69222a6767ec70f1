"""What `tune_simulated` compares: the tasks, and the ways of choosing which plan is tried next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from random import Random
from typing import Any, Protocol

import numpy as np

from cpsolver.doors.tune.choosers import ChooserSettings
from cpsolver.doors.tune.thompson import ThompsonChooser
from cpsolver.doors.tune.trial import Proposal, Stop, Trial, best_trial
from cpsolver.plans.strategy import SHARDED, Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.search.result import Result
from cpsolver.search.search import search
from cpsolver.search.space import enumerate_rows
from cpsolver.spec.spec import parse_spec

TRIALS = 10


def _spec(model: str, num_gpus: int, chips: str, batch: int, sequence: int, **pin: Any) -> dict[str, Any]:
    return {
        "model": model,
        "cluster": {"num_gpus": num_gpus, "chips": chips},
        "training": {"global_batch_size": batch, "sequence_length": sequence},
        "search": {"top": TRIALS, "pin": {"flash_attention": True, "distributed_optimizer": True, **pin}},
    }


TASKS: dict[str, dict[str, Any]] = {
    "13b on 64 a100": _spec("llama2-13b", 64, "a100", 256, 4096),
    "8b, 32k tokens, on 64 h100": _spec("llama3.1-8b", 64, "h100", 64, 32_768),
    "70b on 128 ascend_910b": _spec("llama2-70b", 128, "ascend_910b", 256, 4096),
    "mixtral-8x7b on 64 h100": _spec("mixtral-8x7b", 64, "h100", 256, 4096, cp=1),
    "70b on 128 a800": _spec("llama2-70b", 128, "a800", 256, 4096),
    "175b on 256 a100": _spec("gpt3-175b", 256, "a100", 512, 2048),
}
"""Specs as plain data; what everybody who tunes by hand leaves on is on for all."""

_DEGREES = ("tp", "pp", "dp", "cp", "mbs", "vpp", "ulysses", "cp_gather", "ep", "etp", "sequence_parallel")
_ROW = (*_DEGREES, "distributed_optimizer", "flash_attention", "sharded", "sharding_group")
_LOOPS = ("tp", "pp", "mbs")
Pins = tuple[tuple[str, Any], ...]


class Next(Protocol):
    """What the study asks of a policy: the part of Chooser that decides."""

    def next(self, trials: Sequence[Trial]) -> Proposal | Stop: ...
    def best(self, trials: Sequence[Trial]) -> Trial | None: ...


@lru_cache
def problem_of(task: str) -> Problem:
    """The task as the planner sees it."""
    return resolve(parse_spec(TASKS[task]))


def with_search(problem: Problem, **changes: Any) -> Problem:
    """The problem with fields of its search section replaced."""
    section = problem.spec.search.model_copy(update=changes)
    return replace(problem, spec=problem.spec.model_copy(update={"search": section}))


@lru_cache
def first_search(task: str) -> Result:
    """The search before any trial, shared by the seeds of a task."""
    return search(problem_of(task))


@lru_cache(maxsize=4096)
def best_with(task: str, pins: Pins) -> Strategy | None:
    """The plan that the planner believes fastest of those with the pins, None where it believes that none fits."""
    problem = problem_of(task)
    pin = problem.spec.search.pin.model_copy(update={name: (value,) for name, value in pins})
    plans = search(with_search(problem, pin=pin, top=1)).plans
    return plans[0].strategy if plans else None


@lru_cache
def layouts(task: str) -> tuple[Pins, ...]:
    """Every choice of degrees and flags that the rules allow."""
    rows = enumerate_rows(problem_of(task)).rows
    table = np.unique(np.column_stack([np.asarray(getattr(rows, name), dtype=np.int64) for name in _ROW]), axis=0)
    return tuple(tuple(_pin(name, int(value)) for name, value in zip(_ROW, row, strict=True)) for row in table)


def _pin(name: str, value: int) -> tuple[str, Any]:
    if name == "sharded":
        return name, SHARDED[value - 1]
    flag = name in ("cp_gather", "sequence_parallel", "distributed_optimizer", "flash_attention")
    return name, bool(value) if flag else value


class Listed:
    """Plans in the order in which they come, each once, whatever the trials say."""

    def __init__(self, plans: Iterator[Strategy], why: str) -> None:
        self._plans, self._why = plans, why

    def next(self, trials: Sequence[Trial]) -> Proposal | Stop:
        """The next of them."""
        tried = {trial.strategy for trial in trials}
        for plan in self._plans:
            if plan not in tried:
                return Proposal(plan, self._why, float("nan"), float("nan"), float("nan"))
        return Stop("no more plans")

    def best(self, trials: Sequence[Trial]) -> Trial | None:
        """The one that measured best."""
        return best_trial(trials)


def random_plans(task: str, seed: int) -> Iterator[Strategy]:
    """Layouts drawn evenly from those that the planner believes fit, each with its best split of the layers."""
    order = list(layouts(task))
    Random(f"random search {seed}").shuffle(order)
    return (plan for pins in order if (plan := best_with(task, pins)) is not None)


def grid_plans(task: str) -> Iterator[Strategy]:
    """As nested loops over tp, pp and mbs come by them, smallest first; the planner decides the rest of each."""
    found = sorted({tuple(pair for pair in pins if pair[0] in _LOOPS) for pins in layouts(task)}, key=_loop_order)
    return (plan for pins in found if (plan := best_with(task, pins)) is not None)


def _loop_order(pins: Pins) -> tuple[int, ...]:
    values = dict(pins)
    return tuple(values[name] for name in _LOOPS)


def _thompson(task: str, seed: int) -> Next:
    return ThompsonChooser(problem_of(task), ChooserSettings(seed=seed), search)


POLICIES: dict[str, Callable[[str, int], Next]] = {
    "thompson": _thompson,
    "top-K": lambda task, seed: Listed((plan.strategy for plan in first_search(task).plans), "the next of the search"),
    "random": lambda task, seed: Listed(random_plans(task, seed), "drawn"),
    "grid": lambda task, seed: Listed(grid_plans(task), "the next of the loops"),
}
"""Name -> (task, seed) -> the policy; a fresh one for every seed."""
