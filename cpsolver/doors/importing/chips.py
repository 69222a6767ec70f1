"""Which chips a training runs on, in the order of its nodes: told by the user, or by the list that an export writes.

A script says neither which chips its hosts have nor in what order they are; with several types both are the plan's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import say
from cpsolver.plans.strategy import StageGroup, Strategy
from hw_specs import chip_names

NODES = "nodes.txt"
"""The file of an export that says which node ranks are on which chip, beside its script."""
_ROW = re.compile(
    r"(?P<nodes>[0-9-]{1,20})\t(?P<chip>[\w.-]{1,80})\tstages [0-9-]{1,20}\tranks (?P<ranks>[0-9-]{1,20})"
)
_ASKED = re.compile(r"^#SBATCH\s+(?:-C|--constraint|--gres|-G|--gpus(?:-per-\w+)?)[ =]*([^#\n]*)", re.MULTILINE)
"""What Slurm is asked for that may name a chip: `--constraint=a100`, `--gres=gpu:h100:8`."""
_MOST = 1 << 16
"""Characters of a list of nodes that are read."""


def runs_of(text: str | None) -> tuple[tuple[str, int], ...]:
    """Chips and how many devices of each, in the order of the ranks, of `h800:64,a800:64`; empty for one name alone.

    Raises InputError for what is neither.
    """
    if text is None or (":" not in text and "," not in text):
        return ()
    runs = re.findall(r"([^:,]+):([1-9][0-9]{0,6})(?:,|$)", text)
    if ",".join(f"{name}:{count}" for name, count in runs) != text:
        allowed = say("a name, or names with how many devices, in the order of the node ranks: h800:64,a800:64")
        raise InputError(Trouble("--chip", "cannot be read", text, allowed))
    alike = groupby(runs, key=lambda run: run[0])
    return tuple((name, sum(int(count) for _, count in run)) for name, run in alike)


def chips_of(text: str) -> str | dict[str, int]:
    """The chips of the spec's cluster: a name, or how many there are of each."""
    found: dict[str, int] = {}
    for name, count in runs_of(text):
        found[name] = found.get(name, 0) + count
    return found or text


def listed_beside(source: Path) -> str | None:
    """What runs_of reads, from the list of nodes beside an exported script; None where there is none that is known."""
    path = source.with_name(NODES)
    try:
        if not path.is_file():
            return None
        with path.open(encoding="utf-8") as file:
            text = file.read(_MOST)
    except (OSError, UnicodeDecodeError):
        return None
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    rows = [_ROW.fullmatch(line) for line in lines]
    found = [(row["chip"], [int(end) for end in row["ranks"].split("-") if end]) for row in rows if row]
    names = {chip for chip, _ in found}
    if not lines or not all(rows) or not all(ranks for _, ranks in found) or not names <= set(chip_names()):
        return None
    if len(names) == 1:
        return names.pop()
    return ",".join(f"{chip}:{ranks[-1] - ranks[0] + 1}" for chip, ranks in found)


def asked_of_slurm(text: str) -> str | None:
    """The one chip that the #SBATCH lines of a script name; None where they name none, or several."""
    words = {word.lower().replace("-", "_") for asked in _ASKED.findall(text) for word in re.split(r"[^\w-]+", asked)}
    found = words & set(chip_names())
    return found.pop() if len(found) == 1 else None


def placed(strategy: Strategy, text: str) -> Strategy:
    """The plan with its stages on the chips of `text`, each type's devices in turn.

    Raises InputError where the devices are not those of whole stages.
    """
    runs, width = runs_of(text), strategy.tp * strategy.cp * strategy.dp
    if not runs:
        return strategy
    counted, stages = sum(count for _, count in runs), strategy.pp
    if counted != strategy.devices or any(count % width for _, count in runs):
        told = say("does not fill {stages} stages of tp x cp x dp = {width} devices", stages=stages, width=width)
        allowed = say("multiples of {width}, {all} in all", width=width, all=width * stages)
        raise InputError(Trouble("--chip", told, text, allowed))
    return replace(strategy, groups=tuple(_groups(strategy, runs, width)))


def _groups(strategy: Strategy, runs: tuple[tuple[str, int], ...], width: int) -> Iterator[StageGroup]:
    whole, begin = strategy.groups[0], 0
    for chip, count in runs:
        end = begin + count // width
        amounts = whole.recompute_layers[begin:end]
        yield replace(whole, chip=chip, layers=whole.layers[begin:end], recompute_layers=amounts)
        begin = end
