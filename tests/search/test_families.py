"""The solver's side of each rule: what is forbidden is infeasible when fixed, the nearest allowed thing is feasible."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cpsolver.problem.problem import Problem
from cpsolver.rules import RULES
from cpsolver.search import arrangements as plans
from cpsolver.search.bounds.coefficients import Coefficients, allowed_kinds
from cpsolver.search.compile.constraints import FAMILIES
from cpsolver.search.compile.data import PlanData, plan_data, scale_for
from cpsolver.search.compile.model import CompiledModel
from cpsolver.search.filters import FRAME_FILTERS, LAYOUT_FILTERS, VARIANT_FILTERS
from cpsolver.search.search import search
from cpsolver.search.space import enumerate_rows
from tests.support.problems import chip_spec, model_spec, problem_of, with_host, with_stack
from tests.support.tables import plan_of

PATTERNS = ("contiguous_chips", "whole_nodes", "chip_count")
"""Rules that plans.py keeps by the patterns it makes."""
CONSTANT = ("schedule", "meshes")
"""Rules on what is the same in all rows of the space: 1F1B, and one set of degrees (of others: test_meshes.py)."""
FILTERS = (LAYOUT_FILTERS, VARIANT_FILTERS, FRAME_FILTERS)
EXPERTS = {"experts": 4, "top_k": 2, "expert_ffn": 512}
TWO = {"x": chip_spec(), "y": chip_spec(tflops=50)}
UPPER_S = 10.0


def rows_where(problem: Problem, **wanted: Any) -> int:
    rows = enumerate_rows(problem).rows
    return int(np.logical_and.reduce([getattr(rows, name) == value for name, value in wanted.items()]).sum())


def data_of(problem: Problem, *ways: tuple[dict[str, Any], list[int]]) -> list[PlanData]:
    """The first row with those degrees, for each (degrees, chips by stage)."""
    table = Coefficients(problem, enumerate_rows(problem).rows)
    found = []
    for wanted, chips in ways:
        same = np.logical_and.reduce([getattr(table.rows, name) == value for name, value in wanted.items()])
        row = int(np.nonzero(same & (table.rows.pp == len(chips)))[0][0])
        found.append(plan_data(table, row, np.array(chips), scale_for(UPPER_S), UPPER_S))
    return found


def feasible(problem: Problem, data: list[PlanData], **fixed: Any) -> bool:
    """Fix variables: `chunk=[2, 2]` (None leaves one free), `tp=2`, `option={0: ("block", 1)}`, ..."""
    model = CompiledModel(problem, data, scale_for(UPPER_S), 0.0, UPPER_S)
    v = model.variables
    for name, value in fixed.items():
        if name in v.degrees:
            model.model.add(v.degrees[name] == value)
        elif name == "option":
            for key, told in value.items():
                names = [(option.kind, option.amount) for option in data[0].by_chip[data[0].chips[key]].options]
                model.model.add(v.stages[0][key].option == names.index(told))
        else:
            places: list[Any] = v.stages[0] if name in ("recomputed", "modules") else v.positions
            for place, count in zip(places, value, strict=True):
                if count is not None:
                    model.model.add(getattr(place, name) == count)
    return model.solve().status == "optimal"


def test_every_rule_has_its_side_in_the_solver() -> None:
    sides = {name for names in (FAMILIES, *FILTERS, PATTERNS, CONSTANT) for name in names}
    assert set(RULES) == sides
    assert {name for name in sides if f"test_{name}" not in globals()} == set()
    assert all(function.__doc__ for function in FAMILIES.values())


def test_meshes() -> None:
    """Rows have one set of degrees: plans without a mesh of their own."""
    problem = problem_of(TWO, pin={"mbs": 1, "vpp": 1})
    assert not any(plan.strategy.unequal for plan in search(problem).plans)


def test_degrees() -> None:
    problem = problem_of(TWO, pin={"mbs": 1, "vpp": 1})
    data = data_of(problem, ({"tp": 2}, [0, 1]), ({"tp": 1}, [1, 1]))
    assert feasible(problem, data)
    assert feasible(problem, data, tp=2)
    assert not feasible(problem, data, tp=2, dp=2)
    assert feasible(problem, data, tp=2, chip=[0, 1])
    assert not feasible(problem, data, tp=2, chip=[1, 1])
    assert not feasible(problem, data, chip=[1, 0])


def test_layers() -> None:
    problem = problem_of(model=model_spec(layers=6), pin={"mbs": 1})
    data = data_of(problem, ({"tp": 1, "vpp": 1}, [0, 0]))
    assert feasible(problem, data, layers=[5, 1])
    assert not feasible(problem, data, layers=[6, 0])
    assert not feasible(problem, data, layers=[3, 2])
    joint = data_of(problem, ({"tp": 1, "vpp": 2}, [0, 0]), ({"tp": 1, "vpp": 1}, [0]))
    assert not feasible(problem, joint, vpp=2, layers=[3, 3])
    assert not feasible(problem, joint, pp=1, layers=[3, 3])
    assert feasible(problem, joint, pp=1, layers=[6, 0])


def test_even_chunks() -> None:
    problem = problem_of(model=model_spec(layers=6), pin={"pp": 2})
    assert not rows_where(problem, vpp=4, embedding_slot=0)
    assert rows_where(problem, vpp=4, embedding_slot=1, loss_slot=1)
    for slot in (0, 1):
        data = data_of(problem, ({"tp": 1, "vpp": 2, "embedding_slot": slot}, [0, 0]))
        assert [feasible(problem, data, layers=split) for split in ([4, 2], [5, 1])] == [not slot, bool(slot)]


@pytest.mark.parametrize(("split", "uneven", "by_chip"), [("auto", 1, 1), ("even_per_chip", 0, 1), ("even", 0, 0)])
def test_layer_split(split: str, uneven: bool, by_chip: bool) -> None:
    problem = problem_of(TWO, model_spec(layers=8), node=1, layer_split=split, pin={"mbs": 1, "vpp": 1})
    data = data_of(problem, ({"tp": 1}, [0, 0, 1, 1]))
    assert feasible(problem, data, layers=[2, 2, 2, 2])
    assert feasible(problem, data, layers=[3, 3, 1, 1]) == by_chip
    assert feasible(problem, data, layers=[3, 2, 2, 1]) == uneven
    odd = problem_of(model=model_spec(layers=6), layer_split=split)
    assert bool(rows_where(odd, pp=4)) == (split != "even")
    assert rows_where(odd, pp=2)


def test_memory() -> None:
    problem = problem_of({"x": chip_spec(gb=5.2)}, model_spec(layers=12), gpus=2, node=2, pin={"mbs": 2, "vpp": 1})
    data = data_of(problem, ({"tp": 1}, [0, 0]))
    names = [(option.kind, option.amount) for option in data[0].by_chip[0].options]
    index = names.index(("none", 0))
    first, last = data[0].by_chip[0].most[:, index].tolist()
    assert 0 < first < last < 11
    full = data[0].by_chip[0].most.max(axis=1).tolist()
    assert full[0] >= 6 > first
    assert feasible(problem, data, layers=[6, 6])
    assert not feasible(problem, data, layers=[6, 6], option={0: ("none", 0)})
    assert not feasible(problem, data, layers=[full[0] + 1, 11 - full[0]])
    assert feasible(problem, data, layers=[full[0], 12 - full[0]])


def test_recompute() -> None:
    problem = problem_of(
        model=model_spec(layers=6), node=2, pin={"mbs": 1, "vpp": 1, "recompute": ["block", "uniform"]}
    )
    data = data_of(problem, ({"tp": 1}, [0, 0]))
    assert feasible(problem, data, layers=[4, 2], option={0: ("block", 1)}, recomputed=[1, 1])
    assert not feasible(problem, data, layers=[4, 2], option={0: ("block", 1)}, recomputed=[0, 1])
    three = [option.amount for option in data[0].by_chip[0].options]
    assert three == [1]  # memory is ample: more recomputation than the least allowed is never better
    kinds = problem_of(model=model_spec(layers=6), pin={"mbs": 1, "vpp": 1, "recompute": "selective"})
    chosen = data_of(kinds, ({"tp": 1}, [0, 0]))
    steps = int(chosen[0].by_chip[0].layer_steps[0])
    assert steps > 0
    assert feasible(kinds, chosen, layers=[4, 2], modules=[4 * steps, 2 * steps], recomputed=[0, 0])
    assert not feasible(kinds, chosen, layers=[4, 2], modules=[3 * steps, 2 * steps])
    whole = problem_of(model=model_spec(layers=6), pin={"mbs": 1, "vpp": 1, "recompute": "uniform"})
    twice = data_of(whole, ({"tp": 1}, [0, 0]))
    assert feasible(whole, twice, layers=[4, 2], recomputed=[4, 2])
    assert not feasible(whole, twice, layers=[4, 2], recomputed=[3, 2])


def test_pin() -> None:
    pinned = problem_of(pin={"layers": [1, 3]})
    data = data_of(pinned, ({"vpp": 1, "tp": 1}, [0, 0]))
    assert feasible(pinned, data, layers=[1, 3])
    assert not feasible(pinned, data, layers=[2, 2])
    banned = problem_of(forbid={"layers": [1, 3], "tp": 2, "vpp": 2}, pin={"mbs": 2})
    data = data_of(banned, ({"vpp": 1, "tp": 1}, [0, 0]))
    assert not feasible(banned, data, layers=[1, 3])
    assert feasible(banned, data, layers=[3, 1])
    assert not rows_where(banned, tp=2)
    assert not rows_where(banned, vpp=2)
    assert not rows_where(banned, mbs=1)
    assert rows_where(banned, tp=1, mbs=2, vpp=1)


def test_heads() -> None:
    problem = problem_of(model=model_spec(heads=2, kv_heads=2))
    assert not rows_where(problem, tp=4)
    assert rows_where(problem, tp=2)
    assert enumerate_rows(problem).refused["heads"] == 1


def test_heads_of_layers_without_attention() -> None:
    """Two heads in one group: over tp or cp alone."""
    mamba = {"heads": 2, "head_dim": 64, "groups": 1, "state": 64, "conv": 4}
    problem = problem_of(model=model_spec(layer_pattern="M-M*", mamba=mamba))
    for degrees, there in (({"cp": 2}, True), ({"cp": 4}, False), ({"tp": 2}, False), ({"tp": 1}, True)):
        assert (rows_where(problem, **degrees) > 0) is there
    assert enumerate_rows(problem).refused["heads"] > 0


def test_kv_groups() -> None:
    problem = problem_of(model=model_spec(heads=24, kv_heads=4, hidden=768, ffn=3072), gpus=24, node=24, batch=24)
    assert not rows_where(problem, tp=6)
    assert rows_where(problem, tp=8)
    assert rows_where(problem, tp=2)


def test_feed_forward() -> None:
    problem = problem_of(model=model_spec(ffn=2818))
    assert not rows_where(problem, tp=4)
    assert rows_where(problem, tp=2)


def test_tensor_nodes() -> None:
    problem = problem_of(model=model_spec(heads=12, hidden=768, ffn=3072), gpus=12, node=6, batch=12)
    assert not rows_where(problem, tp=4)
    assert rows_where(problem, tp=3)
    assert rows_where(problem, tp=12)


def test_adapters() -> None:
    problem = problem_of(training={"lora": {"rank": 6, "targets": "linear_qkv"}})
    assert not rows_where(problem, tp=4)
    assert rows_where(problem, tp=2)
    assert rows_where(problem_of(training={"lora": {"rank": 6, "targets": "linear_proj"}}), tp=4)


def test_pipeline_depth() -> None:
    problem = problem_of(model=model_spec(layers=3))
    assert not rows_where(problem, pp=4)
    assert rows_where(problem, pp=2)


def test_batch() -> None:
    problem = problem_of(batch=6)
    assert not rows_where(problem, dp=4)
    assert not rows_where(problem, dp=2, mbs=2)
    assert rows_where(problem, dp=2, mbs=3, microbatches=1)


def test_interleaving() -> None:
    problem = problem_of(batch=6)
    assert not rows_where(problem, pp=1, vpp=2)
    assert not rows_where(problem, pp=2, dp=2, mbs=1, vpp=2)
    assert rows_where(problem, pp=2, dp=1, mbs=1, vpp=2)


def test_sequence_parallel() -> None:
    problem = problem_of(sequence=1022)
    assert not rows_where(problem, tp=1, sequence_parallel=True)
    assert not rows_where(problem, tp=4, sequence_parallel=True)
    assert rows_where(problem, tp=2, sequence_parallel=True)
    assert rows_where(problem, tp=4, sequence_parallel=False)


def test_distributed_optimizer() -> None:
    problem = problem_of()
    assert not rows_where(problem, dp=1, cp=1, distributed_optimizer=True)
    assert rows_where(problem, dp=1, cp=2, distributed_optimizer=True)
    assert rows_where(problem, dp=2, distributed_optimizer=True)
    assert rows_where(problem, dp=1, distributed_optimizer=False)


def test_optimizer() -> None:
    problem = problem_of(training={"optimizer": "precision_aware"})
    assert not rows_where(problem, dp=2, distributed_optimizer=False)
    assert rows_where(problem, dp=2, distributed_optimizer=True)
    assert rows_where(problem, dp=1, distributed_optimizer=False)


def test_chip_count() -> None:
    problem = problem_of({"x": {"spec": chip_spec(), "max": 4}, "y": {"spec": chip_spec(), "max": 6}}, gpus=8, node=2)
    assert not rows_where(problem, pp=1)
    assert rows_where(problem, pp=2, dp=4)
    assert plans.mixes(problem, 2, 4).tolist() == [[1, 3], [2, 2]]


def test_whole_nodes() -> None:
    problem = problem_of(TWO, gpus=8, node=4)
    assert plans.mixes(problem, 2, 4).tolist() == [[0, 4], [2, 2], [4, 0]]
    assert plans.mixes(problem, 4, 2).tolist() == [[0, 2], [1, 1], [2, 0]]


def test_contiguous_chips() -> None:
    problem = problem_of({"x": chip_spec(), "y": chip_spec(), "z": chip_spec()}, gpus=8, node=1)
    orders = plans.arrangements(problem, np.array([2, 1, 1])).tolist()
    assert len(orders) == 6
    assert [0, 1, 0, 2] not in orders
    assert [1, 0, 0, 2] in orders
    assert plans.arrangements(problem, np.array([0, 3, 0])).tolist() == [[1, 1, 1]]


def test_context_parallel() -> None:
    problem = problem_of(sequence=12)
    assert not rows_where(problem, cp=4)
    assert rows_where(problem, cp=2, ulysses=1, cp_gather=False)
    assert rows_where(problem, cp=2, ulysses=1, cp_gather=True)
    assert rows_where(problem, cp=2, ulysses=2, cp_gather=False)
    assert not rows_where(problem, cp=2, ulysses=2, cp_gather=True)
    assert not rows_where(problem, cp=1, cp_gather=True)
    asked = problem_of(gpus=6, node=6, batch=6, sequence=24, pin={"ulysses": [2, 3]})
    assert rows_where(asked, cp=6, ulysses=2)
    assert not rows_where(asked, cp=3, ulysses=2)


def test_context_exchange() -> None:
    problem = problem_of(model=model_spec(kv_heads=2))
    assert not rows_where(problem, cp=4, ulysses=4)
    assert rows_where(problem, cp=4, ulysses=2)
    assert not rows_where(problem, tp=2, cp=2, ulysses=2)
    assert not rows_where(problem_of(model=model_spec(attention={"sliding_window": 9})), cp=4, ulysses=2)
    assert rows_where(problem_of(model=model_spec(kv_heads=2), launcher="mindspeed-llm"), cp=4, ulysses=4)


def test_experts() -> None:
    problem = problem_of(model=model_spec(moe=EXPERTS | {"experts": 6, "expert_ffn": 6}), gpus=8, node=8)
    assert not rows_where(problem, ep=4)
    assert not rows_where(problem, etp=4)
    assert not rows_where(problem, tp=1, etp=2)
    assert not rows_where(problem, tp=8, ep=3)
    assert rows_where(problem, tp=2, dp=4, ep=2, etp=2)
    dense = problem_of(pin={"ep": [1, 2]})
    assert rows_where(dense, ep=1)
    assert not rows_where(dense, ep=2)


def test_expert_sequence_parallel() -> None:
    problem = problem_of(model=model_spec(moe=EXPERTS))
    assert not rows_where(problem, tp=2, sequence_parallel=False)
    assert rows_where(problem, tp=2, sequence_parallel=True)
    assert rows_where(problem, tp=1, sequence_parallel=False)


def test_layer_offload() -> None:
    problem = with_host(problem_of(), offload_layers=2)
    assert rows_where(problem, pp=1)
    assert not rows_where(problem, pp=2)
    assert allowed_kinds(problem, "x") == ("none",)


def test_activation_functions_made_again_leave_whole_layers() -> None:
    problem = with_host(problem_of(), recompute_activation_function=True)
    assert allowed_kinds(problem, "x") == ("none", "block")


def test_expert_overlap() -> None:
    problem = problem_of(model=model_spec(moe=EXPERTS), gpus=8, batch=16)
    on = {"expert_overlap": True}
    assert rows_where(problem, **on, pp=1, ep=2)
    assert rows_where(problem, **on, pp=2, vpp=2, ep=2)
    assert rows_where(problem, expert_overlap=False, pp=2, vpp=1, ep=2)
    assert not rows_where(problem, **on, pp=2, vpp=1)
    assert not rows_where(problem, **on, pp=1, microbatches=1)
    assert not rows_where(problem, **on, ep=1)
    several = model_spec(moe=EXPERTS, mtp_layers=2)
    assert not rows_where(problem_of(model=several, gpus=8, batch=16), **on)
    assert not rows_where(with_stack(problem, routing_overlap=0.0), **on)
    assert rows_where(with_stack(problem_of(model=model_spec(moe=EXPERTS), pin=on), routing_overlap=0.0), **on)
    older = problem_of(model=model_spec(moe=EXPERTS), launcher="megatron-core-0.13")
    assert not rows_where(older, **on)
    assert not rows_where(problem_of(pin={"expert_overlap": [True, False]}), **on)


def test_no_row_is_left_where_every_frame_lacks_another_microbatch() -> None:
    pin = {"expert_overlap": True, "pp": 2, "vpp": 1}
    space = enumerate_rows(problem_of(model=model_spec(moe=EXPERTS), pin=pin))
    assert len(space) == 0
    assert space.refused["expert_overlap"] >= len(space.frames) > 0


def test_sharding() -> None:
    problem = problem_of(gpus=8, node=2, pin={"sharding_group": [0, 2, 3, 8]})
    zero = {"distributed_optimizer": True}
    assert rows_where(problem, **zero, pp=1, dp=8, sharded=3, sharding_group=2)
    assert rows_where(problem, **zero, pp=2, dp=4, sharded=1, sharding_group=0)
    assert not rows_where(problem, **zero, pp=2, sharded=2)
    assert not rows_where(problem, distributed_optimizer=False, sharding_group=2)
    assert not rows_where(problem, distributed_optimizer=False, sharded=2)
    assert not rows_where(problem, sharding_group=3)
    six = model_spec(moe=EXPERTS | {"experts": 6})
    experts = problem_of(model=six, gpus=12, node=12, batch=12, pin={"sharding_group": 2})
    assert rows_where(experts, dp=12, ep=2)
    assert not rows_where(experts, dp=12, ep=3)
    assert not rows_where(experts, dp=12, ep=6)


def test_schedule() -> None:
    """Every row is run as 1F1B, which the rule always allows."""
    problem = problem_of(pin={"pp": 2})
    rows = enumerate_rows(problem).rows
    plans_found = [plan_of(problem, rows, row, np.array([0, 0])) for row in range(len(rows))]
    assert {plan.schedule for plan in plans_found} == {"1f1b"}
    assert not [told for plan in plans_found for told in RULES["schedule"](problem, plan)]


def test_stack() -> None:
    composer, titan = (problem_of(gpus=8, stack=name) for name in ("fsdp-composer", "fsdp-torchtitan"))
    assert rows_where(composer, tp=1, pp=1, sharded=3) == len(enumerate_rows(composer).rows)
    assert rows_where(titan, pp=2, sharded=1, tp=2, sequence_parallel=True)
    assert not rows_where(titan, pp=2, sharded=3) + rows_where(titan, distributed_optimizer=False)


def test_launcher() -> None:
    degrees: dict[str, Any] = {"tp": 2, "pp": 4, "vpp": 1, "cp": 1}
    given: dict[str, Any] = {"model": model_spec(layers=8), "gpus": 8, "node": 1, "recompute_scope": "stage"}
    given["pin"] = {"mbs": 1, "pp": 4, "recompute": ["block", "uniform"]}
    free, even, ends = (problem_of(TWO, **given, launcher=name) for name in (None, "deepspeed", "megatron-core-0.12"))
    assert rows_where(free, sequence_parallel=True)
    assert not rows_where(even, sequence_parallel=True)
    assert rows_where(even, pp=4, tp=2)
    for problem, split, allowed in [
        (free, [1, 2, 3, 2], True),
        (even, [2, 2, 2, 2], True),
        (even, [1, 2, 3, 2], False),
        (ends, [1, 2, 2, 3], True),
        (ends, [1, 2, 3, 2], False),
    ]:
        data = data_of(problem, (degrees, [0, 0, 1, 1]))
        assert feasible(problem, data, layers=split) == allowed
