"""A stack belongs to a launcher or to a vendor's chips: which one a spec means, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from cpsolver.doors.export.judge import launch_of, with_warnings
from cpsolver.doors.report.console import evaluation_report
from cpsolver.doors.report.document import problem_document
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve, resolve_like
from cpsolver.profiles.default_stack import foreign_kernels, usual_stack
from cpsolver.profiles.framework import launcher_names, load_launcher
from cpsolver.profiles.stack import load_stack, stack_names
from cpsolver.spec.spec import parse_spec
from hw_specs import list_chips
from tests.support.problems import chip_spec, spec_of, strategy_of

VENDORS = {chip.vendor for chip in list_chips()}


def of(chips: Any = "a800", **given: Any) -> Problem:
    cluster = {"num_gpus": 8, "gpus_per_node": 8, "chips": chips}
    return resolve(parse_spec({**spec_of(**given), "cluster": cluster}))


@pytest.mark.parametrize(
    ("chips", "launcher", "stack", "expected"),
    [
        ("a800", None, None, "megatron-core"),
        ("a800", None, "nemo", "nemo"),
        ("a800", "megatron-bridge", None, "megatron-bridge"),
        ("a800", "megatron-bridge", "megatron-core", "megatron-core"),
        ("a800", "torchtitan", None, "torchtitan-2026"),
        ("a800", "deepspeed", None, "deepspeed"),
        ("a800", "accelerate", None, "accelerate"),
        ("ascend_910b", None, None, "mindspeed"),
        ("ascend_910b", "mindspeed-llm", None, "mindspeed"),
        ("ascend_910b", "megatron-lm", None, "megatron-core"),
        ("ascend_910b", "deepspeed", None, "deepspeed"),
        ("mi300x", None, None, "megatron-core"),
        ({"a800": 4, "ascend_910b": 4}, None, None, "megatron-core"),
        ({"x": {"spec": chip_spec()}}, None, None, "megatron-core"),
    ],
)
def test_which_stack_a_spec_means(chips: Any, launcher: str | None, stack: str | None, expected: str) -> None:
    problem = of(chips, launcher=launcher, stack=stack)
    assert problem.stack.name == problem.spec.stack == problem_document(problem)["stack"] == expected
    assert (problem.stack_why == "the spec names it") == (stack is not None)


@pytest.mark.parametrize(
    ("chips", "stack", "warned"),
    [("a800", None, ""), ("mi300x", None, "amd"), ("ascend_910b", "nemo", "huawei"), ("a800", "mindspeed", "nvidia")],
)
def test_kernels_of_another_vendor_are_not_assumed_in_silence(chips: str, stack: str | None, warned: str) -> None:
    problem = of(chips, stack=stack)
    plan = strategy_of(f"{chips}:4", dp=8)
    console = Console(width=300)
    with console.capture() as capture:
        console.print(evaluation_report(problem, plan, evaluate(problem, plan), []))
    text = f"on {warned} chips its overlaps"
    assert (text in capture.get()) == bool(warned)
    assert bool(problem_document(problem)["stack_foreign"]) == bool(warned)


def test_the_report_says_why_it_is_this_stack() -> None:
    plan, told = strategy_of("ascend_910b:4", dp=8), {}
    for stack in (None, "mindspeed"):
        problem = of("ascend_910b", stack=stack)
        console = Console(width=300)
        with console.capture() as capture:
            console.print(evaluation_report(problem, plan, evaluate(problem, plan), []))
        told[stack] = "Stack mindspeed: the one measured on huawei chips, as the spec names no stack." in capture.get()
    assert told == {None: True, "mindspeed": False}


def test_a_problem_keeps_its_stack_under_another_launcher() -> None:
    """What is changed of a spec afterwards (to explain, to export) moves no constant."""
    problem = of("a800")
    changed = resolve_like(problem, problem.spec.model_copy(update={"launcher": "megatron-bridge"}))
    assert changed.stack == problem.stack
    assert changed.stack_why == problem.stack_why


def test_an_export_says_where_its_target_has_another_stack() -> None:
    plan = strategy_of("a800:4", dp=8, flags="sfz", tp=1)
    for stack, told in ((None, 1), ("megatron-core", 0)):
        problem = of("a800", stack=stack)
        launch = with_warnings(problem, plan, launch_of(problem, plan, "megatron-bridge"))
        assert sum("the launcher's own is megatron-bridge" in note for note in launch.notes) == told


def test_stacks_that_are_named_exist_and_have_kernels_of_a_vendor() -> None:
    assert usual_stack() in stack_names()
    own = {name: load_launcher(name).stack for name in launcher_names()}
    assert {stack for stack in own.values() if stack is not None} <= set(stack_names())
    assert all(load_stack(name).kernels in VENDORS for name in stack_names())
    assert (
        foreign_kernels(load_stack("ascendspeed"), [chip for chip in list_chips() if chip.vendor == "huawei"]) is None
    )
