"""What every exporter returns and how it refuses, which exporter serves which target, and the folder of its files.

An exporter is a function ``(problem, strategy) -> Launch``; it may raise `CannotExpress`. Targets have the names of the
launcher profiles (`profiles/launchers/*.yaml`). Their facts refuse what a framework cannot run before an exporter is
asked (judge.py): an exporter refuses what is no fact, or is the spec's and not the plan's.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from cpsolver.inputs.errors import InputError, Trouble, nearest_names
from cpsolver.inputs.language import say
from cpsolver.inputs.output import draft_of
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem


@dataclass(frozen=True)
class Launch:
    """What one framework needs to run a plan.

    `arguments`: of its training command, one list item a token ("--tensor-model-parallel-size", "8"); empty where the
    framework takes a file alone. `environment`: variables of every process. `files`: name -> text, to be written beside
    each other; `main` names the one that the framework is started with, if any. `notes`: what the user still has to
    give (data, tokenizer), and what of the plan is the user's to do (the order of the nodes). `node_script`: the file
    that every node runs, with NODE_RANK and MASTER_ADDR in its environment; None where the framework starts its nodes.
    """

    target: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    main: str | None = None
    notes: tuple[str, ...] = ()
    node_script: str | None = None

    @property
    def start(self) -> tuple[str, str]:
        """What the plan is started with, as a name and a text: the nodes' script, the main file, or the arguments."""
        name = self.node_script or self.main
        return ("arguments", shlex.join(self.arguments)) if name is None else (name, self.files[name])


class CannotExpress(InputError):
    """The framework has no way to say this plan; `reasons` tell which decision, its value, and what is possible."""

    def __init__(self, reasons: tuple[str, ...]) -> None:
        super().__init__([Trouble("", reason) for reason in reasons])
        self.reasons = reasons


def refuse(reasons: Iterable[str]) -> None:
    """Raises CannotExpress with all of the reasons, where there is one."""
    if every := tuple(reasons):
        raise CannotExpress(every)


Exporter = Callable[[Problem, Strategy], Launch]

EXPORTERS = {
    "megatron-lm": "megatron:megatron_lm",
    "megatron-core-0.13": "megatron:core_0_13",
    "megatron-core-0.12": "megatron:core_0_12",
    "mindspeed-llm": "mindspeed:mindspeed_llm",
    "loongforge": "loongforge:loongforge",
    "megatron-bridge": "bridge:megatron_bridge",
    "verl": "verl:export",
    "flagscale": "flagscale:export",
    "deepspeed": "deepspeed:export",
    "megatron-deepspeed": "megatron_deepspeed:export",
    "torchtitan": "torchtitan:export",
    "accelerate": "accelerate:export",
    "paddleformers": "paddleformers:export",
    "mindformers": "mindformers:export",
}
"""Target -> "module:function", the module one of this package; loaded when the target is asked for."""


def exporter(target: str) -> Exporter:
    """The exporter of that target; raises KeyError where there is none."""
    module, name = EXPORTERS[target].split(":")
    made: Exporter = getattr(import_module(f"cpsolver.doors.export.{module}"), name)
    return made


def check_target(target: str) -> None:
    """Raises InputError, with the nearest name, for a target that nothing is exported to."""
    if not isinstance(target, str) or target not in EXPORTERS:
        allowed, nearest = ", ".join(sorted(EXPORTERS)), nearest_names(target, EXPORTERS)
        raise InputError(Trouble("--to", "unknown target", target, allowed, nearest))


def check_directory(folder: str) -> None:
    """Raises InputError for a file where a directory is asked for."""
    if Path(folder).exists() and not Path(folder).is_dir():
        raise InputError(Trouble("", "is a file: --output is a directory", file=folder))


def check_folder(folder: str, launch: Launch, force: bool) -> None:
    """Raises InputError where the files cannot be written, or with `force` off are there already; lists every one."""
    check_directory(folder)
    path = Path(folder)
    existing = [path / name for name in launch.files if (path / name).exists()]
    if existing and not force:
        message = say("is there already: give another directory, or --force to replace it")
        raise InputError([Trouble("", message, file=str(file)) for file in existing])


def write_files(folder: str, launch: Launch) -> None:
    """Write every file of the launch, all or none; scripts may be run. Raises OSError."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    with ExitStack() as drafts:
        for name, text in launch.files.items():
            file = Path(folder) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            draft = drafts.enter_context(draft_of(file))
            draft.write_text(text, encoding="utf-8")
            if name.endswith(".sh"):
                draft.chmod(0o755)
