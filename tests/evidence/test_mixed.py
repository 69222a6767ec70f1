"""Measured runs on several chip types: read, placed by kinds of replicas, predicted, and in which order."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any

import pytest

from benchmarks.mixed import OUTPUT, document
from cpsolver.evidence.intervals import UNSEEN
from cpsolver.evidence.runs.mixed import placed_replicas, predict_mixed, stated
from cpsolver.evidence.runs.plan import Unpredictable, placed_plan
from cpsolver.evidence.runs.ranking import kendall_tau
from cpsolver.evidence.runs.run import MeasuredRun
from cpsolver.evidence.runs.table import MIXED, read_runs
from cpsolver.evidence.runs.validation import predict, validate
from cpsolver.profiles.constants import load_calibration
from tests.support.measured import runs, table

V100_T4 = {
    "model": "GPT2-345M",
    "layers": 24,
    "hidden": 1024,
    "ffn": 4096,
    "heads": 16,
    "kv_heads": 16,
    "vocab": 52256,
    "seq_len": 1024,
    "gated_mlp": 0,
    "chip": "v100_16g:12,t4:4",
    "gpus_per_node": 4,
    "internode_gbps_per_gpu": 2.5,
    "tp": 1,
    "pp": 2,
    "dp": 8,
    "gbs": 32,
    "sequence_parallel": 0,
    "sharding": "none",
    "flash_attention": 0,
    "precision": "fp16",
    "framework": "DeepSpeed Megatron-LM v1.1.5 3D",
    "recompute": "",
    "complete": 0,
}
STAGES = {**V100_T4, "chip": "t4:4,v100_16g:12", "stages": '[[["T4", 2], ["t4", 2]], [["v100", 4], ["v100_16g", 8]]]'}
STAGES |= {"tp": 8, "dp": 2}


def trouble(tmp_path: Path, **changes: Any) -> str:
    path = tmp_path / "wrong.csv"
    path.write_text(table({**STAGES, **changes}), encoding="utf-8")
    return str(read_runs(path).troubles[0])


def one(tmp_path: Path, **changes: Any) -> MeasuredRun:
    return runs(tmp_path, {**V100_T4, **changes})[0]


def test_chips_with_counts_and_stages_are_read_by_the_catalogues_names(tmp_path: Path) -> None:
    (run,) = runs(tmp_path, STAGES)
    assert run.chips == (("t4", 4), ("v100_16g", 12))
    assert run.stages == ((("t4", 2), ("t4", 2)), (("v100_16g", 4), ("v100_16g", 8)))
    assert run.mixed
    assert not runs(tmp_path, {})[0].mixed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"chip": "v100_16g:12,t5:4", "stages": ""}, "unknown chip"),
        ({"chip": "v100_16g:12,t4:four", "stages": ""}, "is no list of chips with counts"),
        ({"chip": "t4:4,v100_16g:8"}, "has 12 devices in all, and num_gpus is 16"),
        ({"chip": "t4:8,t4:8", "stages": "", "tp": 1, "dp": 8}, "names a chip type twice"),
        ({"chip": "t4:8,v100_16g:8"}, "use other devices than chip has: t4 4, v100_16g 12"),
        ({"stages": "[[[1, 2]]]"}, "is no list of stages"),
        ({"stages": '[["t4", 2]]'}, "is no list of stages"),
        ({"stages": "[[["}, "is no list of stages"),
        ({"stages": "[" * 20_000}, "is no list of stages"),
        ({"stages": '[[["t4", 4], ["v100_16g", 12]]]'}, "has 1 entries, and pp is 2"),
        ({"dp": 4}, "is 4, and a stage has 2 replicas"),
        ({"layers_per_stage": "12 13"}, "has 25 layers in all, and the model has 24"),
    ],
)
def test_what_contradicts_itself_is_told(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    assert message in trouble(tmp_path, **changes)


def test_replicas_that_share_no_number_are_refused(tmp_path: Path) -> None:
    stages = [[["v100_16g", 2]] * 3, [["t4", 2]] * 2 + [["v100_16g", 6]] * 0]
    told = trouble(tmp_path, stages=json.dumps(stages), chip="v100_16g:6,t4:4", num_gpus=10, dp=3, tp=2, gbs=30)
    assert "has stages of 3, 2 replicas: no shares of 3" in told


def test_what_a_row_leaves_open_is_its_frameworks_or_assumed_and_told(tmp_path: Path) -> None:
    run = one(tmp_path, precision="", sharding="", flash_attention="")
    filled, assumed = stated(run)
    assert (filled.recompute, filled.sharding, filled.flash_attention) == ("none", "none", False)
    assert filled.precision == "fp16"  # neither chip has bf16 tensor cores
    assert assumed == ("sharding", "flash_attention", "precision")  # recompute: its script says so
    sailor, own = stated(replace(run, framework="Sailor (Megatron-DeepSpeed)"))
    assert (sailor.precision, own) == ("fp32", ())
    other, _ = stated(replace(run, framework="", chip="a100:8,rtx_3090:8"))
    assert other.precision == "bf16"
    old, _ = stated(replace(run, framework="", chip="p40:8,t4:8"))
    assert old.precision == "fp32"


def test_a_framework_without_a_stack_is_taken_for_the_default_one(tmp_path: Path) -> None:
    strange = predict_mixed(one(tmp_path, framework="a prototype of ours", recompute="none"))
    assert strange.assumed == ("framework",)
    plain = predict_mixed(one(tmp_path, framework="", recompute="none"))
    assert (strange.stack, strange.step_time_s) == (plain.stack, plain.step_time_s)
    assert strange.high_s > plain.high_s


def test_replicas_may_differ_in_tp_and_stages_in_their_number(tmp_path: Path) -> None:
    (run,) = runs(tmp_path, STAGES)
    mixed = placed_replicas(run).plan
    assert [[mesh.tp for mesh in kind.strategy.stage_meshes] for kind in mixed.kinds] == [[2, 4], [2, 8]]
    fewer = {"stages": '[[["t4", 1], ["t4", 1], ["t4", 1], ["t4", 1]], [["v100", 4], ["v100", 8]]]', "dp": 4}
    (uneven,) = runs(tmp_path, {**STAGES, **fewer})
    assert [kind.replicas for kind in placed_replicas(uneven).plan.kinds] == [2, 2]
    assert predict_mixed(uneven).step_time_s > 0


def test_without_stages_ranks_follow_the_nodes(tmp_path: Path) -> None:
    """Ranks 0 to 11 are V100s: the second of two stages has four of them and four T4s."""
    plan = placed_replicas(one(tmp_path)).plan
    kinds = [(kind.strategy.stage_chips, kind.replicas) for kind in plan.kinds]
    assert kinds == [(("v100_16g", "v100_16g"), 4), (("v100_16g", "t4"), 4)]
    assert plan.kinds[0].strategy.layers == (12, 12)


def test_a_tensor_parallel_group_of_two_chip_types_is_beyond_the_model(tmp_path: Path) -> None:
    run = one(tmp_path, chip="v100_16g:14,t4:2", tp=4, pp=1, dp=4)
    with pytest.raises(Unpredictable, match="tensor-parallel groups of several chip types"):
        placed_replicas(run)
    with pytest.raises(Unpredictable, match="several chip types"):
        placed_plan(run)


def test_embedding_and_head_may_be_counted_as_layers(tmp_path: Path) -> None:
    run = one(tmp_path, layers_per_stage="12 14")
    assert {kind.strategy.layers for kind in placed_replicas(run).plan.kinds} == {(11, 13)}
    plain = one(tmp_path, layers_per_stage="12 12")
    assert {kind.strategy.layers for kind in placed_replicas(plain).plan.kinds} == {(12, 12)}
    with pytest.raises(Unpredictable, match="no layer to count"):
        placed_replicas(one(tmp_path, layers_per_stage="0 26"))


def test_hosts_are_as_the_source_measured_them(tmp_path: Path) -> None:
    """Eight RTX 3090 reach 1.64 GB/s together; the port of 1 Gbit/s is that of all eight."""
    row = {"chip": "rtx_3090:8,rtx_2080:8", "gpus_per_node": 8, "internode_gbps_per_gpu": "", "precision": ""}
    run = one(tmp_path, **row, tp=8, pp=1, dp=2, framework="Sailor (Megatron-DeepSpeed)")
    problem = placed_replicas(run).problem
    ampere, turing = (problem.supply(name).chip for name in ("rtx_3090", "rtx_2080_ti"))
    assert ampere.scale_up_bandwidth_bytes_s * ampere.efficiency_value("all_reduce") == pytest.approx(1.64e9)
    assert turing.memory.capacity_gb == 11
    assert ampere.scale_out.bandwidth_gbit_s == turing.scale_out.bandwidth_gbit_s == 1 / 8
    given = placed_replicas(replace(run, internode_gbps_per_gpu=3.0)).problem
    assert given.supply("rtx_3090").chip.scale_out.bandwidth_gbit_s == 3.0


def test_the_interval_widens_by_what_no_run_has(tmp_path: Path) -> None:
    """Mixing, chips without a run; then an assumed precision."""
    group = load_calibration().residuals[UNSEEN["dense"]]
    run = one(tmp_path)
    known = predict_mixed(run)
    assert known.high_s == pytest.approx(known.step_time_s * exp(1.5**2 * group.high))
    assert known.low_s == pytest.approx(known.step_time_s * exp(1.5**2 * group.low))
    open_ = predict_mixed(replace(run, precision=None))
    assert (open_.assumed, open_.step_time_s) == (("precision",), known.step_time_s)
    assert open_.high_s == pytest.approx(known.step_time_s * exp(1.5**3 * group.high))


def test_rows_on_several_chips_are_predicted_though_marked_incomplete(tmp_path: Path) -> None:
    found = validate([one(tmp_path), *runs(tmp_path, {"complete": 0})], predict)
    assert [outcome.skipped for outcome in found.outcomes] == [None, "incomplete: the table marks it so"]
    lacking = validate([one(tmp_path, vocab="")], predict)
    assert [outcome.skipped for outcome in lacking.outcomes] == ["incomplete: vocab"]


def test_the_page_of_mixed_runs_is_of_today() -> None:
    found = read_runs(MIXED)
    page = document(validate(found.runs, predict, troubles=found.troubles))
    assert OUTPUT.read_text(encoding="utf-8") == page, "python -m benchmarks.mixed writes it"


def test_published_mixes_are_in_order() -> None:
    """Nothing is fitted to them: AMP's sixteen layouts on V100 and T4, Sailor's three on consumer cards."""
    found = read_runs(MIXED)
    scored = validate(found.runs, predict, troubles=found.troubles).scored
    assert len(scored) == 19
    amp = [each for each in scored if each.run.source.startswith("AMP")]
    tau = kendall_tau([each.measured_s for each in amp], [each.prediction.step_time_s for each in amp])
    assert tau is not None
    assert tau >= 0.7
    assert sum(each.inside for each in scored) >= 16
