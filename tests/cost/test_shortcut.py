"""Layers like LongCat's: attention and a dense block twice, experts beside them, some of which do nothing."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from cpsolver.cost.compute import layer_operators, layer_seconds
from cpsolver.cost.kinds import LayerKind, layer_kinds
from cpsolver.cost.layers import Layers
from cpsolver.cost.memory import LayerBytes, layer_bytes
from cpsolver.cost.model_flops import model_flops_per_step
from cpsolver.cost.modules import applicable
from cpsolver.cost.routing import routing_seconds
from cpsolver.cost.shard import Shard
from cpsolver.plans.strategy import MODULES
from cpsolver.problem.problem import Problem
from models_zoo import Architecture, layer_parameters, load_architecture
from tests.support.problems import ideal, model_spec
from tests.support.special_models import LATENT

HIDDEN, FFN, WIDTH = 1024, 2816, 512
MOE = {"experts": 8, "top_k": 2, "expert_ffn": WIDTH}
BESIDE = {**MOE, "top_k": 3, "zero_experts": 4, "shortcut": True}
"""Of three experts that the router chooses two compute, as one choice in three is of those that do nothing."""
WHOLE = Shard.of(1, 1, False, True)
TOKENS = 4096


def of(moe: dict[str, Any] | None, stack: dict[str, float] | None = None, **changes: Any) -> Problem:
    fields = {**model_spec(attention=LATENT, **changes), **({"moe": moe} if moe else {})}
    model = Architecture.model_validate({"name": "small", **fields})
    return ideal(model=model, stack=stack, training={"sequence_length": TOKENS})[0]


def kind_of(problem: Problem) -> LayerKind:
    (kind,) = layer_kinds(problem.model)
    return kind


def test_it_has_every_part_of_two_layers_and_the_experts_once() -> None:
    both, dense, experts = (layer_parameters(of(moe).model) for moe in (BESIDE, None, MOE))
    router = (8 + 4) * HIDDEN
    assert both.total == 2 * dense.total + 8 * 3 * HIDDEN * WIDTH + router
    assert both.experts == experts.experts
    assert both.active == 2 * dense.total + 2 * 3 * HIDDEN * WIDTH + router


def test_longcat_has_as_many_as_published() -> None:
    """560 B, of which a token uses 27 B in the mean (arXiv:2509.01322)."""
    model = load_architecture("longcat-flash-560b")
    active = sum(layer_parameters(model, index).active for index in range(model.layers))
    assert active + 2 * model.vocab * model.hidden == pytest.approx(27e9, rel=0.04)


def operators_of(moe: dict[str, Any] | None) -> dict[str, float]:
    """Forward seconds by operator."""
    problem, found = of(moe), defaultdict[str, float](float)
    for each in layer_operators(problem, problem.supplies[0].chip, WHOLE, kind_of(problem)):
        found[each.name] += float(each.passes[0][0])
    return found


def test_it_takes_as_long_as_its_parts() -> None:
    """Two dense layers and a layer's experts, and one more sum that reads two tensors and writes one."""
    both, dense, experts = operators_of(BESIDE), operators_of(None), operators_of(MOE)
    routed = {name: experts[name] for name in ("experts up", "experts down", "permutation", "activation function")}
    one_more = {"norms and residuals": 3 * 2 * TOKENS * HIDDEN / 1e12}
    for name in both.keys() - {"router"}:
        assert both[name] == pytest.approx(2 * dense[name] + routed.get(name, 0) + one_more.get(name, 0)), name
    assert both["router"] >= experts["router"] > 0
    problem = of(BESIDE)
    whole = layer_seconds(problem, problem.supplies[0].chip, WHOLE, kind_of(problem))
    assert float(whole.forward[0]) == pytest.approx(sum(both.values()))


def test_modules_are_of_both_attentions_and_both_blocks() -> None:
    problem, dense = of(BESIDE), of(None)
    chip = problem.supplies[0].chip
    both, one = (Layers.of(each, chip, WHOLE).modules(each, chip, WHOLE)[0, :, 0] for each in (problem, dense))
    at = MODULES.index
    assert {"mlp", "moe", "core_attn", "mla_up_proj"} <= set(applicable(problem))
    for name in ("mlp", "core_attn", "mla_up_proj"):
        assert both[at(name)] == pytest.approx(2 * one[at(name)])
    assert both[at("moe")] > 0


def bytes_of(moe: dict[str, Any] | None, stack: dict[str, float] | None = None) -> LayerBytes:
    problem = of(moe, stack)
    return layer_bytes(problem, WHOLE, kind_of(problem))


def test_it_keeps_what_its_parts_keep_and_one_input() -> None:
    both, dense, experts = bytes_of(BESIDE), bytes_of(None), bytes_of(MOE)
    mlp = 2 * TOKENS * 3 * FFN
    routed = experts.full - (dense.full - mlp)
    assert both.full == pytest.approx(2 * dense.full + routed)
    assert both.checkpoint == dense.checkpoint
    assert np.all(both.buffer >= np.maximum(dense.buffer, experts.buffer))


def test_tokens_of_experts_that_do_nothing_travel_where_the_framework_sends_them() -> None:
    """Three copies of a token instead of two, each kept where it arrives."""
    spread = Shard.of(1, 1, False, True, etp=1, ep=4)
    here, sent = (of(BESIDE, {"zero_experts_sent": value}) for value in (0, 1))
    chip = here.supplies[0].chip
    assert routing_seconds(sent, chip, spread) == pytest.approx(1.5 * routing_seconds(here, chip, spread), rel=1e-2)
    kept = [bytes_of(BESIDE, {"zero_experts_sent": value}).full for value in (0, 1)]
    assert kept[1] - kept[0] == 2 * TOKENS * HIDDEN


def test_flop_count_what_computes() -> None:
    """Six for each weight that a token uses, and attention's pairs, of which half are seen."""
    problem = of(BESIDE)
    used = layer_parameters(problem.model).active - 4 * HIDDEN - 2 * (128 + 128)  # norms are no products
    pairs = 2 * 8 * (64 + 32 + 64) * TOKENS / 2
    each = 4 * (used + pairs) + HIDDEN * 4000
    assert model_flops_per_step(problem) == pytest.approx(6 * each * TOKENS * problem.batch, rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"moe": {**BESIDE, "first_dense": 1}}, "moe.first_dense is 1: must be 0"),
        ({"moe": {**BESIDE, "freq": 2}}, "moe.freq is 2: must be 1"),
        ({"mtp_layers": 1}, "mtp_layers is 1: must be 0"),
        ({"norms_per_layer": 4}, "norms_per_layer is 4: must be 2"),
        ({"layer_pattern": "*E*E"}, "its layers are alike"),
        ({"ffn": 0}, "ffn is 0 but moe.shortcut is true"),
    ],
)
def test_what_it_cannot_have_is_told(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        of({**BESIDE, **changes.pop("moe", {})}, **changes)
