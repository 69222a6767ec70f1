"""Sweeps and comparisons from Python: `sweep`, solved as it is read, and `compare`."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias

from cpsolver.doors.batch.cases import SweepCase
from cpsolver.doors.batch.compare import Answer, Comparison, ComparisonRequest, Option, cluster_of
from cpsolver.doors.batch.compare import compare as compared
from cpsolver.doors.batch.comparison_page import comparison_page
from cpsolver.doors.batch.decision import comparison_document, comparison_records
from cpsolver.doors.batch.files import cell_document, cell_record, document, record_columns
from cpsolver.doors.batch.page import sweep_page
from cpsolver.doors.batch.rows import Row
from cpsolver.doors.batch.run import SweepAnswer, SweepRequest, cases_of, cells_as_known, run_cases
from cpsolver.doors.batch.sweep import Sweep, load_sweep, sweep_of
from cpsolver.doors.report.frame import data_frame, table_html
from cpsolver.doors.report.html.choices import choices_page
from cpsolver.explanation.account import SearchDisplay, display_of
from cpsolver.inputs.document import Document
from cpsolver.inputs.errors import InputError, Trouble, shown
from cpsolver.inputs.text import plural
from cpsolver.problem.asked import Source, check_given, check_kinds
from cpsolver.problem.flags import ARGUMENT_OF, in_flags
from cpsolver.problem.load import plain
from cpsolver.problem.problem import Problem

Chips: TypeAlias = str | Mapping[str, int]
"""Chips and how many of each: {"h800": 64, "a800": 64}, or text that may have prices: "h800:64@2.1,a800:64@1.2"."""

_FIELD_OF = {name: field for field, name in ARGUMENT_OF.items() if field not in ("search", "cluster.num_gpus")}
_USUAL_NODE = 8


class LazySweep:
    """Many problems, of which none is solved before it is asked for.

    Going through it gives each cell's columns (docs/batch.md) as they are known, those that the database has first.
    Whatever is solved is kept: with a `db`, or of a sweep file, the same sweep goes on where it was stopped.
    """

    def __init__(self, sweep: Sweep, cases: Sequence[SweepCase], request: SweepRequest) -> None:
        self._sweep, self._cases, self._request = sweep, tuple(cases), request
        self._rows: dict[str, Row] = {}

    def __len__(self) -> int:
        """How many cells there are."""
        return len(self._cases)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Every cell's columns, plans and proof among them, solved as they are asked for."""
        for case, row in cells_as_known(self._cases, self._request):
            self._rows[case.key] = row
            yield cell_document(case, row)

    def run(self) -> SweepAnswer:
        """All cells, solved where they are not known. Ctrl-C: those that are known by then, all of them kept."""
        answer = run_cases(self._sweep, self._cases, self._request)
        self._rows.update({case.key: row for case, row in answer.done})
        return answer

    def to_dict(self) -> dict[str, Any]:
        """What `batch --json` prints, in plain values; solves what is not known."""
        return document(self.run())

    def to_frame(self) -> Any:
        """A pandas.DataFrame with a row for each cell; solves what is not known. Raises InputError without pandas."""
        axes = self._sweep.axes
        records = [cell_record(axes, case, row) for case, row in self.run().done]
        return data_frame(records, record_columns(axes))

    def to_html(self) -> str:
        """The page that `batch --html` writes; solves what is not known."""
        return choices_page(sweep_page(self.run()))

    def _repr_html_(self) -> str:
        """What a notebook shows: the cells that are known by now; nothing is solved for it."""
        shown = ("status", "devices", "step_time_s", "tokens_per_s", "mfu", "days", "dollars", "strategy")
        known = [(case, self._rows[case.key]) for case in self._cases if case.key in self._rows]
        records = [{**case.cell.labels, **{name: row[name] for name in shown}} for case, row in known]
        return table_html(repr(self).strip("<>"), records)

    def __repr__(self) -> str:
        known = sum(case.key in self._rows for case in self._cases)
        return f"<sweep of {plural(len(self), 'cell')}, {known:,} of them known>"


