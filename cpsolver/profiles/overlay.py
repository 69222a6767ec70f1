"""What a user's own runs taught, as a file: constants laid over the published calibration, and what forecasts need.

`apss-cp calibrate` writes it, `--calibration` reads it. docs/calibrate.md says what its fields mean.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from cpsolver.inputs.document import load_yaml
from cpsolver.inputs.errors import InputError, Trouble, validation_trouble
from cpsolver.inputs.errors import Path as KeyPath
from cpsolver.profiles.calibration import CHIP_FACTORS, PUBLISHED
from cpsolver.profiles.stack import Constant, Stack
from hw_specs import Chip

SCHEMA = 1
"""The version of the file's schema."""
COORDINATES = 13
"""How many numbers say where a layout lies (cpsolver.evidence.posterior.misfit)."""
_HERE = Path(__file__).parent
_MADE_OF = {
    "published": _HERE / "calibrations" / f"{PUBLISHED}.yaml",
    "uncertain": _HERE.parent / "evidence" / "posterior" / "uncertain.yaml",
    "spread": _HERE.parent / "evidence" / "posterior" / "spread.yaml",
}
"""Data files that an overlay is only right with."""
_SOURCE = "learnt from your runs"

Positive = Annotated[FiniteFloat, Field(gt=0)]
NotNegative = Annotated[FiniteFloat, Field(ge=0)]


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Learnt(_Entry):
    """A constant: its value and where that lies, from `published` on in the spreads of posterior/uncertain.yaml.

    `sd_before`, `sd`: standard deviations without and with the runs, in the same unit; `rows`: how many runs feel the
    constant. A chip's values are factors on its published efficiencies.
    """

    published: NotNegative
    learnt: NotNegative
    position: FiniteFloat
    sd_before: NotNegative
    sd: NotNegative
    rows: Annotated[int, Field(ge=0)]


class Cover(_Entry):
    """A chip and stack whose runs were learnt from, and how many have a step time."""

    chip: str
    stack: str
    runs: Annotated[int, Field(ge=0)]


class Run(_Entry):
    """A run as forecasts need it. `off`: log(measured / predicted with the published constants).

    `at`: where its layout lies, in doublings; `slopes`: how log(predicted) moves with a constant, by the constant's
    group and name, for one standard deviation; `cluster` and `layout`: what it shares misfit with.
    """

    id: str
    cluster: str
    layout: str
    off: FiniteFloat
    at: tuple[FiniteFloat, ...]
    slopes: dict[str, dict[str, FiniteFloat]] = {}


class Errors(_Entry):
    """Of step times, each layout left out in turn: mean size of predicted / measured - 1, share inside the interval."""

    before: NotNegative
    after: NotNegative
    inside_before: NotNegative
    inside_after: NotNegative


class Overlay(_Entry):
    """The whole file. `doubts`: why the runs were refused, where `--anyway` wrote the file all the same."""

    version: Literal[1] = Field(alias="schema")
    created: str
    apss_cp: str
    runs_file: str
    made_with: dict[str, str]
    covers: Annotated[tuple[Cover, ...], Field(min_length=1)]
    doubts: tuple[str, ...] = ()
    errors: Errors
    chips: dict[str, dict[str, Learnt]]
    stacks: dict[str, dict[str, Learnt]]
    runs: tuple[Run, ...]
    file: str = Field(default="", exclude=True)

    def __eq__(self, other: object) -> bool:
        """Only itself: what is worked out of an overlay is kept by the object."""
        return self is other

    def __hash__(self) -> int:
        return id(self)

    @property
    def covered(self) -> str:
        """What it covers, in words."""
        return ", ".join(f"{each.chip} with {each.stack}" for each in self.covers)

    def has(self, chip: str, stack: str) -> bool:
        """Whether runs of that chip and stack were learnt from."""
        return any((each.chip, each.stack) == (chip, stack) for each in self.covers)

    def chip(self, chip: Chip) -> Chip:
        """The chip, its efficiencies as published, with what was learnt of it."""
        return scaled(chip, {name: each.learnt for name, each in self.chips.get(chip.name, {}).items()})

    def stack(self, stack: Stack) -> Stack:
        """The stack, its constants as published, with what was learnt of it."""
        learnt = self.stacks.get(stack.name, {})
        return replaced(stack, {name: each.learnt for name, each in learnt.items() if each.position}, _SOURCE)


def scaled(chip: Chip, factors: Mapping[str, float]) -> Chip:
    """The chip with its efficiencies scaled by factors, by name of `CHIP_FACTORS`."""
    efficiency = dict(chip.efficiency)
    for name, factor in factors.items():
        for each in CHIP_FACTORS[name]:
            old = efficiency[each]
            most = max(old.value, 1.0)  # of the peak, as in cpsolver.profiles.calibration
            efficiency[each] = old.model_copy(update={"value": min(old.value * factor, most)})
    return chip.model_copy(update={"efficiency": efficiency})


