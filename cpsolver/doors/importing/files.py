"""An import as files: a commented spec, and a plan that `apss-cp evaluate` reads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from cpsolver.doors.importing.imported import Imported
from cpsolver.inputs.errors import one_line
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.strategy_file import strategy_to_dict

_PLAIN = re.compile(r"[A-Za-z_][\w./+-]*", re.ASCII)
_WORDS = ("null", "true", "false", "yes", "no", "on", "off", "y", "n")


def spec_text(imported: Imported) -> str:
    """The spec in YAML, with a comment at every value that is left to fill in."""
    head = [f"# Imported from {one_line(imported.source)}."]
    if imported.framework is not None:
        head.append(f"# Stack and launcher by: {one_line(imported.framework.why)}.")
    return "\n".join([*head, *_lines({**imported.spec, "search": {"top": 3}}, (), imported.placeholders)]) + "\n"


def strategy_text(strategy: Strategy, source: str) -> str:
    """The plan in YAML, as `apss-cp evaluate --strategy` takes it."""
    return "\n".join([f"# The plan that {one_line(source)} runs.", *_lines(strategy_to_dict(strategy), (), {})]) + "\n"


def _lines(data: Mapping[str, Any], path: tuple[str, ...], comments: Mapping[str, str]) -> list[str]:
    indent, lines = "  " * len(path), []
    for key, value in data.items():
        comment = comments.get(".".join((*path, key)))
        beside = f"  # TO FILL IN: {one_line(comment)}" if comment else ""
        if isinstance(value, Mapping) and value:
            lines += [f"{indent}{_scalar(key)}:{beside}", *_lines(value, (*path, key), comments)]
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            lines.append(f"{indent}{_scalar(key)}:{beside}")
            lines += [f"{indent}  - {_flow(item)}" for item in value]
        else:
            lines.append(f"{indent}{_scalar(key)}: {_flow(value)}{beside}")
    return lines


def _flow(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_scalar(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return one_line(json.dumps(value, ensure_ascii=False))
