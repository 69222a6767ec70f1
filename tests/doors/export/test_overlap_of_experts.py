"""What a prediction counts on is in the launch: no exported plan's note says that an assumed overlap is absent."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from cpsolver.doors.export.judge import launch_of
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.profiles.framework import load_launcher
from cpsolver.rules import violations
from cpsolver.search.search import search
from cpsolver.spec.spec import parse_spec
from tests.support.selection import only

FLAG, FIELD = "overlap-moe-expert-parallel-comm", "overlap_moe_expert_parallel_comm"
FEW = {"mbs": 1, "cp": 1, "etp": 1, "flash_attention": True, "sharded": "optimizer", "sharding_group": 0}
MODELS: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    "deepseek-v3-671b": ("gb200", 256, 2048, {"tp": 1, "ep": [32, 64]}),
    "deepseek-v2-lite": ("h100", 32, 256, {"tp": [1, 2], "ep": [8, 16]}),
    "mixtral-8x7b": ("h100", 64, 256, {"tp": [1, 2, 4], "ep": [4, 8]}),
    "qwen3-30b-a3b": ("h800", 32, 256, {"tp": [1, 2], "ep": [8, 16]}),
    "qwen3-235b-a22b": ("h100", 256, 1024, {"tp": [1, 2], "ep": [16, 32]}),
}
STACKS = ("megatron-bridge", "megatron-core")
LAUNCHERS = ("megatron-lm", "megatron-bridge", "loongforge", "flagscale", "megatron-core-0.13")
CASES = tuple(product(MODELS, STACKS, LAUNCHERS))
"""50 specs."""


def _spec(model: str, stack: str, launcher: str | None) -> Problem:
    chip, gpus, batch, pin = MODELS[model]
    fields = {
        "model": model,
        "cluster": {"num_gpus": gpus, "chips": chip},
        "training": {"global_batch_size": batch, "sequence_length": 4096},
        "search": {"top": 3, "pin": {**FEW, **pin}},
        "stack": stack,
    }
    return resolve(parse_spec(fields if launcher is None else {**fields, "launcher": launcher}))


def _quick(model: str, stack: str, launcher: str) -> bool:
    return model == "deepseek-v2-lite" and stack == "megatron-bridge" and launcher in ("megatron-lm", "flagscale")


@pytest.mark.parametrize(("model", "stack", "launcher"), only(_quick, CASES))
def test_no_note_says_that_an_assumed_overlap_is_absent(model: str, stack: str, launcher: str) -> None:
    problem = _spec(model, stack, launcher)
    found = search(problem).plans
    assert found
    for plan in found:
        launch = launch_of(problem, plan.strategy, launcher)
        assert [note for note in launch.notes if "here nothing does" in note] == []
        text = " ".join((*launch.arguments, *launch.files.values()))
        on = f"--{FLAG}" in text or f"{FIELD}=true" in text or f"{FIELD}: true" in text or f"{FIELD}': True" in text
        assert on == plan.strategy.expert_overlap
        if plan.strategy.expert_overlap:
            assert load_launcher(launcher).expert_overlap
            assert problem.stack.routing_overlap > 0


@pytest.mark.parametrize("model", only(lambda model: model == "deepseek-v2-lite", [(model,) for model in MODELS]))
def test_a_plan_pays_for_what_it_cannot_hide(model: str) -> None:
    """The best that overlaps and the best that does not, both found by pins, are what the free search chooses among."""
    free = _spec(model, "megatron-bridge", None)
    best = search(free).plans[0]
    assert not violations(free, best.strategy)
    times = []
    for flag in (False, True):
        pin = free.spec.search.pin.model_copy(update={"expert_overlap": (flag,)})
        asked = free.spec.search.model_copy(update={"pin": pin})
        pinned = replace(free, spec=free.spec.model_copy(update={"search": asked}))
        times += [plan.evaluation.step_time_s for plan in search(pinned).plans[:1]]
    assert min(times) == pytest.approx(best.evaluation.step_time_s, rel=1e-6)
