"""What a script asks of what is around it: `yq` and `jq` for a value of a file beside it, by the names that lead there,
and `nvidia-smi` for the GPUs of its node."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cpsolver.inputs.document import read_text
from cpsolver.inputs.errors import InputError

_NAMES = re.compile(r"(?:\.[A-Za-z_][\w-]*)+", re.ASCII)
_OPTIONS = {"-r", "-e", "--raw-output", "--exit-status"}
_WHOLE = re.compile(r"-?[1-9][0-9]*|0|true|false", re.ASCII)
"""Values that all of them print alike; jq has quotes around others, and writes 1.0e-4 as 0.0001."""
PROGRAMS = ("yq", "jq")
"""Whose output is known of such a file; there are two programs by the name of yq."""
_COUNTED = re.compile(
    r"\s*nvidia-smi\s+(?:-L|--list-gpus|--query-gpu=\w+\s+--format=csv,noheader)\s*(?:2>\s*/dev/null\s*)?\|\s*wc -l\s*"
)
"""A line for each GPU, counted."""


def counts_devices(text: str) -> bool:
    """Whether commands print how many GPUs their node has: `nvidia-smi -L | wc -l`."""
    return _COUNTED.fullmatch(text) is not None


def queried(words: Sequence[str], find: Callable[[str], Path | None]) -> str | None:
    """What a command prints, by its file, which `find` gives; None where that is not known, or where programs of its
    name print different things."""
    given = [word for word in words[1:] if word not in _OPTIONS]
    given = given[1:] if words[0] == "yq" and given[:1] in (["e"], ["eval"]) else given
    if len(given) != 2 or not _NAMES.fullmatch(given[0]):
        return None
    file, value = find(given[1]), None
    with suppress(InputError):
        value = None if file is None else _found(read_text(file)[1], given[0].split(".")[1:])
    raw = words[0] == "yq" or {"-r", "--raw-output"} & set(words)
    return f"{value}\n" if value and (raw or _WHOLE.fullmatch(value)) else None


def _found(text: str, names: Sequence[str]) -> str | None:
    """The value as it is written; of a name that stands twice the last, as these programs take it."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        node: Any = YAML(typ="safe", pure=True).compose(text)
    except (YAMLError, RecursionError):
        return None
    for name in names:
        pairs = node.value if node is not None and node.id == "mapping" else []
        node = next((value for key, value in reversed(pairs) if key.value == name), None)
    if node is None or node.id != "scalar" or node.tag.endswith((":null", ":merge")):
        return None
    return str(node.value)