def replaced(stack: Stack, values: Mapping[str, float], source: str) -> Stack:
    """The stack with constants replaced, by name."""
    new = {name: Constant(value=value, source=source, confidence="fitted") for name, value in values.items()}
    return stack.model_copy(update={"constants": stack.constants.model_copy(update=new)})


@lru_cache
def uncertain() -> dict[str, dict[str, dict[str, Any]]]:
    """What runs may change: chips, stacks (which move step times) and memory -> constant -> its entry."""
    found: dict[str, dict[str, dict[str, Any]]] = load_yaml(_MADE_OF["uncertain"]).data
    return found


def digests() -> dict[str, str]:
    """Of the data files that an overlay is only right with, by what they are called in it."""
    return {name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for name, path in _MADE_OF.items()}


def load_overlay(path: str | Path) -> Overlay:
    """The overlay in a file ("-": standard input).

    Raises InputError for a file that cannot be read, another schema, values that are wrong, and one that was made with
    other published constants.
    """
    document = load_yaml(path)
    version = document.data.get("schema")
    if version != SCHEMA:
        message = "is no overlay of `apss-cp calibrate`" if version is None else "is another version of the file"
        trouble = Trouble("schema", f"{message}: calibrate again", version, str(SCHEMA), path=("schema",))
        raise InputError(document.located(trouble))
    try:
        found = Overlay.model_validate(document.data)
    except ValidationError as error:
        raise InputError(
            document.in_order(validation_trouble(detail, document.data, _fields_at) for detail in error.errors())
        ) from None
    troubles = [*_wrong_constants(found), *_other_makers(found), *_wrong_shapes(found)]
    if troubles:
        raise InputError(document.in_order(troubles))
    return found.model_copy(update={"file": str(path)})


def _fields_at(path: KeyPath) -> Mapping[str, Any]:
    """The fields of the model that stands there."""
    places: dict[str, type[BaseModel]] = {"covers": Cover, "errors": Errors, "runs": Run}
    if not path:
        return {field.alias or name: field for name, field in Overlay.model_fields.items() if name != "file"}
    if path[0] in ("chips", "stacks"):
        return Learnt.model_fields if len(path) == 3 else {}
    return places[str(path[0])].model_fields if path[0] in places else {}


def _wrong_constants(found: Overlay) -> list[Trouble]:
    entries = uncertain()
    known = {"chips": entries["chips"], "stacks": entries["stacks"] | entries["memory"]}
    troubles = []
    for kind, entry in known.items():
        places = [(group, name, each) for group, names in getattr(found, kind).items() for name, each in names.items()]
        for group, name, learnt in places:
            path = (kind, group, name)
            if name not in entry:
                allowed = ", ".join(entry)
                troubles.append(Trouble(".".join(path), "is no constant that runs tell", allowed=allowed, path=path))
            elif not learnt.learnt and not entry[name].get("more_than_one"):
                value = (*path, "learnt")
                troubles.append(Trouble(".".join(value), "must be more than 0", learnt.learnt, path=value))
            elif entry[name].get("share") and learnt.learnt > 1:
                value = (*path, "learnt")
                troubles.append(Trouble(".".join(value), "is a share", learnt.learnt, "0 to 1", path=value))
    return troubles


def _other_makers(found: Overlay) -> list[Trouble]:
    return [
        Trouble(
            f"made_with.{name}",
            f"the overlay was made with another {_MADE_OF[name].name} than this version has: calibrate again",
            found.made_with.get(name),
            digest,
            path=("made_with", name),
        )
        for name, digest in digests().items()
        if found.made_with.get(name) != digest
    ]


def _wrong_shapes(found: Overlay) -> list[Trouble]:
    troubles: list[Trouble] = []
    lost: dict[tuple[str, str], int] = {}  # the constant and the first run at fault
    known = {(group, name) for kind in (found.chips, found.stacks) for group, names in kind.items() for name in names}
    for place, run in enumerate(found.runs):
        if len(run.at) != COORDINATES:
            message = f"must have {COORDINATES} numbers: calibrate again"
            troubles.append(Trouble(f"runs[{place}].at", message, len(run.at), path=("runs", place, "at")))
        for group, names in run.slopes.items():
            lost.setdefault((group, next((name for name in names if (group, name) not in known), "")), place)
    troubles += [
        Trouble(f"runs[{place}].slopes.{group}.{name}", "is of no constant of this file", path=("runs", place))
        for (group, name), place in lost.items()
        if name
    ]
    if sum(each.runs for each in found.covers) != len(found.runs):
        message = f"counts {sum(each.runs for each in found.covers)} runs, and the file has {len(found.runs)}"
        troubles.append(Trouble("covers", message, path=("covers",)))
    return troubles
