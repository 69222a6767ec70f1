"""What trials belong to: the spec with its names resolved, and what the template means."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from cpsolver.doors.tune.template import Template, parse_template
from cpsolver.problem.problem import Problem

_FREE = ("top", "time_limit_s")
"""Of the spec's search section: how long and how many, which no measurement depends on."""


def spec_meaning(problem: Problem) -> dict[str, Any]:
    """All of a resolved spec that a measured step time, or the space of plans, depends on.

    What is believed of the chips and the stack (efficiencies, constants) is no part of it: a new calibration, or a
    newer version of this product, goes on with the same trials.
    """
    spec = problem.spec.model_dump(mode="json")
    spec["model"] = problem.model.model_dump(mode="json")
    chips = {supply.name: supply for supply in problem.supplies}
    spec["cluster"]["chips"] = {
        name: {"max": supply.limit, **supply.chip.model_dump(mode="json", include={"memory", "vendor"})}
        for name, supply in chips.items()
    }
    for name in _FREE:
        spec["search"].pop(name)
    return spec


def command_meaning(template: Template, target: str | None) -> dict[str, Any]:
    """What the template runs: its words, however they are spaced and quoted."""
    text = template.text if template.shell else shlex.join(template.words)
    return {"text": text, "shell": template.shell, "target": target}


def stored_template(meaning: Mapping[str, Any]) -> tuple[Template, str | None]:
    """The template and the target that `command_meaning` described."""
    return parse_template(meaning["text"], meaning["shell"]), meaning["target"]
