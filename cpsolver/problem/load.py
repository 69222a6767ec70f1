"""From what a user gives to a Problem: every trouble at once, each with its place in the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from cpsolver.inputs.document import Document, load_yaml
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.problem.network import ClusterNetwork
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import Names, resolve, unknown_names
from cpsolver.profiles.constants import Overlay, load_overlay
from cpsolver.spec.cluster import ChipRequest, Cluster
from cpsolver.spec.spec import Spec, parse_spec, with_files_in
from cpsolver.spec.training import Training
from hw_specs import UnknownNetworkError


def load_problem(path: str | Path, calibration: str | None = None, **search: Any) -> Problem:
    """The problem in a spec file ("-": standard input); `search` replaces fields of its search section.

    `calibration`: an overlay's file, whose constants lie on top of the published ones.

    Raises InputError with every problem, wrong values and unknown names alike, in the order of the file.
    """
    base = None if str(path) == "-" else Path(path).parent
    document = load_yaml(path, collect=True)
    return make_problem(document.data, {}, {"search": search}, calibration, document, base)


def make_problem(
    spec: Mapping[str, Any],
    names: Mapping[str, Any],
    sections: Mapping[str, Mapping[str, Any]],
    calibration: str | None = None,
    document: Document | None = None,
    base: Path | None = None,
) -> Problem:
    """The problem in plain values; `names` and the fields of `sections` replace those of the spec where not None.

    With the `document` that the spec stands in troubles have their lines; files that it names are found from `base`.
    Raises InputError with every problem.
    """
    return _with_overlay(plain(_replaced(spec, names, sections)), calibration, document, base)


def plain(value: Any) -> Any:
    """The value with Python's own numbers and lists in place of NumPy's, in mappings and lists too.

    Numbers out of a data frame are NumPy's: 64 of one is a whole number like any other. Raises InputError for what
    holds itself.
    """
    try:
        return _plain(value)
    except RecursionError:
        raise InputError(Trouble("", "is nested too deeply, or in itself")) from None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_plain(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(item) for item in value)
    return value.tolist() if type(value).__module__ == "numpy" and hasattr(value, "tolist") else value


def _replaced(
    spec: Mapping[str, Any], names: Mapping[str, Any], sections: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The spec's values with those given; a section that is no mapping is left as it is, to be told so."""
    data = {**spec, **_given(names)}
    for name, fields in sections.items():
        section = data.get(name)
        if _given(fields) and (section is None or isinstance(section, Mapping)):
            data[name] = {**(section or {}), **_given(fields)}
    return data


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _with_overlay(
    data: Mapping[str, Any], calibration: str | None, document: Document | None = None, base: Path | None = None
) -> Problem:
    """The problem with an overlay's constants; what is wrong with the overlay's file comes first."""
    overlay: Overlay | None = None
    wrong: list[Trouble] = []
    try:
        overlay = None if calibration is None else load_overlay(calibration)
    except InputError as error:
        wrong += error.troubles
    try:
        problem = problem_from(data, document, base, overlay)
    except InputError as error:
        raise InputError([*wrong, *error.troubles]) from None
    if wrong:
        raise InputError(wrong)
    return problem


def problem_from(
    data: Mapping[str, Any], document: Document | None = None, base: Path | None = None, overlay: Overlay | None = None
) -> Problem:
    """The problem in plain values; see `load_problem`."""
    try:
        return resolve(parse_spec(data, document, base), overlay)
    except InputError as error:
        found = list(error.troubles)
        known = {(trouble.where, trouble.message) for trouble in found}
        found += [name for name in unknown_names(_sound_names(data, base)) if (name.where, name.message) not in known]
        found = [_with_path(trouble) for trouble in found]
    if document is not None:
        here = (None, document.file)
        inside = [trouble for trouble in found if trouble.file in here]
        found = document.in_order(inside) + [trouble for trouble in found if trouble.file not in here]
    raise InputError(found)


def _with_path(trouble: Trouble) -> Trouble:
    return trouble if trouble.path or trouble.file else replace(trouble, path=tuple(filter(None, [trouble.where])))


def _sound_names(data: Mapping[str, Any], base: Path | None) -> Names:
    """The names in a spec whose other values may be wrong, each judged by itself."""
    cluster = data.get("cluster")
    chips = cluster.get("chips") if isinstance(cluster, Mapping) else None
    if isinstance(chips, Mapping):
        own = {name: chip if isinstance(chip, Mapping) else {} for name, chip in chips.items()}
        chips = {name: {key: item for key, item in chip.items() if key != "max"} for name, chip in own.items()}
    model, requests = _field(Spec, "model", data.get("model")), _field(Cluster, "chips", chips) or {}
    if base is not None:
        model, requests = with_files_in(base, model, requests)
    training = Training(global_batch_size=1, sequence_length=1)
    return Names(model, requests, _field(Spec, "stack", data.get("stack")), training, _sound_network(cluster))


def _sound_network(cluster: Any) -> ClusterNetwork | None:
    """The network of a cluster's values; None where it is none, or not sound."""
    given = cluster if isinstance(cluster, Mapping) else {}
    network, node = (_field(Cluster, name, given.get(name)) for name in ("network", "gpus_per_node"))
    stand_in = {"num_gpus": 1, "gpus_per_node": node or 8, "network": network, "chips": {"-": ChipRequest()}}
    try:
        return ClusterNetwork.of(Cluster.model_construct(**stand_in))
    except UnknownNetworkError:
        return None  # told already


def _field(section: type[BaseModel], name: str, value: Any) -> Any:
    """The value of a section's field, short forms written out; None where it is not sound."""
    field = section.model_fields[name]
    annotated: Any = Annotated[field.annotation, field]  # with its validators and limits
    try:
        return TypeAdapter(annotated).validate_python(value)
    except ValidationError:
        return None  # told with all that is wrong with the spec
