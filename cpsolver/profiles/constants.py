"""The constants that predictions rest on, in layers: documented, fitted to published runs, learnt from a user's own.

Catalogues and stack profiles document each constant. The published calibration (written by benchmarks/fit.py) lies over
them and is always used; an overlay (written by `apss-cp calibrate`, read by `--calibration`; docs/calibrate.md has its
fields) lies over both. Every layer scales efficiencies of chips and replaces constants of stacks, and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from cpsolver.inputs.data import package_data, package_schema
from cpsolver.inputs.document import load_yaml
from cpsolver.inputs.errors import InputError, Trouble, validation_trouble
from cpsolver.inputs.errors import Path as KeyPath
from cpsolver.inputs.language import later, say
from cpsolver.profiles.stack import Constant, Stack
from hw_specs import Chip

ALL = "*"
"""The group of a calibration that serves all chips, or all stacks."""
CHIP_FACTORS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("gemm_bf16", "gemm_fp16", "gemm_fp8", "gemm_fp4"),
    "gemm_fp8": ("gemm_fp8",),
    "gemm_fp4": ("gemm_fp4",),
    "attention": ("attention_forward", "attention_backward"),
    "memory": ("memory",),
    "fabric": ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
    "network": ("network",),
}
"""What a fitted factor of a chip scales, as names of `hw_specs.schema.EFFICIENCY_NAMES`."""
SCHEMA = 1
"""The version of an overlay's schema."""
COORDINATES = 13
"""How many numbers say where a layout lies (cpsolver.evidence.posterior.misfit)."""

_FOLDER = Path(__file__).parent / "calibrations"
PUBLISHED_FIT, UNCERTAIN, SPREAD = (_FOLDER / f"{name}.yaml" for name in ("published", "uncertain", "spread"))
"""The published calibration; which constants runs may change, and how far; how far clusters are from predictions."""
_MADE_OF = {"published": PUBLISHED_FIT, "uncertain": UNCERTAIN, "spread": SPREAD}
"""Data files that an overlay is only right with."""

Positive = Annotated[FiniteFloat, Field(gt=0)]
NotNegative = Annotated[FiniteFloat, Field(ge=0)]
Logarithm = Annotated[FiniteFloat, Field(ge=-1000, le=1000)]
"""Of a ratio: larger ones are hardly floating-point numbers, and what is within these can be squared."""


class ConstantLayer:
    """Constants that lie over others: `factors` and `values` say which, `chip` and `stack` apply them."""

    def factors(self, chip: Chip) -> Iterable[tuple[str, float]]:
        """Factors on the chip's efficiencies, by name of CHIP_FACTORS, in the order in which they apply."""
        raise NotImplementedError

    def values(self, stack: Stack) -> Mapping[str, Constant]:
        """The stack's constants that are replaced."""
        raise NotImplementedError

    def chip(self, chip: Chip) -> Chip:
        """The chip with its efficiencies scaled."""
        efficiency = dict(chip.efficiency)
        for factor_name, factor in self.factors(chip):
            for name in CHIP_FACTORS[factor_name]:
                old = efficiency[name]
                # A share of the peak is at most 1; only reductions in the switch are catalogued above it, and may stay.
                limit = max(old.value, 1.0)
                efficiency[name] = old.model_copy(update={"value": min(old.value * factor, limit)})
        return chip.model_copy(update={"efficiency": efficiency})

    def stack(self, stack: Stack) -> Stack:
        """The stack with its constants replaced."""
        constants = stack.constants.model_copy(update=dict(self.values(stack)))
        return stack.model_copy(update={"constants": constants})


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Fitted(_Entry):
    """One fitted number: `rows` runs depend on it; `start` is where the fit began and is pulled to.

    `error`: one standard error, as a share of the value (of a share that is not zero or one: on the logit scale).
    """

    value: float
    start: float
    error: float
    rows: int


class Residuals(_Entry):
    """Spread of log(measured / predicted) over some runs: `low` and `high` enclose four in five."""

    rows: int
    low: float
    high: float


