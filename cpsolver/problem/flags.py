"""A spec in flags: chips as `a800:128,h800:64`, a whole spec in one line, and troubles in the names of the flags."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from io import StringIO
from pathlib import Path
from typing import Any

from cpsolver.inputs.errors import InputError, Trouble, shown
from cpsolver.inputs.language import later, say
from cpsolver.inputs.limits import MOST_DIGITS
from cpsolver.problem.load import make_problem
from cpsolver.problem.problem import Problem
from cpsolver.spec.cluster import NO_LIMIT
from cpsolver.spec.spec import names_a_file
from cpsolver.spec.training import MOST

_USUAL_NODE = 8
_FLAG_OF = {
    "cluster.num_gpus": "--on",
    "cluster.gpus_per_node": "--gpus-per-node",
    "cluster.chips": "--on",
    "cluster.network.preset": "--network",
    "cluster.network": "--network",
    "training.global_batch_size": "--batch",
    "training.sequence_length": "--seq",
    "training.precision": "--precision",
    "launcher": "--launcher",
    "stack": "--stack",
    "model": "MODEL",
}
ARGUMENT_OF = {
    **{name: flag.removeprefix("--").replace("-", "_").lower() for name, flag in _FLAG_OF.items()},
    "search": "",
}
"""The same as arguments of a call: `batch`, `gpus_per_node`; fields of the search section have their own names."""


@dataclass(frozen=True)
class OneLine:
    """What `apss-cp plan` says, as given: `on` is chips with how many of each, `h800:64,a800:64` or a mapping.

    A chip's number of a mapping may stand in fields of its own, as `max`. What is None has the spec's default; nodes
    have 8 devices, or all of them where there are fewer. `names`: what troubles call the spec's fields.
    """

    model: str | Mapping[str, Any]
    on: str | Mapping[str, Any]
    batch: int | None
    seq: int | None
    launcher: str | None = None
    stack: str | None = None
    precision: str | None = None
    gpus_per_node: int | None = None
    network: str | Mapping[str, Any] | None = None
    names: Mapping[str, str] = dataclass_field(default_factory=lambda: _FLAG_OF, repr=False)

    def spec(self) -> dict[str, Any]:
        """The spec that the line stands for, in plain values. Raises InputError for chips that cannot be read."""
        return self._spec(*self._chips())

    def _spec(self, chips: Mapping[str, Any], devices: int) -> dict[str, Any]:
        training = {"global_batch_size": self.batch, "sequence_length": self.seq, "precision": self.precision}
        cluster = {
            "num_gpus": devices,
            "gpus_per_node": min(_USUAL_NODE, devices) if self.gpus_per_node is None else self.gpus_per_node,
            "chips": chips,
        }
        data = {
            "model": self.model,
            "cluster": cluster if self.network is None else {**cluster, "network": self.network},
            "training": {name: value for name, value in training.items() if value is not None},
            "stack": self.stack,
            "launcher": self.launcher,
        }
        return {name: value for name, value in data.items() if value is not None}

    def _chips(self) -> tuple[Mapping[str, Any], int]:
        """The chips as a spec has them, and how many devices they are together."""
        found: list[Trouble] = []
        chips: Mapping[str, Any] = read_chips(self.on, found) if isinstance(self.on, str) else self.on
        example = "h800:64,a800:64" if isinstance(self.on, str) else "{'h800': 64, 'a800': 64}"
        form = later("how many of each, for example {example}", example=example)
        counts: dict[str, Any] = {
            name: chip.get("max") if isinstance(chip, Mapping) else chip for name, chip in chips.items()
        }
        for name, count in counts.items():
            if type(count) is int and count < 1 and count != NO_LIMIT:
                found.append(
                    Trouble("", later("has {count} of {name}: at least 1", count=shown(count), name=name), self.on)
                )
            elif type(count) is int and count > MOST:
                told = later("has {count} of {name}: at most {most:,}", count=shown(count), name=name, most=MOST)
                found.append(Trouble("", told, self.on))
            elif type(count) is not int or count < 1:
                found.append(Trouble("", later("does not say how many {name} there are", name=name), self.on))
        if not counts and not found:
            found.append(Trouble("", "names no chip", self.on, form))
        if found:
            where = self.names["cluster.chips"]
            raise InputError(replace(trouble, where=where, allowed=form) for trouble in found)
        return chips, sum(counts.values())

    def words(self) -> list[str]:
        """The line as arguments of `apss-cp plan`, whose values are text."""
        flags = {
            "--on": self.on,
            "--batch": self.batch,
            "--seq": self.seq,
            "--launcher": self.launcher,
            "--stack": self.stack,
            "--precision": self.precision,
            "--gpus-per-node": self.gpus_per_node,
            "--network": self.network,
        }
        return [
            str(self.model),
            *(word for flag, value in flags.items() if value is not None for word in (flag, str(value))),
        ]

    def problem(
        self, calibration: str | None = None, sections: Mapping[str, Mapping[str, Any]] | None = None, **search: Any
    ) -> Problem:
        """The problem that the line stands for; `sections`: fields of the spec's sections that it has no words for.

        Raises InputError with every trouble, named by its flag.
        """
        wrong: list[Trouble] = []
        try:
            spec = self.spec()
        except InputError as error:
            wrong += error.troubles
            spec = self._with_stand_ins()
        try:
            problem = make_problem(spec, {}, {**(sections or {}), "search": search}, calibration)
        except InputError as error:
            found = (trouble for trouble in error.troubles if trouble.where != "cluster")
            wrong += (in_flags(trouble, self.names) for trouble in found)
        if wrong:
            raise InputError(wrong)
        return problem

    def _with_stand_ins(self) -> dict[str, Any]:
        """The spec with a node of each chip that can be read, to judge all else by; no cluster where none can."""
        named: Mapping[str, Any] = self.on if isinstance(self.on, Mapping) else read_chips(self.on, [])
        node = self.gpus_per_node if type(self.gpus_per_node) is int and self.gpus_per_node > 0 else _USUAL_NODE
        chips = {name: {**chip, "max": node} if isinstance(chip, Mapping) else node for name, chip in named.items()}
        spec = self._spec(chips, node * len(named))
        return spec if named else {name: value for name, value in spec.items() if name != "cluster"}

    def spec_text(self, path: str, **search: Any) -> str:
        """The spec as the text of a YAML file at `path`, from whose folder a model's file is then found.

        `search`: fields of its search section; those that are None are left out.
        """
        from ruamel.yaml import YAML

        wishes = {name: value for name, value in search.items() if value is not None}
        spec = {**self.spec(), **({"search": wishes} if wishes else {})}
        if isinstance(self.model, str) and names_a_file(self.model):
            spec["model"] = os.path.relpath(self.model, Path(path).parent)
        stream = StringIO()
        YAML().dump(spec, stream)
        return f"# What to train, on what; `apss-cp init` writes every field with its default.\n{stream.getvalue()}"


def read_chips(text: str, found: list[Trouble]) -> dict[str, int]:
    """`a800:128,h800` as {a800: 128, h800: -1}; what cannot be read goes to `found`."""
    chips: dict[str, int] = {}
    form = later("type[:max][,type[:max]...], for example a800:128,h800:-1")
    for part in text.split(","):
        name, colon, limit = (piece.strip() for piece in part.partition(":"))
        problem = None
        if not name:
            problem = (
                later("names no chip type")
                if not part.strip()
                else later("{part!r} names no chip type", part=part.strip())
            )
        elif name in chips:
            problem = later("names {name!r} twice", name=name)
        elif colon and (not limit.removeprefix("-").isdecimal() or len(limit) > MOST_DIGITS):
            problem = later(
                "the most devices of {name} must be a whole number, not {limit!r}", name=name, limit=limit[:60]
            )
        if problem:
            found.append(Trouble("cluster.chips", problem, text, form))
        elif name:
            chips[name] = int(limit) if colon else NO_LIMIT
    return chips


def in_flags(trouble: Trouble, flags: Mapping[str, str]) -> Trouble:
    """A trouble with the spec in the words of a command line; `flags` has the flag that stands for each field."""
    where, message, allowed = trouble.where, say(trouble.message), say(trouble.allowed or "")
    for field, flag in flags.items():
        if where == field or where.startswith(field + "."):
            where = " ".join((flag, where[len(field) + 1 :])).strip()
        message, allowed = _named(message, field, flag), _named(allowed, field, flag)
    allowed = allowed.replace(", or the chip's own fields", "").replace(", or the model's own fields", ", or a file")
    allowed = allowed.replace(", or leave the chip out", "").replace(", or the network's own figures", "")
    return replace(trouble, where=where, message=message, allowed=allowed or None)


def _named(text: str, field: str, flag: str) -> str:
    """The text with the field's dotted name turned into the flag; a plain word such as `model` stays."""
    text = text.replace(field, flag) if "." in field else text
    return text.replace(f"another {field.rpartition('.')[2]}", f"another {flag}")
