"""The sweep file: a base spec, axes whose values are combined (grid), and cells one by one (list)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from cpsolver.doors.batch.axes import Axis, Choice, Setting, check_labels, read_axis, read_choice, too_many
from cpsolver.doors.batch.fields import overlap, with_field, with_shares
from cpsolver.inputs.document import Document, load_yaml
from cpsolver.inputs.errors import InputError, Trouble, dotted, nearest_names
from cpsolver.inputs.errors import Path as KeyPath
from cpsolver.inputs.language import later, say
from cpsolver.inputs.limits import MOST_CELLS
from cpsolver.spec.spec import names_a_file

_KEYS = ("base", "grid", "list")


@dataclass(frozen=True)
class Cell:
    """One spec of the sweep: its labels by axis, and the values that it sets over the base."""

    labels: Mapping[str, str]
    settings: tuple[Setting, ...]

    @property
    def name(self) -> str:
        """The labels in one line."""
        return ", ".join(self.labels.values()) or "base"


@dataclass(frozen=True)
class Sweep:
    """A sweep file as read. `base` are a spec's plain values; files named in them are absolute or from `folder`.

    `base_document` and `base_at` say where the base stands: in a file of its own, or in the sweep file.
    """

    file: str
    document: Document
    base: Mapping[str, Any]
    base_document: Document
    base_at: KeyPath
    folder: Path | None
    axes: tuple[str, ...]
    cells: tuple[Cell, ...]

    def data(self, cell: Cell) -> dict[str, Any]:
        """The whole spec of a cell, in plain values."""
        values = dict(self.base)
        for setting in cell.settings:
            values = with_field(values, setting.path, setting.value)
        return with_shares(values)

    def located(self, trouble: Trouble, cell: Cell) -> Trouble:
        """A trouble of a cell's spec with its place: in the sweep file, or in the base's own file."""
        if trouble.line is not None or trouble.file is not None:
            return trouble
        for setting in reversed(cell.settings):
            if trouble.path and overlap(setting.path, tuple(map(str, trouble.path))):
                place = self.document.located(replace(trouble, path=setting.origin))
                return replace(place, path=trouble.path)
        place = self.base_document.located(replace(trouble, path=(*self.base_at, *trouble.path)))
        return replace(place, path=trouble.path)


def is_sweep(path: str | Path) -> bool:
    """Whether a file is a sweep's and no spec: it has a base to vary. Standard input, read once, is taken for a spec.

    Raises InputError for a file that cannot be read.
    """
    return str(path) != "-" and "base" in load_yaml(path, collect=True).data


def load_sweep(path: str | Path) -> Sweep:
    """The sweep in a YAML or JSON file ("-": standard input); files that it names are relative to its folder.

    Raises InputError with every problem of the file itself: keys, axes, values, labels, a base that cannot be read.
    What is wrong with a single cell's spec is not told here (see cpsolver.doors.batch.cases).
    """
    folder = None if str(path) == "-" else Path(path).parent
    return sweep_of(load_yaml(path, collect=True), folder, str(path))


def sweep_of(document: Document, folder: Path | None = None, name: str = "sweep") -> Sweep:
    """The same from a document that is read already, of that name where it is no file."""
    found = list(document.troubles)
    for key in document.data:
        if key not in _KEYS:
            near = nearest_names(key, _KEYS)
            found.append(Trouble(key, later("is not a key of a sweep"), None, ", ".join(_KEYS), near, path=(key,)))
    base, base_document, base_at = _base(document, folder, found)
    axes = _axes(document.data.get("grid"), found)
    chosen = _list(document.data.get("list"), found)
    if not axes and not chosen and not found:
        told = say("has neither grid nor list: nothing is varied")
        found.append(Trouble("", told, allowed="grid: {cluster.num_gpus: …}"))
    count = prod(len(axis.choices) for axis in axes) + len(chosen)
    if count > MOST_CELLS:
        found.append(too_many(count, ("grid",)))
    if found:
        inside = [trouble for trouble in found if trouble.file in (None, document.file)]
        raise InputError(document.in_order(inside) + [trouble for trouble in found if trouble not in inside])
    names = [axis.name for axis in axes]
    cells = (*_grid_cells(axes), *(Cell({"cell": choice.label}, choice.settings) for choice in chosen))
    columns = dict.fromkeys([*names, *(name for cell in cells for name in cell.labels)])
    return Sweep(document.file or name, document, base, base_document, base_at, folder, tuple(columns), cells)


def _base(document: Document, folder: Path | None, found: list[Trouble]) -> tuple[Mapping[str, Any], Document, KeyPath]:
    """The base spec's values, the document that they stand in, and where in it."""
    base, at = document.data.get("base"), ("base",)
    if isinstance(base, Mapping):
        return base, document, at
    if not isinstance(base, str) or not base.strip():
        wrong = later("must be a spec's fields, or a file that has them")
        found.append(Trouble("base", later("is required, and missing") if base is None else wrong, base, path=at))
        return {}, document, at
    file = Path(base) if folder is None else folder / base
    try:
        other = load_yaml(file, collect=True)
    except InputError as error:
        found += [
            trouble if trouble.line else replace(trouble, where="base", value=base, path=at, file=None)
            for trouble in error.troubles
        ]
        return {}, document, at
    found += other.troubles
    return _files_from(other.data, file.parent.absolute()), other, ()


