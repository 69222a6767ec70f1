"""MindFormers' own classes take exported files: degrees, layers and recomputed layers of every chunk, and the batch.

Needs MindSpore, MindFormers' code (release 2.1.0 unpacked) and what it imports, in folders named by MINDFORMERS, with
path separators between them.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cpsolver.doors.export.judge import launch_of
from cpsolver.doors.export.parallel_args import stage_chunks
from cpsolver.rules import violations
from tests.real.megatron_cases import Case
from tests.real.readers import read

READER = Path(__file__).parent / "mindformers_read.py"


def _case(name: str, model: str, groups: str, flags: str = "sfz", **more: Any) -> Case:
    own = {key: more.pop(key) for key in ("batch", "sequence", "training", "stack") if key in more}
    return Case(name, model, groups, more={"flags": flags, **more}, **own)


BLOCK: dict[str, Any] = {"recompute": "block", "amount": 3}
CASES = (
    _case("one stage", "llama3.1-8b", "x:32", tp=4, dp=2),
    _case("pipeline", "llama3.1-8b", "x:8,8,8,8", tp=2, dp=2),
    _case("uneven", "llama3.1-8b", "x:7,9,10,6", tp=2, dp=2),
    _case("one replica", "qwen3-32b", "x:8,9,8,8,8,8,8,7", "sf", tp=8, dp=1),
    _case("interleaved", "llama3.1-8b", "x:8,8,8,8", tp=2, dp=2, vpp=4),
    _case("uneven, interleaved", "llama3.1-8b", "x:6,10,8,8", tp=2, dp=2, vpp=2),
    _case("slots", "llama3.1-405b", "x:31,32,32,31", "sf", tp=8, dp=1, vpp=4),
    _case("blocks", "llama3.1-8b", "x:7,9,10,6", tp=2, dp=2, **BLOCK),
    _case("blocks of chunks", "llama3.1-8b", "x:8,8,8,8", tp=2, dp=2, vpp=2, **BLOCK),
    _case("every layer", "llama3.1-8b", "x:7,9,10,6", tp=2, dp=2, recompute="uniform", amount=1),
    _case("all-to-all", "llama3.1-8b", "x:16,16", tp=2, dp=2, cp=4, ulysses=4, sequence=16384),
    _case("unfused, whole", "llama3.1-8b", "x:16,16", flags="", tp=1, dp=4),
    _case("experts", "qwen3-30b-a3b", "x:12,12,12,12", tp=2, dp=8, ep=8),
    _case("prediction", "deepseek-v3-671b", "x:15,16,17,13", tp=2, dp=32, ep=64, batch=1024),
    _case("16-bit weights", "llama3.1-8b", "x:16,16", tp=2, dp=2, stack={"gradient_bytes": 2}),
)


@cache
def answers() -> dict[str, dict[str, Any]]:
    """Case -> what MindFormers makes of it."""
    cases = (
        {
            "plan": launch_of(case.problem(), case.strategy(), "mindformers").files["plan.yaml"],
            "layers": case.problem().model.layers,
        }
        for case in CASES
    )
    return dict(zip([case.name for case in CASES], read(READER, ("MINDFORMERS",), cases), strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_mindformers_reads_the_plan(case: Case) -> None:
    found, s, problem = answers()[case.name], case.strategy(), case.problem()
    assert "error" not in found, found["error"]
    degrees = {
        "data_parallel": s.dp,
        "model_parallel": s.tp,
        "pipeline_stage": s.pp,
        "context_parallel": s.cp,
        "expert_parallel": s.ep,
        "use_seq_parallel": s.sequence_parallel,
    }
    assert {name: found["parallel"][name] for name in degrees} == degrees
    assert found["ulysses"] == s.ulysses
    by_stage = stage_chunks(s)
    assert found["layers"] == [[by_stage[stage][chunk] for stage in range(s.pp)] for chunk in range(s.vpp)]
    assert found["recomputed"] == _recomputed(case, found["layers"])
    assert found["batch"] == problem.batch
    assert isinstance(found["learning_rate"], float)
    told = found["model"]
    assert told["use_flash_attention"] == s.flash_attention
    assert told["params_dtype"] == ("bfloat16" if "gradient_bytes" in case.stack else "float32")


def _recomputed(case: Case, layers: list[list[int]]) -> list[list[int]]:
    s = case.strategy()
    if s.recompute[0] == "uniform":
        return layers
    amount = s.recompute_layers[0] if s.recompute[0] == "block" else 0
    return [[min(amount, there) for there in chunk] for chunk in layers]


def test_the_plans_are_legal() -> None:
    assert not [(case.name, broken) for case in CASES for broken in violations(case.problem(), case.strategy())]
