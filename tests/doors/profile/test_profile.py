"""What `apss-cp profile` measures for a model, in which order, and what is told of bad input: no PyTorch needed."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import numpy as np
import pytest

from cpsolver.cost.gemms import attention_gemms, block_gemms
from cpsolver.cost.shard import Shard
from cpsolver.doors.profile import device
from cpsolver.doors.profile.budget import NO_TIME, MeasurementRun
from cpsolver.doors.profile.chip_file import guessed_entry, similar_entries
from cpsolver.doors.profile.layer import unsuitable
from cpsolver.doors.profile.request import resolve_request
from cpsolver.doors.profile.settings import settings
from cpsolver.doors.profile.shapes import MeasurementScope, tasks
from cpsolver.doors.profile.task import Measurement, MeasurementTask
from cpsolver.inputs.errors import InputError
from hw_specs import chip_names
from models_zoo import load_architecture
from tests.support.command import in_tmp, run
from tests.support.profiled import asked, gemm, problem

__all__ = ["in_tmp"]


def planned(model: str = "llama2-7b", **wanted: object) -> list[MeasurementTask]:
    return tasks(problem(model=model), MeasurementScope(**wanted), "cuda", settings())  # type: ignore[arg-type]


def products(listed: list[MeasurementTask]) -> set[tuple[int, int, int, str]]:
    return {
        (int(t.size["m"]), int(t.size["n"]), int(t.size["k"]), str(t.size["product"]))
        for t in listed
        if t.kind == "gemm"
    }


@pytest.mark.parametrize("tp", [1, 4])
def test_products_are_the_cost_models_with_both_backward_ones(tp: int) -> None:
    found, model, shard = products(planned(tp=(tp,))), problem().model, Shard.of(tp, 1, False, True)
    from cpsolver.cost.kinds import layer_kinds

    made_of = [*attention_gemms(model, shard), *block_gemms(model, shard, layer_kinds(model)[0])]
    for each in made_of:
        n, k = int(each.n[0]), int(each.k[0])
        assert {(4096, n, k, "forward"), (4096, k, n, "input_gradient"), (k, n, 4096, "weight_gradient")} <= found


def test_experts_are_one_batched_product_of_the_tokens_they_get() -> None:
    batched = {(t.size["batch"], t.size["m"]) for t in planned("mixtral-8x7b") if t.size.get("batch", 1) != 1}
    assert (8, 4096 * 2 // 8) in batched


def test_latent_attention_has_its_own_widths() -> None:
    size = next(t.size for t in planned("deepseek-v2-lite") if t.kind == "attention_forward")
    assert (size["keys"], size["values"]) == (192, 128)


@pytest.mark.parametrize("model", ["nemotron3-nano-30b-a3b", "deepseek-v4-flash-284b", "gemma4-31b"])
def test_products_of_layers_that_few_models_have(model: str) -> None:
    """Of every kind, and no real layer is built of such a model."""
    labels = [task.label for task in planned(model)]
    assert any("(mixer" in label for label in labels)
    assert unsuitable(load_architecture(model)).startswith("the real layer has ")


def test_no_task_twice_and_the_most_telling_first() -> None:
    listed = planned(tp=(1, 2), precisions=("bf16", "fp16"), devices=8)
    assert len({task.key for task in listed}) == len(listed)
    assert [task.rank for task in listed] == sorted(task.rank for task in listed)
    assert {task.kind for task in listed if task.rank == 0} == {
        "gemm",
        "memory",
        "launch",
        "attention_forward",
        "attention_backward",
    }


def test_groups_are_all_devices_and_their_divisors_and_quick_ones_all_only() -> None:
    def groups(**wanted: Any) -> set[object]:
        return {t.size["group"] for t in planned(**wanted) if t.kind == "collective"}

    assert groups(devices=8) == {2, 4, 8}
    assert groups(devices=8, quick=True) == {8}
    assert groups(devices=1) == set()


def one(name: str, flops: float = 1e9, group: str = "") -> MeasurementTask:
    return MeasurementTask("gemm", {"m": 1, "precision": "bf16", "name": name}, name, flops=flops, group=group)


def made(measure: object, known: dict[str, Measurement] | None = None, budget: float = 100.0) -> MeasurementRun:
    kept: list[Measurement] = []
    return MeasurementRun(measure, known or {}, kept.append, lambda done, total: None, budget, 30.0, 5)  # type: ignore[arg-type]


def test_what_is_known_is_taken_up_and_not_measured() -> None:
    old = Measurement("gemm", one("a").size, (1.0,) * 3)
    going = made(lambda task: pytest.fail("measured again"), {old.key: old})
    going.all([one("a")])
    assert going.measurements == [old]
    assert going.taken_up == 1


def test_what_would_take_longer_than_a_measurement_may_is_left_out_with_the_seconds() -> None:
    going = made(lambda task: Measurement(task.kind, task.size, (1.0,) * 3))
    going.all([one("small", 1e9), one("large", 7e9)])  # 1 GFLOP/s: 7 s a call, and five calls
    assert [each.size["name"] for each in going.measurements] == ["small"]
    assert [(each.label, each.reason) for each in going.left_out] == [("large", "would take some 35 s")]


def test_without_time_nothing_is_begun() -> None:
    going = made(lambda task: pytest.fail("begun"), budget=0.0)
    going.all([one("a")])
    assert [each.reason for each in going.left_out] == [NO_TIME]


def test_the_first_of_a_group_that_can_be_measured_is_enough() -> None:
    def measure(task: MeasurementTask) -> Measurement | str:
        return "out of memory" if task.label == "long" else Measurement(task.kind, task.size, (1.0,))

    going = made(measure)
    going.all([one("long", group="g"), one("short", group="g"), one("shorter", group="g"), one("x", group="h")])
    assert [each.size["name"] for each in going.measurements] == ["short", "x"]
    assert not going.left_out


def test_an_interruption_keeps_what_there_is_and_tells_the_rest() -> None:
    def measure(task: MeasurementTask) -> Measurement:
        if task.label == "b":
            raise KeyboardInterrupt
        return Measurement(task.kind, task.size, (1.0,))

    going = made(measure)
    going.all([one("a"), one("b"), one("c", group="g")])
    assert going.interrupted
    assert [each.size["name"] for each in going.measurements] == ["a"]
    assert [each.label for each in going.left_out] == ["b", "c"]


@pytest.mark.parametrize(
    ("name", "chip"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA A100-SXM4-40GB", "a100_40g"),
        ("NVIDIA A800-SXM4-80GB", "a800"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA H200", "h200"),
        ("Ascend910B3", "ascend_910b3"),
        ("AMD EPYC (2 CPUs)", None),
    ],
)
def test_entries_are_guessed_from_the_drivers_names(name: str, chip: str | None) -> None:
    found = guessed_entry(name)
    assert (found and found.name) == chip


def test_every_name_leads_to_an_entry_and_an_unknown_one_to_the_nearest() -> None:
    from cpsolver.doors.profile.chip_file import _patterns

    assert {chip for _, chip in _patterns() if chip} <= set(chip_names())
    assert "h100" in similar_entries("NVIDIA H100 PCIe")


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(InputError) as caught:
        resolve_request(asked(model="lama2-7b", tp="0,x", precision="bf61", peak_tflops="bf16", replaces="h10O"))
    wrong = {each.where: each for each in caught.value.troubles}
    assert set(wrong) == {"--model", "--tp", "--precision", "--peak-tflops", "--replaces"}
    assert "llama2-7b" in wrong["--model"].nearest
    assert wrong["--precision"].nearest == ("bf16",)
    assert "h100" in wrong["--replaces"].nearest


def test_no_model_at_all_is_bad_input() -> None:
    assert run("profile", "--model", "").exit_code == 2


def test_a_size_that_divides_nothing_is_refused_and_one_among_others_left_out() -> None:
    assert resolve_request(asked(tp="2,7")).wanted.tp == (2,)
    with pytest.raises(InputError, match="no size divides llama2-7b"):
        resolve_request(asked(tp="7"))


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else there(name))
    result = run("profile", "--json")
    assert result.exit_code == 2
    assert "pip install 'apss-cp[profile]'" in result.stderr
    assert "apss-cp[profile]" in json.loads(result.stdout)["troubles"][0]["message"]


def test_bad_options_end_with_2_before_torch_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "require_torch", lambda: pytest.fail("looked for"))
    result = run("profile", "--model", "nothing", "--peak-tflops", "bf16=-1")
    assert result.exit_code == 2
    assert "--model" in result.stderr
    assert "--peak-tflops" in result.stderr


def test_spread_is_the_distance_of_the_quartiles() -> None:
    each = Measurement("gemm", {}, (1.0, 0.9, 1.1, 5.0, 0.95))
    assert each.median_s == 1.0
    assert np.isclose(each.spread, 1.1 - 0.95)
    assert gemm(1, 1, 1, 1.0).spread == 0.0