def _files_from(data: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """A base's values with the files that it names found from its own folder, wherever the sweep file stands."""
    model, cluster = data.get("model"), data.get("cluster")
    if isinstance(model, str) and names_a_file(model):
        data = {**data, "model": str(folder / model)}
    chips = cluster.get("chips") if isinstance(cluster, Mapping) else None
    if isinstance(cluster, Mapping) and isinstance(chips, Mapping):
        placed = {
            name: {**chip, "file": str(folder / chip["file"])}
            if isinstance(chip, Mapping) and isinstance(chip.get("file"), str)
            else chip
            for name, chip in chips.items()
        }
        data = {**data, "cluster": {**cluster, "chips": placed}}
    return data


def _axes(grid: Any, found: list[Trouble]) -> list[Axis]:
    if grid is None:
        return []
    if not isinstance(grid, Mapping) or not grid:
        told = later("must be a mapping: a field or an axis's name -> its values")
        allowed = say("{example} say", example="{cluster.num_gpus: [64, 128]}")
        found.append(Trouble("grid", told, grid, allowed, path=("grid",)))
        return []
    axes = [axis for name, values in grid.items() if (axis := read_axis(name, values, found)) is not None]
    for place, axis in enumerate(axes):
        for other in axes[:place]:
            both = [path for path in axis.paths if any(overlap(path, one) for one in other.paths)]
            if both:
                told = say("sets {field}, which the axis {axis!r} sets too", field=dotted(both[0]), axis=other.name)
                found.append(Trouble(dotted(("grid", axis.name)), told, path=("grid", axis.name)))
    return axes


def _list(cells: Any, found: list[Trouble]) -> list[Choice]:
    if cells is None:
        return []
    if not isinstance(cells, Sequence) or isinstance(cells, str) or not cells:
        told = later("must be a list of cells, each a mapping of dotted fields")
        allowed = say("{example} say", example="[{cluster.num_gpus: 64}]")
        found.append(Trouble("list", told, cells, allowed, path=("list",)))
        return []
    read = [read_choice(cell, ("list", place), found) for place, cell in enumerate(cells)]
    choices = [choice for choice in read if choice is not None]
    if len(choices) == len(cells):
        check_labels(choices, ("list",), found)
    return choices


def _grid_cells(axes: Sequence[Axis]) -> Iterator[Cell]:
    if not axes:
        return
    for choices in product(*(axis.choices for axis in axes)):
        labels = {axis.name: choice.label for axis, choice in zip(axes, choices, strict=True)}
        yield Cell(labels, tuple(setting for choice in choices for setting in choice.settings))
