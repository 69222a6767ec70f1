"""The columns of a table of measured runs: what each may hold, and a cell's text as a value."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, get_args

from cpsolver.evidence.runs.run import MemoryKind, Routing, RunOutcome
from cpsolver.inputs.errors import nearest_names, number
from cpsolver.inputs.language import later, say
from cpsolver.plans.strategy import MODULES, canonical_modules
from cpsolver.profiles.switches import Dispatcher, GraphScope, Precision, Recipe
from hw_specs import UnknownChipError, load_chip

_MOST = 1_048_576  # as in a spec
_SMALLEST, _LARGEST = 1e-6, 1e9  # of a time, a rate or a size; beyond them errors are no longer numbers
_LONGEST = 100  # characters of a name
_RECOMPUTE = ("none", "selective", "full", "block:N", "uniform:N")
_AMOUNT = re.compile(r"(block|uniform):[1-9][0-9]{0,6}")
_YES, _NO = ("1", "1.0", "true", "yes"), ("0", "0.0", "false", "no")


class BadCell(ValueError):
    """A cell that is no value of its column: what it must be, what is allowed, and the nearest names."""

    def __init__(self, message: str, allowed: str | None = None, nearest: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.message, self.allowed, self.nearest = message, allowed, nearest


def text(cell: str) -> str:
    """Any text."""
    return cell


def name(cell: str) -> str:
    """Text that may name an entry of a catalogue."""
    if len(cell) > _LONGEST:
        raise BadCell(say("must be at most {longest} characters", longest=_LONGEST))
    return cell


def _number(cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        raise BadCell(say("must be a number, not text")) from None
    if not math.isfinite(value):
        raise BadCell(say("must be a finite number; leave the cell empty when it is not known"))
    return value


def whole(cell: str, least: int = 0) -> int:
    """A whole number from `least`; `8.0` is 8, as programs write it that keep a column as floats."""
    value = _number(cell)
    if value < least:
        raise BadCell(say("must be at least {least}; leave the cell empty when it is not known", least=least))
    if value != int(value):
        raise BadCell(say("must be a whole number"))
    if value > _MOST:
        raise BadCell(say("must be at most {number}", number=number(_MOST)))
    return int(value)


def count(cell: str) -> int:
    """A whole number from 1."""
    return whole(cell, least=1)


def positive(cell: str) -> float:
    """A number above 0, in the range of things that can be measured."""
    value = _number(cell)
    if value <= 0:
        raise BadCell(say("must be more than 0; leave the cell empty when it is not known"))
    if not _SMALLEST <= value <= _LARGEST:
        raise BadCell(say("must be from {least:g} to {most:g}", least=_SMALLEST, most=_LARGEST))
    return value


def flag(cell: str) -> bool:
    """0 or 1; true, false, yes and no mean the same."""
    if cell.casefold() in _YES + _NO:
        return cell.casefold() in _YES
    raise BadCell(say("is not one of the choices"), "0, 1")


def _choice(*choices: str) -> Callable[[str], str]:
    """One of the choices."""

    def read(cell: str) -> str:
        if cell.casefold() in choices:
            return cell.casefold()
        raise BadCell(say("is not one of the choices"), ", ".join(choices), nearest_names(cell, choices))

    return read


def recompute(cell: str) -> str:
    """What is recomputed: none, selective, full, or so many layers of a stage."""
    if cell.casefold() in ("none", "selective", "full") or _AMOUNT.fullmatch(cell.casefold()):
        return cell.casefold()
    nearest = nearest_names(cell.partition(":")[0], [name.partition(":")[0] for name in _RECOMPUTE])
    raise BadCell(
        say("is not one of the choices"), ", ".join(_RECOMPUTE) + say(" with N layers of at least 1"), nearest
    )


def _listed(cell: str) -> list[str]:
    """The entries of a cell that holds several, with spaces or commas between them."""
    entries = cell.replace(",", " ").split()
    if not entries:
        raise BadCell(say("has no entries; leave the cell empty when they are not known"))
    return entries


def modules(cell: str) -> tuple[str, ...]:
    """Modules by Megatron's names, in the order and form in which plans hold them."""
    named = [entry.casefold() for entry in _listed(cell)]
    for entry in named:
        if entry not in MODULES:
            raise BadCell(
                say("{entry!r} is not one of the modules", entry=entry),
                ", ".join(MODULES),
                nearest_names(entry, MODULES),
            )
    return canonical_modules(named)


def layers_of_stages(cell: str) -> tuple[int, ...]:
    """Layers of each of the pipeline's ranks, first to last; a rank may hold the embedding or the head alone."""
    entries = _listed(cell)
    try:
        return tuple(whole(entry) for entry in entries)
    except BadCell:
        allowed = say("a whole number for each pipeline rank, such as 16 16 16 13")
        raise BadCell(say("is no list of layers"), allowed) from None


def chip(cell: str) -> str:
    """The name of a chip of the catalogue, or an alias of one; of several types each with its count, `a:12,b:4`."""
    if ":" not in cell:
        return _one_chip(cell)
    parts = [part.strip().rpartition(":") for part in cell.split(",")]
    try:
        counts = [count(number.strip()) for *_, number in parts]
    except BadCell:
        raise BadCell(say("is no list of chips with counts"), say(_CHIPS)) from None
    names = [_one_chip(written.strip()) for written, *_ in parts]
    return ",".join(f"{name}:{number}" for name, number in zip(names, counts, strict=True))


