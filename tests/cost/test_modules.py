"""Recomputation by module: its bytes and seconds, the sets that a search tries, and the search's choice of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cpsolver.cost import memory
from cpsolver.cost.kinds import LayerKind
from cpsolver.cost.modules import freed_by_kind, module_sets, replayed
from cpsolver.cost.shard import Candidates, Shard
from cpsolver.cost.tables import memory_table, time_table
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.inputs.document import Document
from cpsolver.inputs.errors import InputError
from cpsolver.plans.strategy import MODULES, StageGroup, Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.strategy_file import strategy_from, strategy_to_dict
from cpsolver.rules import violations
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.search import search
from cpsolver.search.space import enumerate_rows
from tests.support.oracle import brute_force
from tests.support.problems import chip_spec, ideal, model_spec, problem_of, strategy_of
from tests.support.selection import full, night
from tests.support.tables import quick_tables

DENSE, EXPERTS = LayerKind(False, True), LayerKind(True, True)
MLA = {"kind": "mla", "q_lora": 384, "kv_lora": 128, "qk_nope": 64, "qk_rope": 32, "v_head": 64}
MOE = {"experts": 8, "top_k": 2, "expert_ffn": 512, "shared_experts": 1}


def freed(problem: Problem, kind: LayerKind, *names: str, flash: bool = True, tp: int = 1) -> float:
    """Bytes that a layer keeps less with those modules recomputed than with nothing recomputed."""
    found = memory.layer_bytes(problem, Shard.of(tp, 1, tp > 1, flash), kind)
    return float(freed_by_kind(found.freed[None], np.zeros((1, 1)), (names,))[0, 0, 0])


def with_modules(text: str, *names: str, **given: Any) -> Strategy:
    plan = strategy_of(text, recompute="selective", **given)
    groups = tuple(StageGroup(g.chip, g.layers, "selective", g.recompute_layers, names) for g in plan.groups)
    return Strategy(**{**vars(plan), "groups": groups})


def test_what_megatron_measured_on_a_model_of_nemotrons_dimensions() -> None:
    """Megatron-Bridge, skills/nemo-mbridge-perf-activation-recompute: 23 layers of experts, 8192 tokens."""
    moe = {"experts": 128, "top_k": 6, "expert_ffn": 1856}
    nemotron = model_spec(hidden=2688, heads=32, kv_heads=2, head_dim=128, gated_mlp=False, moe=moe)
    problem, _ = ideal(model=nemotron, sequence=8192)
    assert 23 * freed(problem, EXPERTS, "moe_act") == pytest.approx(4.194e9, rel=0.001)
    more = freed(problem, EXPERTS, "moe", "layernorm") - freed(problem, EXPERTS, "moe")
    assert 23 * more == pytest.approx(1.014e9, rel=0.002)


@pytest.mark.parametrize("tp", [1, 4])
def test_bytes_of_each_module(tp: int) -> None:
    problem, _ = ideal(model=model_spec(attention=MLA, moe=MOE))
    tokens, h, heads, inner = 1024, 1024, 8, 512
    parts = {
        "core_attn": 0,
        "layernorm": 2 * h,
        "mla_up_proj": heads * (2 * 96 + 64) + tp * (384 + 128),
        "moe_act": 2 * inner,
        "shared_experts": 3 * inner,
        "moe": 3 * 3 * inner + 2 * h,
    }
    for name, elements in parts.items():
        assert freed(problem, EXPERTS, name, tp=tp) == pytest.approx(2 * tokens * elements / tp), name
    assert freed(problem, EXPERTS, "moe_act", "layernorm") == pytest.approx(2 * tokens * (2 * inner + 2 * h))


def test_bytes_of_dense_layers() -> None:
    fused, unfused = (ideal(training={"fused_kernels": on})[0] for on in (True, False))
    h, ffn, tokens = 1024, 2816, 1024
    assert freed(fused, DENSE, "mlp") == 2 * tokens * (h + 3 * ffn)  # with the norm in its first product
    assert freed(unfused, DENSE, "mlp") == 2 * tokens * 3 * ffn
    assert freed(unfused, DENSE, "layernorm") == 2 * tokens * 2 * h
    assert freed(fused, DENSE, "core_attn", flash=False) == 2 * 8 * tokens * tokens
    assert freed(fused, DENSE, "core_attn") == 0
    found = memory.layer_bytes(fused, Shard.of(1, 1, False, False), DENSE).freed[None]
    assert module_sets(fused) == (("core_attn",), ("core_attn", "mlp"), ("mlp",))
    assert replayed(found, module_sets(fused))[:, 0].tolist() == [0, *[2 * tokens * (h + 3 * ffn)] * 2]


def test_the_sets_are_those_that_the_layers_have() -> None:
    def sets(**changes: Any) -> list[str]:
        return [" ".join(names) for names in module_sets(problem_of(model=model_spec(**changes)))]

    plain = {**MOE, "shared_experts": 0}
    assert set(sets(moe=plain)) == {
        *("core_attn", "layernorm", "moe_act", "moe", "core_attn layernorm", "core_attn moe_act", "core_attn moe"),
        *("layernorm moe_act", "layernorm moe", "core_attn layernorm moe_act", "core_attn layernorm moe"),
    }
    assert len(sets(moe=MOE, attention=MLA)) == 2 * 2 * 2 * 5 - 1
    mixed = sets(moe={**plain, "first_dense": 1}, ffn=512)
    assert {"mlp moe", "moe"} <= set(mixed)
    assert "mlp" not in mixed  # dense layers keep less than experts
    assert "mlp" in sets(moe={**plain, "first_dense": 1})
    assert len(sets(moe=plain)) == len(set(sets(moe=plain)))


def test_seconds_of_modules_are_parts_of_the_forward_pass() -> None:
    problem, _ = ideal(model=model_spec(attention=MLA, moe=MOE), gpus=4)
    rows = Candidates.one(strategy_of("x:4", tp=4, dp=1, flags="sf"), problem.batch)
    found = time_table(problem, problem.supplies[0], rows)
    seconds = dict(zip(MODULES, found.modules[:, 0].tolist(), strict=True))
    assert seconds.pop("mlp") == seconds.pop("operators") == 0  # no dense layer, and no launcher with operators
    assert min(seconds.values()) > 0
    assert seconds["moe"] > seconds["moe_act"] + seconds["shared_experts"]
    whole = sum(seconds[name] for name in ("core_attn", "layernorm", "mla_up_proj", "moe"))
    assert 0.4 * found.recompute[0] < whole < found.recompute[0]


def test_recomputed_operators_leave_every_other_product() -> None:
    """Kept: the layer's input, queries, values, attention's output with its statistics, and the gate."""
    problem = problem_of(model=model_spec(kv_heads=4), launcher="torchtitan")
    row = Candidates.one(strategy_of("x:4"), problem.batch)
    tokens, h, heads, width, ffn = 1024, 1024, 8, 128, problem.model.ffn
    kept = 2 * tokens * (h + heads * width + 4 * width + heads * width + ffn) + 4 * heads * tokens
    table = memory_table(problem, row)
    assert table.stored((("operators",),), [0]).most[0, 0] == kept
    assert module_sets(problem)[1:] == (("operators",),)
    seconds = dict(zip(MODULES, time_table(problem, problem.supplies[0], row).modules[:, 0].tolist(), strict=True))
    forward = time_table(problem, problem.supplies[0], row).recompute[0]
    assert 0.1 * forward < seconds["operators"] < 0.6 * forward
    plain = memory_table(problem_of(model=model_spec(kv_heads=4)), row)
    assert not plain.freed[0, MODULES.index("operators")].any()


def test_a_set_costs_its_seconds_and_keeps_its_bytes() -> None:
    problem = problem_of(model=model_spec(moe=MOE))
    none, act, both = (
        evaluate(problem, plan)
        for plan in (
            strategy_of("x:4"),
            with_modules("x:4", "moe_act"),
            with_modules("x:4", "layernorm", "moe"),
        )
    )
    kept = [found.stages[0].memory.activations for found in (none, act, both)]
    seconds = [found.stages[0].recompute_s for found in (none, act, both)]
    assert kept[0] > kept[1] > kept[2]
    assert 0 == seconds[0] < seconds[1] < seconds[2]
    assert both.stages[0].recompute_modules == ("layernorm", "moe")


def test_the_rule_on_recomputation_knows_modules() -> None:
    problem = problem_of(launcher="megatron-core-0.13", model=model_spec(moe=MOE))

    def said(plan: Strategy) -> list[str]:
        return [str(found) for found in violations(problem, plan) if found.rule == "recompute"]

    assert not said(with_modules("x:4", "moe_act", "layernorm", "core_attn"))
    known = "core_attn, layernorm, moe_act, moe"
    for name in ("mla_up_proj", "mlp", "shared_experts", "nothing"):
        assert said(with_modules("x:4", name)) == [
            f"recompute: recompute module {name} is not one of this model and launcher: {known}"
        ]
    plain = strategy_of("x:4")
    wrong = Strategy(**{**vars(plain), "groups": (StageGroup("x", (4,), "none", (0,), ("moe",)),)})
    assert said(wrong) == ["recompute: x: recompute none with modules moe"]


def test_groups_hold_modules_in_one_order() -> None:
    assert StageGroup("x", (4,), "selective").modules == ("core_attn",)
    assert StageGroup("x", (4,), "selective", (0,), ("moe", "moe_act", "layernorm")).modules == ("layernorm", "moe")
    assert StageGroup("x", (4,)).modules == ()


def test_files_hold_modules() -> None:
    plan = with_modules("x:2,2", "layernorm", "moe_act")
    written = strategy_to_dict(plan)
    assert written["stages"][0]["recompute_modules"] == ["layernorm", "moe_act"]
    assert strategy_from(Document(written)) == plan
    usual = strategy_to_dict(with_modules("x:2,2", "core_attn"))
    assert "recompute_modules" not in usual["stages"][0]
    assert strategy_from(Document(usual)) == with_modules("x:2,2", "core_attn")


TIGHT: dict[str, Any] = {"gpus": 2, "node": 2, "batch": 4, "sequence": 4096}


def tight(gb: float, model: dict[str, Any] | None = None, **search_for: Any) -> Problem:
    """A problem of one chip type with that much memory, whose plans are few."""
    pin = {"mbs": 1, "tp": 1, "vpp": 1, "cp": 1, "ep": 1, "sharded": "optimizer", **search_for.pop("pin", {})}
    chosen = model or model_spec(moe=MOE, attention=MLA, layers=3)
    return problem_of({"x": chip_spec(gb=gb)}, chosen, **TIGHT, pin=pin, top=2, diverse=False, **search_for)


def least_gb(**given: Any) -> float:
    """Memory, to a tenth, that a plan without recomputation needs."""
    return next(gb for gb in np.arange(4.0, 30.0, 0.1) if search(tight(gb, **given)).plans)


def test_tight_memory_is_won_back_where_it_is_cheapest() -> None:
    pin = {"pp": 1, "flash_attention": True, "distributed_optimizer": True}
    plain = least_gb(pin={**pin, "recompute": "none"})
    chosen: list[tuple[str, ...]] = []
    for gb in (plain, plain - 0.1, plain - 0.2, plain - 0.3):
        found = search(tight(gb, pin=pin)).plans[0]
        chosen.append(found.strategy.recompute_modules[0])
        whole = search(tight(gb, pin={**pin, "recompute": ["none", "block", "uniform"]})).plans
        assert not whole or found.evaluation.step_time_s <= whole[0].evaluation.step_time_s
    assert chosen[0] == ()
    assert set(chosen[1]) & {"moe_act", "layernorm"}
    assert len({*chosen}) >= 3


SMALL = {
    "experts": model_spec(moe=MOE, attention=MLA, layers=3),
    "experts and dense": model_spec(moe={**MOE, "first_dense": 1}, layers=3),
    "dense": model_spec(layers=4, ffn=4096),
}


@pytest.mark.parametrize(
    ("name", "scope"),
    [full("dense", "stage"), ("experts", "chip"), full("dense", "chip"), night("experts and dense", "stage")],
)
def test_search_agrees_with_brute_force(name: str, scope: str) -> None:
    pin = {"flash_attention": name != "dense", "sharding_group": 0}
    told: dict[str, Any] = {"model": SMALL[name], "recompute_scope": scope}
    used: set[tuple[str, ...]] = set()
    plain = least_gb(**told, pin={**pin, "recompute": "none"})
    for less in (0.05, 0.15, 0.6):
        problem = tight(plain - less, **told, pin=pin)
        with quick_tables():
            best = brute_force(problem)
            result = search(problem)
        wanted = sorted(best.values())[:2]
        assert [plan.evaluation.step_time_s for plan in result.plans] == pytest.approx(wanted, rel=1e-6)
        used |= {names for plan in result.plans for names in plan.strategy.recompute_modules}
    assert used - {(), ("core_attn",)}


def test_pinned_and_forbidden_sets() -> None:
    sets = {"recompute_modules": [["moe_act", "layernorm"], ["moe"]]}
    problem = tight(20, pin=sets)
    plans = search(problem).plans
    assert {plan.strategy.recompute_modules[0] for plan in plans} == {("layernorm", "moe_act")}
    wide = Coefficients(problem, enumerate_rows(problem).rows)
    assert [wide.sets[index] for index in wide.allowed_sets[0]] == [("layernorm", "moe_act"), ("moe",)]
    banned = tight(
        20, pin={**sets, "recompute": "selective"}, forbid={"recompute_modules": {"x": ["moe_act", "layernorm"]}}
    )
    assert search(banned).plans[0].strategy.recompute_modules[0] == ("moe",)
    assert [found.rule for found in violations(banned, plans[0].strategy)] == ["pin"]
    with pytest.raises(InputError, match="forbids all that is pinned"):
        tight(20, pin={"recompute_modules": "moe"}, forbid={"recompute_modules": {"*": [["moe"]]}})
