"""The search against brute force for models with an encoder of images on the first stage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cpsolver.problem.problem import Problem
from cpsolver.profiles.framework import stack_framework
from cpsolver.rules import violations
from cpsolver.search.search import search
from cpsolver.spec.training import Images
from models_zoo.vision import Vision
from tests.support.compared import compared
from tests.support.generated import random_problem
from tests.support.ladder import held
from tests.support.problems import chip_spec, model_spec, problem_of, strategy_of
from tests.support.selection import full, night

LARGEST = 400
"""Strategies that brute force may have to judge for one problem."""


def image_problem(seed: int) -> Problem:
    """A random problem with images in its sequences: few or many, of an encoder that is trained or not."""
    problem, rng = random_problem(seed), np.random.default_rng((seed, 9))
    hidden = int(rng.choice([128, 512]))
    window: dict[str, Any] = {"window": 64, "full_every": 2} if rng.random() < 0.3 else {}
    vision = Vision(
        layers=int(rng.integers(2, 9)),
        hidden=hidden,
        ffn=4 * hidden,
        heads=int(rng.choice([2, 8])),
        merge=2,
        positions=int(rng.choice([0, 256])),
        deepstack=int(rng.integers(0, 3)),
        **window,
    )
    images = Images(per_sequence=int(rng.choice([1, 4])), patches=256, trained=bool(rng.random() < 0.7))
    model = problem.model.model_copy(update={"vision": vision})
    training = problem.spec.training.model_copy(update={"images": images})
    spec = problem.spec.model_copy(update={"training": training, "launcher": None})
    if rng.random() < 0.7:
        return replace(problem, spec=spec, model=model, launcher=None)
    return whole(replace(problem, spec=spec, model=model, launcher=None))


def whole(problem: Problem) -> Problem:
    """The problem with an encoder that each tensor-parallel rank has whole, with a launcher that runs anything else."""
    launcher = stack_framework("any", "any", {}).model_copy(update={"whole_encoder": True})
    found = replace(problem, launcher=launcher)
    return found if found.whole_encoder else problem  # the stack may run other things


@pytest.mark.parametrize(
    ("block", "count", "bend"), [(0, 2, True), full(1, 5, False), night(1, 14, False), night(2, 14, True)]
)
def test_the_search_agrees_with_brute_force(block: int, count: int, bend: bool) -> None:
    """Up to 14 problems a block, with the cost model's tables or with bent ones."""
    start = 95_000 + 100 * block + 50 * bend
    problems = compared(image_problem, range(start, start + count), LARGEST, bend)
    assert sum(bool(best) for _, best in problems) >= count // 5


@pytest.mark.full
@pytest.mark.parametrize(("start", "count"), [(96_003, 4), night(96_008, 30)])
@pytest.mark.parametrize("bend", [True, full(False)], ids=["bent", "real"])
def test_no_bound_exceeds_brute_force(start: int, count: int, bend: bool) -> None:
    tally = held(image_problem, range(start, start + count), 250, bend)
    assert tally["tight"] > 0.5 * tally["fit"] > 0


def heavy(**changes: object) -> Problem:
    """An encoder that takes about as long as two of eight layers."""
    vision = {"layers": 8, "hidden": 1024, "ffn": 4096, "heads": 8, "merge": 2, **changes}
    return problem_of(
        {"x": chip_spec()},
        model_spec(layers=8, vision=vision),
        4,
        4,
        64,
        2048,
        training={"images": {"per_sequence": 2, "patches": 1024}},
        pin={"pp": 4, "tp": 1, "cp": 1, "mbs": 1, "vpp": 1},
        top=1,
    )


def test_the_first_stage_gets_fewer_layers_for_its_encoder() -> None:
    (plan,) = search(heavy()).plans
    layers = plan.strategy.layers
    assert layers[0] < max(layers[1:])
    text = heavy()
    training = text.spec.training.model_copy(update={"images": None})
    (plain,) = search(text.with_(spec=text.spec.model_copy(update={"training": training}))).plans
    assert plain.strategy.layers[0] >= layers[0]


def test_rules_of_an_encoder() -> None:
    problem = heavy(heads=2)
    told = [each.message for each in violations(problem, strategy_of("x:8", tp=4, dp=1, flags="sf"))]
    assert "2 heads of the encoder of images are not a multiple of tp 4" in told
    stages = strategy_of("x:4,4", dp=2, vpp=2, schedule="breadth_first")
    told = [each.message for each in violations(problem, stages)]
    assert any("an encoder of images runs 1f1b with equal microbatches alone" in text for text in told)