_CHIPS = later("one chip, or each type with its count in the order of the nodes: v100_16g:12,t4:4")


def _one_chip(cell: str) -> str:
    try:
        return _chip_name(name(cell))
    except UnknownChipError as error:
        raise BadCell(say("unknown chip"), say("a name that `apss-cp chips` lists"), error.nearest) from None


_STAGES = later('JSON, of each stage its replicas as [chip, tp]: [[["t4", 2], ["t4", 2]], [["v100_16g", 4]]]')


def stages(cell: str) -> tuple[tuple[tuple[str, int], ...], ...]:
    """Of every pipeline stage its replicas, each a chip and a tensor-parallel size, in JSON."""
    try:
        return tuple(tuple(_replica(*each) for each in stage) for stage in json.loads(cell))
    except BadCell:
        raise
    except (ValueError, TypeError, RecursionError):
        raise BadCell(say("is no list of stages"), say(_STAGES)) from None


def _replica(chip: object, tp: object) -> tuple[str, int]:
    if not isinstance(chip, str) or not isinstance(tp, int) or isinstance(tp, bool) or not 0 < tp <= _MOST:
        raise BadCell(say("is no list of stages"), say(_STAGES))
    return _one_chip(chip), tp


@lru_cache(maxsize=1024)
def _chip_name(cell: str) -> str:
    return load_chip(cell).name


@dataclass(frozen=True)
class TableColumn:
    """How a column's cells are read, and what a table without the column, or a row without the cell, means.

    `needed`: no prediction without it. `optional`: the whole column may be absent; its value is `absent` then.
    """

    read: Callable[[str], Any]
    needed: bool = False
    optional: bool = False
    absent: Any = None


_NEEDED_COUNT = TableColumn(count, needed=True)
_OPTIONAL_COUNT = TableColumn(count, optional=True)
_OPTIONAL_WHOLE = TableColumn(whole, optional=True)
_DEGREE = TableColumn(count, needed=True, optional=True, absent=1)
_NOTE = TableColumn(text, optional=True, absent="")

COLUMNS: dict[str, TableColumn] = {
    "id": TableColumn(text),
    "source": _NOTE,
    "source_ref": _NOTE,
    "model": TableColumn(name, needed=True),
    "layers": _NEEDED_COUNT,
    "hidden": _NEEDED_COUNT,
    "ffn": _NEEDED_COUNT,
    "heads": _NEEDED_COUNT,
    "kv_heads": _NEEDED_COUNT,
    "vocab": _NEEDED_COUNT,
    "seq_len": _NEEDED_COUNT,
    "gated_mlp": TableColumn(flag, needed=True),
    "moe_experts": _OPTIONAL_WHOLE,
    "moe_topk": _OPTIONAL_WHOLE,
    "moe_ffn": _OPTIONAL_WHOLE,
    "shared_expert_ffn": _OPTIONAL_WHOLE,
    "mtp_layers": _OPTIONAL_WHOLE,
    "chip": TableColumn(chip, needed=True),
    "gpus_per_node": _NEEDED_COUNT,
    "num_gpus": _NEEDED_COUNT,
    "internode_gbps_per_gpu": TableColumn(positive, optional=True),
    "tp": _NEEDED_COUNT,
    "pp": _NEEDED_COUNT,
    "cp": _DEGREE,
    "ep": _DEGREE,
    "etp": _OPTIONAL_COUNT,  # unknown: as tp
    "dp": _OPTIONAL_COUNT,  # follows from num_gpus, tp, pp and cp
    "vpp": _DEGREE,
    "layers_per_stage": TableColumn(layers_of_stages, optional=True),
    "stages": TableColumn(stages, optional=True),
    "mbs": _NEEDED_COUNT,
    "gbs": _NEEDED_COUNT,
    "recompute": TableColumn(recompute, needed=True),
    "recompute_modules": TableColumn(modules, optional=True),
    "sequence_parallel": TableColumn(flag),
    "sharding": TableColumn(_choice("none", "zero1", "zero2", "zero3"), needed=True),
    "sharding_group": _OPTIONAL_COUNT,
    "flash_attention": TableColumn(flag, needed=True),
    "precision": TableColumn(_choice(*get_args(Precision)), needed=True),
    "fp8_recipe": TableColumn(_choice(*get_args(Recipe)), optional=True),
    "a2a_overlap": TableColumn(flag, optional=True),
    "routing": TableColumn(_choice(*get_args(Routing)), optional=True),
    "dispatcher": TableColumn(_choice(*get_args(Dispatcher)), optional=True),
    "cuda_graph": TableColumn(_choice(*get_args(GraphScope)), optional=True),
    "offload_layers": _OPTIONAL_WHOLE,
    "framework": _NOTE,
    "step_time_s": TableColumn(positive, needed=True),
    "tokens_per_s_per_gpu": TableColumn(positive, optional=True),
    "peak_mem_gib": TableColumn(positive, optional=True),
    "peak_mem_kind": TableColumn(_choice(*get_args(MemoryKind)), optional=True),
    "outcome": TableColumn(_choice(*get_args(RunOutcome)), optional=True),
    "complete": TableColumn(flag, optional=True),
}
"""By name, in the table's usual order; docs/validate.md says what each means. Any other column is for people and not
read (derived, notes)."""
