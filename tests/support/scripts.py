"""Launch scripts for tests of the import, and what one gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cpsolver.doors.importing.imported import Imported, ImportOptions, import_source
from cpsolver.doors.importing.output import spec_text, strategy_text
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.resolve import resolve
from cpsolver.problem.strategy_file import load_strategy
from cpsolver.spec.spec import load_spec
from tests.support.command import write

LLAMA = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 --swiglu "
    "--normalization RMSNorm --position-embedding-type rope --disable-bias-linear "
    "--untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 --vocab-size 32000 "
    "--max-position-embeddings 4096 "
)
MOE = (
    LLAMA.replace("11008", "14336")
    + "--group-query-attention --num-query-groups 8 --num-experts 8 --moe-router-topk 2 "
)
GPT = (
    "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --vocab-size 50257 --seq-length 1024 "
    "--max-position-embeddings 1024 --micro-batch-size 2 --fp16 "
)
STEP = "--seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 "


def imported(text: str, **options: Any) -> Imported:
    """What a script gives, on H100s unless told otherwise."""
    return import_source(write("train.sh", text), ImportOptions(**{"chip": "h100", **options}))


def plan(text: str, **options: Any) -> Strategy:
    """The plan that a script runs; written and read back it is the same, for a spec that loads."""
    found = imported(text, **options)
    assert found.strategy is not None, found.refusals
    Path("spec.yaml").write_text(spec_text(found), encoding="utf-8")
    Path("plan.yaml").write_text(strategy_text(found.strategy, "train.sh"), encoding="utf-8")
    problem = resolve(load_spec("spec.yaml"))
    assert load_strategy("plan.yaml", problem) == found.strategy
    assert problem.model.layers == sum(found.strategy.layers)
    return found.strategy


def torchrun(arguments: str, devices: int = 8, nodes: int = 1) -> str:
    return f"torchrun --nproc_per_node {devices} --nnodes={nodes} pretrain_gpt.py {arguments}\n"