class Calibration(ConstantLayer, _Entry):
    """Constants fitted to published runs: factors by architecture (or variant of one) and name of CHIP_FACTORS, values
    by stack and name.

    Either may have a group ALL, which a chip's or stack's own entries come after.
    """

    name: str
    method: str
    chips: dict[str, dict[str, Fitted]]
    stacks: dict[str, dict[str, Fitted]]
    residuals: dict[str, Residuals] = {}

    def fitted_factors(self, chip: Chip) -> list[tuple[str, str, Fitted]]:
        """Group, name and entry of every factor on a chip: those of all chips, its architecture and its variant."""
        groups = (ALL, *filter(None, (chip.architecture, chip.variant)))
        return [(group, name, entry) for group in groups for name, entry in self.chips.get(group, {}).items()]

    def fitted_constants(self, stack: Stack) -> dict[str, Fitted]:
        """The entries that replace constants of a stack; its own before those that it shares."""
        groups = (ALL, *stack.fitted_with, stack.name)
        return {name: entry for group in groups for name, entry in self.stacks.get(group, {}).items()}

    def measured_on(self, stack: str) -> dict[str, int]:
        """Chip architecture -> runs of the stack on it, where they are enough for an interval of their own."""
        pairs = {tuple(key.split("/")): group.rows for key, group in self.residuals.items() if key.count("/") == 1}
        return {pair[1]: rows for pair, rows in pairs.items() if pair[0] == stack}

    def factors(self, chip: Chip) -> Iterable[tuple[str, float]]:
        """See ConstantLayer."""
        return [(name, entry.value) for _, name, entry in self.fitted_factors(chip)]

    def values(self, stack: Stack) -> Mapping[str, Constant]:
        """See ConstantLayer."""
        return {
            name: Constant(value=entry.value, source=f"fitted to {entry.rows} published runs", confidence="fitted")
            for name, entry in self.fitted_constants(stack).items()
        }


def load_calibration() -> Calibration:
    """The published calibration, which comes with the package."""
    return package_schema(PUBLISHED_FIT, Calibration)


class OverlayConstant(_Entry):
    """A constant: its value and where that lies, from `published` on in the spreads of calibrations/uncertain.yaml.

    `sd_before`, `sd`: standard deviations without and with the runs, in the same unit; `rows`: how many runs feel the
    constant. A chip's values are factors on its published efficiencies.
    """

    published: NotNegative
    learnt: NotNegative
    position: Logarithm
    sd_before: NotNegative
    sd: NotNegative
    rows: Annotated[int, Field(ge=0)]


class CoveredRuns(_Entry):
    """A chip and stack whose runs were learnt from, and how many have a step time."""

    chip: str
    stack: str
    runs: Annotated[int, Field(ge=0)]


class OverlayRun(_Entry):
    """A run as forecasts need it. `off`: log(measured / predicted with the published constants).

    `at`: where its layout lies, in doublings; `slopes`: how log(predicted) moves with a constant, by the constant's
    group and name, for one standard deviation; `cluster` and `layout`: what it shares misfit with.
    """

    id: str
    cluster: str
    layout: str
    off: Logarithm
    at: tuple[Logarithm, ...]
    slopes: dict[str, dict[str, Logarithm]] = {}


class OverlayErrors(_Entry):
    """Of step times, each layout left out in turn: mean size of predicted / measured - 1, share inside the interval."""

    before: NotNegative
    after: NotNegative
    inside_before: NotNegative
    inside_after: NotNegative