def sweep(
    source: Source | Sequence[str],
    *,
    on: Chips | Sequence[Chips] | None = None,
    batch: int | Sequence[int] | None = None,
    seq: int | Sequence[int] | None = None,
    launcher: str | Sequence[str] | None = None,
    stack: str | Sequence[str] | None = None,
    precision: str | Sequence[str] | None = None,
    gpus_per_node: int | Sequence[int] | None = None,
    network: str | Sequence[str] | None = None,
    cluster: Mapping[str, object] | None = None,
    training: Mapping[str, object] | None = None,
    db: str | PathLike[str] | None = None,
    jobs: int | None = None,
    time_limit_s: float | None = None,
    ray: bool | str = False,
    retry_failed: bool = False,
    calibration: str | PathLike[str] | None = None,
    **search: object,
) -> LazySweep:
    """Many problems, solved in parallel as they are asked for, each answer kept: `apss-cp batch`.

        sizes = cpsolver.sweep("llama2-7b", on=[{"a800": 32}, {"a800": 64}], batch=[256, 512], seq=4096, db="s.sqlite")
        for cell in sizes:
            print(cell["labels"], cell["step_time_s"])

    Args:
        source: models as in `plan`, or a list of them; without `on`, `batch` and `seq` a sweep file (docs/batch.md) or
            its fields.
        on, batch, seq, launcher, stack, precision, gpus_per_node, network: as in `plan`; a list is an axis, and every
            combination of the axes' values is a cell.
        cluster, training, search: as in `plan`, for all cells.
        db: where answers are kept, so that the same call goes on with them; None: beside the sweep file, else nowhere
            for longer than this object lives.
        jobs: cells solved at once, a process each; None: one a core.
        time_limit_s: for each cell.
        ray: solve on a Ray cluster: its address, or True for a local one.
        retry_failed: solve again what failed.
        calibration: what `apss-cp calibrate` wrote.

    Raises InputError for what is wrong with all cells; what is wrong with one is in its columns.
    """
    check_kinds(source=source, on=on, cluster=cluster, training=training, calibration=calibration)
    axes = {"batch": batch, "seq": seq, "launcher": launcher, "stack": stack, "precision": precision}
    axes |= {"gpus_per_node": gpus_per_node, "network": network}
    sections = {"cluster": dict(cluster or {}), "training": dict(training or {}), "search": search}
    made = _asked(source, on, axes, sections)
    request = SweepRequest(made.file, _path(db, "db"), jobs, time_limit_s, retry_failed=retry_failed)
    request = replace(request, on="ray" if ray else None, ray_address=ray if isinstance(ray, str) else None)
    return _with_place(made, replace(request, calibration=_path(calibration)))


def _asked(
    source: Any, on: Chips | Sequence[Chips] | None, axes: Mapping[str, Any], sections: dict[str, dict[str, Any]]
) -> Sweep:
    """The sweep of a file or its fields, or of models on chips."""
    whole = not isinstance(source, Mapping) or "base" in source
    if whole and not isinstance(source, list | tuple) and on is axes["batch"] is axes["seq"] is None:
        return sweep_of(Document(dict(source))) if isinstance(source, Mapping) else load_sweep(fspath(source))
    return sweep_of(Document(plain(_fields({"model": source, **axes}, on, sections))))


def _path(given: str | PathLike[str] | None, name: str = "calibration") -> str | None:
    if given is None:
        return None
    check_given(**{name: given})
    return fspath(given)


def _with_place(made: Sweep, request: SweepRequest) -> LazySweep:
    """The sweep with a place for its answers, a passing one where none is named."""
    cases = cases_of(made, request)
    if request.db is not None or made.document.file is not None:
        return LazySweep(made, cases, request)
    folder = tempfile.mkdtemp(prefix="apss-cp-")
    found = LazySweep(made, cases, replace(request, db=str(Path(folder) / "sweep.sqlite")))
    weakref.finalize(found, shutil.rmtree, folder, True)
    return found


