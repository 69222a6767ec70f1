"""Checks the options of `apss-cp profile` and resolves them, with all problems reported at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, get_args

from cpsolver.doors.profile.chip_file import named_entry
from cpsolver.doors.profile.efficiencies import GivenPeaks
from cpsolver.doors.profile.shapes import MeasurementScope, Precision, tensor_parallel_sizes
from cpsolver.inputs.errors import InputError, Trouble, nearest_names
from cpsolver.inputs.language import later, say
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.spec.spec import Spec
from hw_specs import Chip

_T = TypeVar("_T")
_ANY_CHIP = "a100"  # the spec needs one; shapes do not depend on it
_LARGEST_SIZE = 1 << 20
"""More than any degree or micro-batch: a typing error, not a size to measure."""


@dataclass(frozen=True)
class ProfileOptions:
    """The options as given; None: not given."""

    model: str
    seq: int
    tp: str
    micro_batch: str
    precision: str | None
    peak_tflops: str | None
    replaces: str | None
    devices: int | None
    quick: bool
    memory_gb_s: float | None = None
    fabric_gb_s: float | None = None
    network_gbit_s: float | None = None


@dataclass(frozen=True)
class ProfileRequest:
    """The options resolved. `wanted.devices` still has to be checked against the machine."""

    problem: Problem
    wanted: MeasurementScope
    given: GivenPeaks
    entry: Chip | None


def resolve_request(asked: ProfileOptions) -> ProfileRequest:
    """Look up the names and read the lists. Raises InputError with all problems. Needs no PyTorch."""
    troubles: list[Trouble] = []
    problem = _attempt(troubles, lambda: _problem(asked))
    entry = None if asked.replaces is None else _attempt(troubles, lambda: named_entry(str(asked.replaces)))
    tp = _sizes("--tp", asked.tp, troubles)
    micro_batch = _sizes("--micro-batch", asked.micro_batch, troubles)
    precisions = _precisions(asked.precision, troubles)
    tflops = _peaks(asked.peak_tflops, troubles)
    if problem is not None:
        model = problem.model
        fitting = tensor_parallel_sizes(model.heads, model.ffn, tp)
        if tp and not fitting:
            allowed = say(
                "divisors of its {heads} heads and of its feed-forward width {ffn:,}", heads=model.heads, ffn=model.ffn
            )
            troubles.append(Trouble("--tp", say("no size divides {model}", model=model.name), asked.tp, allowed))
        tp = fitting
    if troubles or problem is None:
        raise InputError(troubles)
    wanted = MeasurementScope(tp, micro_batch, precisions, asked.devices or 0, asked.quick)
    if asked.quick:
        wanted = replace(wanted, tp=tp[:1], micro_batch=micro_batch[:1])
    given = GivenPeaks(tflops, asked.memory_gb_s, asked.fabric_gb_s, asked.network_gbit_s)
    return ProfileRequest(problem, wanted, given, entry)


def _attempt(troubles: list[Trouble], make: Callable[[], _T]) -> _T | None:
    try:
        return make()
    except InputError as error:
        troubles.extend(error.troubles)
        return None


def _problem(asked: ProfileOptions) -> Problem:
    if not asked.model:
        allowed = say("a name that `apss-cp models` lists, or a file")
        raise InputError(Trouble("--model", later("must not be empty"), allowed=allowed))
    cluster = {"num_gpus": 1, "gpus_per_node": 1, "chips": [_ANY_CHIP]}
    training = {"global_batch_size": 1, "sequence_length": asked.seq}
    spec = Spec.model_validate({"model": asked.model, "cluster": cluster, "training": training})
    try:
        return resolve(spec)
    except InputError as error:
        troubles = (
            replace(trouble, where="--model") if trouble.where == "model" else trouble for trouble in error.troubles
        )
        raise InputError(troubles) from None


def _sizes(option: str, text: str, troubles: list[Trouble]) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    good = [part for part in parts if re.fullmatch(r"\d{1,7}", part) and 1 <= int(part) <= _LARGEST_SIZE]
    if len(good) < len(parts):
        troubles.append(
            Trouble(
                option,
                say("must be whole numbers with commas between them"),
                text,
                say("{sizes} for example", sizes="1,2,4,8"),
            )
        )
        return ()
    return tuple(dict.fromkeys(map(int, good)))


def _precisions(text: str | None, troubles: list[Trouble]) -> tuple[Precision, ...]:
    """The precisions in a list, in the order of the type; none where the device decides."""
    precisions: Sequence[Precision] = get_args(Precision)
    wanted = [] if text is None else [part.strip() for part in text.split(",")]
    for part in wanted:
        if part not in precisions:
            allowed, nearest = ", ".join(precisions), nearest_names(part, precisions)
            troubles.append(Trouble("--precision", say("unknown precision"), part, allowed, nearest))
    return tuple(precision for precision in precisions if precision in wanted)


def _peaks(text: str | None, troubles: list[Trouble]) -> dict[str, float]:
    precisions: Sequence[Precision] = get_args(Precision)
    tflops: dict[str, float] = {}
    for part in [] if text is None else text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        good = re.fullmatch(r"\d+(\.\d+)?([eE][+-]?\d+)?", value) is not None and float(value) > 0
        if name not in precisions or not good:
            allowed = say(
                "PRECISION=TFLOPS with commas between them, PRECISION of {names}", names=", ".join(precisions)
            )
            troubles.append(Trouble("--peak-tflops", say("cannot be read"), part, allowed))
        else:
            tflops[name] = float(value)
    return tflops
