"""What every exporter returns, and how it says that its framework cannot express a plan.

An exporter is a function ``(problem, strategy) -> Launch``; it may raise `CannotExpress`. Targets have the names of the
launcher profiles (`profiles/launchers/*.yaml`), whose facts refuse most of what a framework cannot run before an
exporter is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cpsolver.inputs.errors import InputError, Trouble


@dataclass(frozen=True)
class Launch:
    """What one framework needs to run a plan.

    `arguments`: of its training command, one list item a token ("--tensor-model-parallel-size", "8"); empty where the
    framework takes a file alone. `environment`: variables of every process. `files`: name -> text, to be written beside
    each other; `main` names the one that the framework is started with, if any. `notes`: what the user still has to
    give (data, tokenizer), and what of the plan is the user's to do (the order of the nodes).
    """

    target: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    main: str | None = None
    notes: tuple[str, ...] = ()


class CannotExpress(InputError):
    """The framework has no way to say this plan; `reasons` tell which decision, its value, and what is possible."""

    def __init__(self, reasons: tuple[str, ...]) -> None:
        super().__init__([Trouble("", reason) for reason in reasons])
        self.reasons = reasons