class Overlay(ConstantLayer, _Entry):
    """The whole file. `doubts`: why the runs were refused, where `--anyway` wrote the file all the same."""

    version: Literal[1] = Field(alias="schema")
    created: str
    apss_cp: str
    runs_file: str
    made_with: dict[str, str]
    covers: Annotated[tuple[CoveredRuns, ...], Field(min_length=1)]
    doubts: tuple[str, ...] = ()
    errors: OverlayErrors
    chips: dict[str, dict[str, OverlayConstant]]
    stacks: dict[str, dict[str, OverlayConstant]]
    runs: tuple[OverlayRun, ...]
    file: str = Field(default="", exclude=True)

    def __eq__(self, other: object) -> bool:
        """Only itself: what is worked out of an overlay is kept by the object."""
        return self is other

    def __hash__(self) -> int:
        return id(self)

    @property
    def covered(self) -> str:
        """What it covers, in words."""
        return ", ".join(say("{chip} with {stack}", chip=each.chip, stack=each.stack) for each in self.covers)

    def has(self, chip: str, stack: str) -> bool:
        """Whether runs of that chip and stack were learnt from."""
        return any((each.chip, each.stack) == (chip, stack) for each in self.covers)

    def factors(self, chip: Chip) -> Iterable[tuple[str, float]]:
        """See ConstantLayer: what was learnt of the chip."""
        return [(name, entry.learnt) for name, entry in self.chips.get(chip.name, {}).items()]

    def values(self, stack: Stack) -> Mapping[str, Constant]:
        """See ConstantLayer: what was learnt of the stack; a constant that stayed where it was keeps its source."""
        learnt = self.stacks.get(stack.name, {})
        return replacements({name: entry.learnt for name, entry in learnt.items() if entry.position})


def replacements(values: Mapping[str, float], source: str = "learnt from your runs") -> dict[str, Constant]:
    """Values as constants of a stack."""
    return {name: Constant(value=value, source=source, confidence="fitted") for name, value in values.items()}


def uncertain() -> dict[str, dict[str, dict[str, Any]]]:
    """What runs may change: chips, stacks (which move step times) and memory -> constant -> its entry."""
    found: dict[str, dict[str, dict[str, Any]]] = package_data(UNCERTAIN)
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
        message = later("is another version of the file: calibrate again")
        if version is None:
            message = later("is no overlay of `apss-cp calibrate`: calibrate again")
        trouble = Trouble("schema", message, version, str(SCHEMA), path=("schema",))
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
    places: dict[str, type[BaseModel]] = {"covers": CoveredRuns, "errors": OverlayErrors, "runs": OverlayRun}
    if not path:
        return {field.alias or name: field for name, field in Overlay.model_fields.items() if name != "file"}
    if path[0] in ("chips", "stacks"):
        return OverlayConstant.model_fields if len(path) == 3 else {}
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
                troubles.append(
                    Trouble(".".join(path), later("is no constant that runs tell"), allowed=allowed, path=path)
                )
            elif not learnt.learnt and not entry[name].get("more_than_one"):
                value = (*path, "learnt")
                troubles.append(Trouble(".".join(value), later("must be more than 0"), learnt.learnt, path=value))
            elif entry[name].get("share") and learnt.learnt > 1:
                value = (*path, "learnt")
                troubles.append(
                    Trouble(
                        ".".join(value),
                        later("is a share"),
                        learnt.learnt,
                        say("{least} to {most}", least=0, most=1),
                        path=value,
                    )
                )
    return troubles


def _other_makers(found: Overlay) -> list[Trouble]:
    return [
        Trouble(
            f"made_with.{name}",
            say(
                "the overlay was made with another {file} than this version has: calibrate again",
                file=_MADE_OF[name].name,
            ),
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
            message = say("must have {count} numbers: calibrate again", count=COORDINATES)
            troubles.append(Trouble(f"runs[{place}].at", message, len(run.at), path=("runs", place, "at")))
        for group, names in run.slopes.items():
            lost.setdefault((group, next((name for name in names if (group, name) not in known), "")), place)
    troubles += [
        Trouble(f"runs[{place}].slopes.{group}.{name}", later("is of no constant of this file"), path=("runs", place))
        for (group, name), place in lost.items()
        if name
    ]
    if sum(each.runs for each in found.covers) != len(found.runs):
        counted_runs = sum(each.runs for each in found.covers)
        message = say("counts {runs} runs, and the file has {there}", runs=counted_runs, there=len(found.runs))
        troubles.append(Trouble("covers", message, path=("covers",)))
    return troubles
