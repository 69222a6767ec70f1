from typing import Any

import pytest

import cpsolver
from cpsolver.inputs.errors import InputError
from cpsolver.problem.filled import fill_strategy, read_settings
from cpsolver.problem.problem import Problem
from cpsolver.rules import violations


def problem(model: str = "llama2-70b", chips: Any = "a800", gpus: int = 256, **more: Any) -> Problem:
    return cpsolver.make_problem(
        model=model, num_gpus=gpus, chips=chips, global_batch_size=512, sequence_length=4096, **more
    )


def wrong(asked: Problem, **given: Any) -> str:
    with pytest.raises(InputError) as caught:
        fill_strategy(asked, given)
    return str(caught.value)


def test_dp_is_what_is_left_and_layers_are_even() -> None:
    """256 devices / (tp 8 * pp 8) = 4 replicas; 80 layers / 8 stages = 10."""
    filled = fill_strategy(problem(), {"tp": 8, "pp": 8})
    plan = filled.strategy
    assert (plan.dp, plan.cp, plan.mbs, plan.vpp, plan.layers) == (4, 1, 1, 1, (10,) * 8)
    assert (plan.sequence_parallel, plan.distributed_optimizer, plan.flash_attention) == (True, True, True)
    assert not list(violations(problem(), plan))
    assert "dp 4" in str(filled)
    assert "layers 10 in 8 stages" in str(filled)
    assert not {"tp", "pp", "stage_chips", "ep"} & filled.added.keys()


def test_pp_is_what_is_left_where_dp_is_given() -> None:
    assert fill_strategy(problem(), {"tp": 8, "dp": 8}).strategy.pp == 4


def test_stages_that_are_listed_say_how_many_there_are() -> None:
    plan = fill_strategy(problem(), {"tp": 8, "layers": [19, 21, 21, 19]}).strategy
    assert (plan.pp, plan.dp, plan.layers) == (4, 8, (19, 21, 21, 19))


@pytest.mark.parametrize(
    ("model", "pp", "vpp", "layers"),
    [
        ("llama2-70b", 3, 1, (27, 27, 26)),  # 80 = 3 * 26 + 2: one more in the middle, one in the first stage
        ("llama2-70b", 8, 2, (10,) * 8),
        ("deepseek-v3-671b", 4, 1, (15, 16, 15, 15)),  # 61 = 4 * 15 + 1
        ("deepseek-v3-671b", 4, 8, (16, 16, 16, 13)),  # NVIDIA's 64 places, 3 of them the head's
    ],
)
def test_what_does_not_divide(model: str, pp: int, vpp: int, layers: tuple[int, ...]) -> None:
    gpus = 8 * pp * 4
    plan = fill_strategy(problem(model, "h800", gpus), {"tp": 8, "pp": pp, "vpp": vpp}).strategy
    assert plan.layers == layers


def test_chips_stand_in_the_specs_order() -> None:
    """A stage is tp 8 * dp 8 = 64 devices: 128 a800 are two stages, and h800 serve the other two."""
    mixed = problem(chips={"a800": 128, "h800": 160})
    assert fill_strategy(mixed, {"tp": 8, "pp": 4}).strategy.stage_chips == ("a800", "a800", "h800", "h800")


@pytest.mark.parametrize(
    ("launcher", "given", "decisions"),
    [
        ("torchtitan", {"tp": 8}, {"sharded": "parameters", "sequence_parallel": True}),
        ("torchtitan", {"tp": 8, "cp": 2}, {"cp_gather": True}),
        ("deepspeed", {"dp": 256}, {"sharded": "optimizer", "distributed_optimizer": True}),
        ("megatron-lm", {"tp": 1, "pp": 8}, {"sequence_parallel": False, "sharded": "optimizer"}),
    ],
)
def test_flags_are_the_launchers_usual(launcher: str, given: dict[str, Any], decisions: dict[str, Any]) -> None:
    plan = fill_strategy(problem(launcher=launcher), given).strategy
    assert {name: getattr(plan, name) for name in decisions} == decisions


def test_a_unit_of_recomputed_layers_is_told() -> None:
    filled = fill_strategy(problem(), {"tp": 8, "recompute": "uniform"})
    assert filled.strategy.recompute_layers == (1,)
    assert filled.added["recompute_layers"] == 1


def test_what_is_given_stays() -> None:
    given = {"tp": 4, "pp": 4, "mbs": 2, "distributed_optimizer": False, "recompute": "block", "recompute_layers": 3}
    plan = fill_strategy(problem(), given).strategy
    assert (plan.mbs, plan.distributed_optimizer, plan.recompute[0], plan.recompute_layers) == (
        2,
        False,
        "block",
        (3,) * 4,
    )
    assert cpsolver.make_strategy(problem(), **given) == plan


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tp": 8, "pp": 7}, "tp 8 * cp 1 * pp 7 = 56 does not divide the cluster's 256 devices: no dp fits"),
        ({"sharde": 8}, "'sharde' is no decision of a plan; did you mean 'sharded'"),
        ({"tp": "many"}, "--set tp = 'many': must be a whole number, 1 or more"),
        ({"tp": 8, "recompute": "full"}, "--set: recompute = 'full'"),
        ({"layers": ["x", 79]}, "--set: layers[0] = 'x': must be a whole number"),
        ({"tp": 8, "stage_chips": ["x"]}, "--set: stage_chips[0] = 'x': is not a chip of the spec"),
        ({"tp": 8, "pp": 4, "layers": [40, 40]}, "are not as many stages"),
        ({"tp": 8, "layers": 10}, "must be a list, an entry a stage"),
    ],
)
def test_what_cannot_be_filled_is_told(given: dict[str, Any], said: str) -> None:
    assert said in wrong(problem(), **given)


def test_chips_without_room_for_the_stages_are_told() -> None:
    """Stages of 8 * 16 = 128 devices: 100 a800 serve none, 160 h800 one."""
    assert "a800 0, h800 1" in wrong(problem(chips={"a800": 100, "h800": 160}), tp=8, pp=2)


def test_settings_are_read() -> None:
    read = read_settings(
        ["tp=8", "Flash-Attention=off", "layers=20,20", "recompute_modules=core_attn", "sharded=gradients"]
    )
    assert read == {
        "tp": 8,
        "flash_attention": False,
        "layers": [20, 20],
        "recompute_modules": ["core_attn"],
        "sharded": "gradients",
    }


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["tp"], "is no NAME=VALUE"),
        (["tp=8", "tp=4"], "says tp twice"),
        (["tp=x"], "--set tp = 'x'"),
        (["=8"], "tp=8 say"),
    ],
)
def test_settings_that_cannot_be_read_are_told(texts: list[str], said: str) -> None:
    with pytest.raises(InputError) as caught:
        read_settings(texts)
    assert said in str(caught.value)
