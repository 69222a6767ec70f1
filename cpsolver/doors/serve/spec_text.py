"""A spec as the page sends it: its problem, with limits that its sender cannot lift and files of one folder at most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cpsolver.inputs.document import Document, parse_yaml
from cpsolver.inputs.errors import InputError, Trouble, dotted
from cpsolver.inputs.errors import Path as KeyPath
from cpsolver.inputs.language import later
from cpsolver.problem.load import make_problem
from cpsolver.problem.problem import Problem
from cpsolver.spec.spec import FILE_ENDINGS, names_a_file, parse_spec


@dataclass(frozen=True)
class PageLimits:
    """What a spec from the page may take.

    `time_limit_s`: seconds of a search at most; `folder`: where files that it names may lie (None: it may name none);
    `calibration`: an overlay's file, for every plan.
    """

    time_limit_s: float
    folder: Path | None = None
    calibration: str | None = None


def problem_of(text: str, limits: PageLimits) -> Problem:
    """The problem in a spec's text. Raises InputError with every problem, each with its line and column."""
    document = parse_yaml(text, collect=True)
    if troubles := list(_foreign_files(document.data, limits.folder)):
        raise InputError(document.in_order([*troubles, *_other_troubles(document)]))
    sections = {"search": {"time_limit_s": _time_limit(document.data, limits.time_limit_s)}}
    return make_problem(document.data, {}, sections, limits.calibration, document, limits.folder)


def trouble_for_page(trouble: Trouble) -> dict[str, Any]:
    """A trouble as the page shows it: words, and the place in the editor unless it is in another file."""
    if trouble.file is not None:
        return {"text": str(trouble), "line": None, "column": None}
    return {"text": str(replace(trouble, line=None, column=None)), "line": trouble.line, "column": trouble.column}


def _time_limit(data: Mapping[str, Any], most_s: float) -> float | None:
    """The limit to set: None where the spec has a shorter one, or something that has to be told to be none."""
    search = data.get("search")
    given = search.get("time_limit_s") if isinstance(search, Mapping) else None
    number = isinstance(given, (int, float)) and not isinstance(given, bool)
    return most_s if given is None or (number and given > most_s) else None


def _files(data: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """Whatever a spec names as a file, with its place."""
    model, cluster = data.get("model"), data.get("cluster")
    if isinstance(model, str) and names_a_file(model):
        yield ("model",), model
    chips = cluster.get("chips") if isinstance(cluster, Mapping) else None
    for name, chip in chips.items() if isinstance(chips, Mapping) else ():
        if isinstance(chip, Mapping) and isinstance(chip.get("file"), str):
            yield ("cluster", "chips", name, "file"), chip["file"]


def _foreign_files(data: Mapping[str, Any], folder: Path | None) -> Iterator[Trouble]:
    """The files that are not for a spec of the page to read; links count as what they lead to."""
    for path, name in _files(data):
        if folder is None:
            message = later("names a file, and no spec's folder was given to read files from")
            yield Trouble(dotted(path), message, name, later("start with a spec: apss-cp serve SPEC"), path=path)
        elif not name.lower().endswith(FILE_ENDINGS):
            yield Trouble(
                dotted(path), later("is no file for a page to read"), name, ", ".join(FILE_ENDINGS), path=path
            )
        elif not _inside(folder, name):
            message = later("is outside the folder of the spec that the server was started with")
            yield Trouble(dotted(path), message, name, later("a file in {folder}", folder=folder.resolve()), path=path)
        elif _may_never_end(folder / name):
            yield Trouble(dotted(path), later("is no file for a page to read"), name, path=path)


def _inside(folder: Path, name: str) -> bool:
    try:
        return (folder / name).resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):  # a name that no file can have, links in a circle
        return False


def _may_never_end(file: Path) -> bool:
    """Whether reading it may wait for ever, whatever the time limit: a named pipe, a device."""
    try:
        return file.exists() and not file.is_file() and not file.is_dir()
    except OSError:  # a name that no file can have
        return False


def _other_troubles(document: Document) -> list[Trouble]:
    """What is wrong with the rest of the spec, as far as it can be said without reading a file."""
    try:
        parse_spec(document.data, document)
    except InputError as error:
        return list(error.troubles)
    return []
