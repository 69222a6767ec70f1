"""What the options of `apss-cp profile` mean, checked: all that is wrong is told at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, get_args

from cpsolver.doors.profile.chip_file import named_entry
from cpsolver.doors.profile.efficiencies import GivenPeaks
from cpsolver.doors.profile.shapes import MeasurementScope, Precision, tensor_parallel_sizes
from cpsolver.inputs.errors import InputError, Trouble, nearest_names
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.spec.spec import Spec
from hw_specs import Chip

_T = TypeVar("_T")
_ANY_CHIP = "a100"  # the spec needs one; shapes do not depend on it
_MOST = 1 << 20


@dataclass(frozen=True)
class ProfileOptions:
    """The options as they were given; None: not given."""

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
    """The options resolved; `wanted.devices` is still to be held against the machine."""

    problem: Problem
    wanted: MeasurementScope
    given: GivenPeaks
    entry: Chip | None


def resolve_request(asked: ProfileOptions) -> ProfileRequest:
    """Look up the names and read the lists; raises InputError with all that is wrong. Needs no PyTorch."""
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
            allowed = f"divisors of its {model.heads} heads and of its feed-forward width {model.ffn:,}"
            troubles.append(Trouble("--tp", f"no size divides {model.name}", asked.tp, allowed))
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
        raise InputError(
            Trouble("--model", "must not be empty", allowed="a name that `apss-cp models` lists, or a file")
        )
    spec = Spec.model_validate(
        {
            "model": asked.model,
            "cluster": {"num_gpus": 1, "gpus_per_node": 1, "chips": [_ANY_CHIP]},
            "training": {"global_batch_size": 1, "sequence_length": asked.seq},
        }
    )
    try:
        return resolve(spec)
    except InputError as error:
        named = (replace(each, where="--model") if each.where == "model" else each for each in error.troubles)
        raise InputError(named) from None


def _sizes(option: str, text: str, troubles: list[Trouble]) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    good = [part for part in parts if re.fullmatch(r"\d{1,7}", part) and 1 <= int(part) <= _MOST]
    if len(good) < len(parts):
        troubles.append(Trouble(option, "must be whole numbers with commas between them", text, "1,2,4,8 for example"))
        return ()
    return tuple(dict.fromkeys(map(int, good)))


def _precisions(text: str | None, troubles: list[Trouble]) -> tuple[Precision, ...]:
    """None: left to the device."""
    known: Sequence[Precision] = get_args(Precision)
    named = [] if text is None else [part.strip() for part in text.split(",")]
    for part in named:
        if part not in known:
            troubles.append(
                Trouble("--precision", "unknown precision", part, ", ".join(known), nearest_names(part, known))
            )
    return tuple(each for each in known if each in named)


def _peaks(text: str | None, troubles: list[Trouble]) -> dict[str, float]:
    known: Sequence[Precision] = get_args(Precision)
    found: dict[str, float] = {}
    for part in [] if text is None else text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        good = re.fullmatch(r"\d+(\.\d+)?([eE][+-]?\d+)?", value) is not None and float(value) > 0
        if name not in known or not good:
            allowed = f"PRECISION=TFLOPS with commas between them, PRECISION of {', '.join(known)}"
            troubles.append(Trouble("--peak-tflops", "cannot be read", part, allowed))
        else:
            found[name] = float(value)
    return found