def _fields(
    given: Mapping[str, Any], on: Chips | Sequence[Chips] | None, sections: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """A sweep file's values: what is a list is an axis, all else the base's."""
    base: dict[str, Any] = {**sections}
    grid: dict[str, Any] = {}
    for name, value in given.items():
        field = _FIELD_OF[name]
        if isinstance(value, list | tuple):
            grid[field] = [fspath(one) if isinstance(one, PathLike) else one for one in value]
        elif value is not None:
            section, _, key = field.rpartition(".")
            (base[section] if section else base)[key] = fspath(value) if isinstance(value, PathLike) else value
    if on is None or isinstance(on, str | Mapping):
        base["cluster"] = {**({} if on is None else _cluster(on, base["cluster"])), **base["cluster"]}
    else:
        axis = [(text_of_chips(one), _cluster(one, base["cluster"])) for one in on]
        grid["on"] = [{"label": label, **{f"cluster.{key}": v for key, v in own.items()}} for label, own in axis]
    return {"base": base, "grid": grid}


def _cluster(on: Chips, given: Mapping[str, Any]) -> dict[str, Any]:
    """The cluster of some chips: devices, nodes, prices where they are told."""
    found = cluster_of(text_of_chips(on))
    own = {} if "gpus_per_node" in given else {"gpus_per_node": min(_USUAL_NODE, found["num_gpus"])}
    prices = {**(given.get("prices") or {}), **found.pop("prices")}
    return {**found, **own, **({"prices": {name: prices[name] for name in found["chips"]}} if prices else {})}


def text_of_chips(on: Chips) -> str:
    """Chips in one line, `h800:64,a800:64`."""
    if isinstance(on, str):
        return on
    return ",".join(f"{name}:{shown(count) if type(count) is int else count}" for name, count in on.items())


@dataclass(frozen=True, repr=False)
class ComparedOptions:
    """Options weighed against each other: days and dollars of a whole training on each.

    As the last line of a notebook's cell it is shown as a table.
    """

    comparison: Comparison

    @property
    def options(self) -> tuple[Option, ...]:
        """The options in the order in which they were given."""
        return self.comparison.options

    @property
    def winner(self) -> Answer | None:
        """The cheapest of those at least as likely as not in time; None without prices, or where none is."""
        return None if self.comparison.winner is None else self.options[self.comparison.winner].answer

    def to_dict(self) -> dict[str, Any]:
        """What `compare --json` prints, in plain values."""
        return comparison_document(self.comparison)

    def to_frame(self) -> Any:
        """A pandas.DataFrame with a row for each option. Raises InputError where pandas is missing."""
        return data_frame(comparison_records(self.comparison))

    def to_html(self) -> str:
        """The page that `compare --html` writes."""
        return choices_page(comparison_page(self.comparison))

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        reasons = [reason for option in self.options for reason in option.answer.result.reasons]
        return table_html(repr(self).strip("<>"), comparison_records(self.comparison), reasons)

    def __repr__(self) -> str:
        won = "no winner" if self.winner is None else f"the winner {self.winner.name}"
        return f"<{plural(len(self.options), 'option')} compared, {won}>"


def compare(
    *sources: Source,
    on: Chips | Sequence[Chips] | None = None,
    batch: int | None = None,
    seq: int | None = None,
    tokens: float | None = None,
    cluster: Mapping[str, object] | None = None,
    training: Mapping[str, object] | None = None,
    launcher: str | None = None,
    stack: str | None = None,
    nodes: bool = True,
    time_limit_s: float | None = None,
    calibration: str | PathLike[str] | None = None,
    display: SearchDisplay | None = None,
) -> ComparedOptions:
    """Expected days and dollars of a training on several clusters, or of several specs: `apss-cp compare`.

        cpsolver.compare("llama3.1-70b", on=["h100:512@2.5", "a800:768@1.2"], batch=1024, seq=8192, tokens=1e12)

    Args:
        sources: specs, as files, their fields or problems; or one of them, or with `batch` and `seq` one model, for
            the clusters of `on`.
        on: clusters, with or without dollars per device-hour: "h100:512@2.5", {"h100": 512}.
        batch, seq, cluster, training, launcher, stack: as in `plan`, of a model.
        tokens: of the whole training, in place of the specs' own.
        nodes: also with a node more and a node less of each chip type.
        time_limit_s: for each search.
        calibration: what `apss-cp calibrate` wrote.
        display: shows how the searches go; None: nothing does.

    Raises InputError.
    """
    check_kinds(source=sources, on=on, cluster=cluster, training=training, calibration=calibration)
    model, texts = (
        batch is not None or seq is not None,
        tuple(map(text_of_chips, (on,) if isinstance(on, str | Mapping) else on or ())),
    )
    specs: list[str | Mapping[str, Any] | Problem] = []
    for source in sources:
        if model:
            sizes = {"global_batch_size": batch, "sequence_length": seq}
            own = {"launcher": launcher, "stack": stack}
            fields = {"model": source, "training": {**sizes, **(training or {})}, "cluster": dict(cluster or {})}
            specs.append({**fields, **{name: value for name, value in own.items() if value is not None}})
        else:
            specs.append(fspath(source) if isinstance(source, PathLike) else source)
    request = ComparisonRequest(tuple(specs), texts, tokens, nodes, time_limit_s, _path(calibration))
    try:
        return ComparedOptions(compared(request, display_of(display)))
    except InputError as error:
        raise InputError(_of_a_call(trouble, model) for trouble in error.troubles) from None


_ARGUMENT_OF_OPTION = {"--on": "on", "SPEC": "sources", "--tokens": "tokens", "--time-limit": "time_limit_s"}


def _of_a_call(trouble: Trouble, model: bool) -> Trouble:
    """A trouble in the names of the arguments; of a spec its fields keep theirs."""
    option, blank, rest = trouble.where.partition(" ")
    trouble = replace(trouble, where=_ARGUMENT_OF_OPTION.get(option, option) + blank + rest)
    return in_flags(trouble, ARGUMENT_OF) if model else trouble
