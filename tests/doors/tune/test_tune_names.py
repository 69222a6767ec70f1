"""What plans are called in a tuning: each by a name that tells it from all others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpsolver.doors.tune.display import plan_words
from cpsolver.plans.strategy import Mesh, StageGroup, Strategy
from tests.support.problems import strategy_of, with_meshes

BASE = strategy_of("a:2,2 b:2,2", tp=2, dp=4, flags="fzs", cp=4)
OTHERS = {
    "order of chips": replace(BASE, groups=BASE.groups[::-1]),
    "layers": strategy_of("a:3,1 b:2,2", tp=2, dp=4, flags="fzs", cp=4),
    "stages of chips": strategy_of("a:2,2,2 b:2", tp=2, dp=4, flags="fzs", cp=4),
    "recomputation": strategy_of("a:2,2 b:2,2", tp=2, dp=4, flags="fzs", cp=4, recompute="block", amount=1),
    "recomputation of one": replace(BASE, groups=(BASE.groups[0], StageGroup("b", (2, 2), "selective"))),
    "schedule": replace(BASE, schedule="breadth_first"),
    "gathered": replace(BASE, cp_gather=True),
    "ulysses": replace(BASE, ulysses=2),
    "all ulysses": replace(BASE, ulysses=4),
    "ZeRO-2": replace(BASE, sharded="gradients"),
    "groups": replace(BASE, sharding_group=4),
    "larger groups": replace(BASE, sharding_group=8),
    "no distributed optimizer": replace(BASE, distributed_optimizer=False),
    "no flash attention": replace(BASE, flash_attention=False),
    "no sequence parallelism": replace(BASE, sequence_parallel=False),
    "experts overlapped": replace(BASE, ep=2, expert_overlap=True),
    "experts": replace(BASE, ep=2),
    "ramp": replace(BASE, mbs=2, micro_batches=(1, 2, 3, 2)),
    "other ramp": replace(BASE, mbs=2, micro_batches=(1, 3, 3, 1)),
    "equal": replace(BASE, mbs=2),
    "meshes": with_meshes(BASE, b=Mesh(4, 4, 2)),
    "ring of two": replace(BASE, cp=8, ulysses=2),
    "ring of four": replace(BASE, cp=8, ulysses=4),
}


@pytest.mark.parametrize("what", OTHERS)
def test_no_other_plan_has_its_name(what: str) -> None:
    others = [BASE, *(plan for name, plan in OTHERS.items() if name != what)]
    assert plan_words(OTHERS[what]) not in set(map(plan_words, others))


def test_a_plain_plan_has_a_short_name() -> None:
    plain: Strategy = strategy_of("a:2,2", tp=2, dp=4, flags="fzs")
    assert plan_words(plain) == "tp 2 pp 2 dp 4 mbs 1"
    assert plan_words(replace(plain, groups=(StageGroup("a", (2, 2), "selective"),))).endswith("recompute selective")
