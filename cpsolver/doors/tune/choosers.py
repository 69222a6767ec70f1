"""The policies by name: who decides which plan is tried next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from cpsolver.doors.tune.trial import Chooser
from cpsolver.evidence.posterior import check_scipy
from cpsolver.evidence.posterior.predictions import Observation
from cpsolver.problem.problem import Problem

POLICIES = {"thompson": "thompson:thompson", "top": "in_order:in_order"}
"""Name -> "module:function" of this package, the function a `Maker`; loaded when the policy is asked for."""
DEFAULT_POLICY = "thompson"


@dataclass(frozen=True)
class ChooserSettings:
    """What a user may say about choosing; None: the policy's own default.

    `top`: how many plans of a search. `gain`, `chance`: stop when the chance that another plan is faster by that share
    is below. `seed` of what is drawn. `earlier`: runs of the same chips and stack from before the trials.
    """

    top: int | None = None
    gain: float | None = None
    chance: float | None = None
    seed: int = 0
    earlier: tuple[Observation, ...] = ()


Maker = Callable[[Problem, ChooserSettings], Chooser]


def make_chooser(policy: str, problem: Problem, settings: ChooserSettings) -> Chooser:
    """The chooser of that name. `problem`: with the launcher that the plans are exported to.

    Raises InputError where a library that it needs is not installed.
    """
    if policy == "thompson":
        check_scipy("tune")
    module, name = POLICIES[policy].split(":")
    maker: Maker = getattr(import_module(f"cpsolver.doors.tune.{module}"), name)
    return maker(problem, settings)
