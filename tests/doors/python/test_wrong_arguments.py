"""Every call refuses what it cannot take, by name: no error of Python's own comes from inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cpsolver as apss

ASKED: dict[str, Any] = {"on": {"a800": 8}, "batch": 16, "seq": 2048}
SIZES: dict[str, Any] = {"chips": "a800", "num_gpus": 8, "global_batch_size": 16, "sequence_length": 2048}
ITSELF: list[Any] = []
ITSELF.append(ITSELF)
HUGE = 10**5000
LIBRARY: Any = apss
"""Without its types, which all of these calls offend."""


@pytest.fixture(scope="module")
def problem() -> apss.Problem:
    return apss.make_problem(model="llama2-7b", **SIZES)


CALLS: dict[str, tuple[Callable[[Any], object], str]] = {
    "load_problem": (lambda _: LIBRARY.load_problem(None), "path: must be the name of a file"),
    "of bytes": (lambda _: LIBRARY.load_problem(b"x"), "path = b'x': must be the name of a file"),
    "make_problem": (lambda _: LIBRARY.make_problem(5), "spec = 5: must be a mapping of fields"),
    "an array": (lambda _: LIBRARY.make_problem(np.array([1, 2])), "must be a mapping of fields"),
    "load_strategy": (lambda p: LIBRARY.load_strategy(b"x", p), "path = b'x': must be the name"),
    "make_strategy": (lambda _: LIBRARY.make_strategy(None, tp=8), "problem: must be a problem"),
    "solve": (lambda _: LIBRARY.solve(5), "problem = 5: must be a problem"),
    "verify": (lambda p: LIBRARY.verify(p, 5), "result = 5: must be what `solve` gave"),
    "replicas": (lambda _: LIBRARY.plan_replicas(5), "problem = 5: must be a problem"),
    "check": (lambda p: LIBRARY.check(p, 5), "strategy = 5: must be a plan"),
    "evaluate": (lambda p: LIBRARY.evaluate(p, 5), "strategy = 5: must be a plan"),
    "of a model": (lambda _: LIBRARY.evaluate("llama2-7b", 5, **ASKED), "strategy = 5: must be a plan"),
    "explain": (lambda p: LIBRARY.explain(p, 5), "strategy = 5: must be a plan"),
    "export": (lambda p: LIBRARY.export(p, 5, "megatron-lm"), "strategy = 5: must be a plan"),
    "target": (lambda p: LIBRARY.export(p, LIBRARY.make_strategy(p, tp=8), []), "target = []: must be the name"),
    "job": (
        lambda p: LIBRARY.export(p, LIBRARY.make_strategy(p, tp=8), "megatron-lm", job=[]),
        "job = []: must be the name of a kind of job",
    ),
    "folder": (
        lambda _: LIBRARY.evaluate("llama2-7b", **ASKED, tp=8).export("megatron-lm", 5),
        "folder = 5: must be the name of a folder",
    ),
    "number": (lambda p: LIBRARY.load_strategy("x", p, "1"), "number = '1': must be a whole number"),
    "seconds": (lambda p: LIBRARY.verify(p, None, time_limit_s="1"), "time_limit_s = '1': must be a number of seconds"),
    "display": (lambda p: LIBRARY.solve(p, display=5), "display = 5: must be a display"),
    "of a plan": (lambda _: LIBRARY.plan("llama2-7b", **ASKED, display="x"), "display = 'x': must be a display"),
    "of reasons": (lambda _: LIBRARY.explain("llama2-7b", **ASKED, display=5), "display = 5: must be a display"),
    "compare": (lambda _: LIBRARY.compare("llama2-7b", **ASKED, calibration=[]), "calibration = []: must be the name"),
    "itself": (lambda _: LIBRARY.plan("llama2-7b", **{**ASKED, "batch": ITSELF}), "is nested too deeply, or in itself"),
    "sweep": (lambda _: LIBRARY.sweep("llama2-7b", **{**ASKED, "batch": ITSELF}), "is nested too deeply, or in itself"),
    "nodes": (lambda _: LIBRARY.plan("llama2-7b", **ASKED, gpus_per_node=np.array([8, 8])), "gpus_per_node = [8, 8]: "),
    "huge": (lambda _: LIBRARY.evaluate("llama2-7b", **ASKED, tp=HUGE), "does not divide the cluster's 8 devices"),
    "huge batch": (lambda _: LIBRARY.plan("llama2-7b", **{**ASKED, "batch": HUGE}), "batch = 0x"),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_is_no_argument_is_refused_by_name(call: str, problem: apss.Problem) -> None:
    asked, said = CALLS[call]
    with pytest.raises(apss.InputError) as caught:
        asked(problem)
    assert said in str(caught.value)
