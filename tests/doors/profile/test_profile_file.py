"""Figures from measurements, the chip file, the comparison and the journal of `apss-cp profile`: no PyTorch needed."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ruamel.yaml import YAML

from cpsolver.cost.collectives import collective_seconds as model_seconds
from cpsolver.cost.memory import layer_bytes
from cpsolver.cost.shard import Shard
from cpsolver.doors.profile.chip_file import DeviceFacts, chip_fields, chip_text, missing
from cpsolver.doors.profile.compare import byte_comparisons, comparison, gemm_comparisons
from cpsolver.doors.profile.efficiencies import (
    AttentionWork,
    GivenPeaks,
    fit_bandwidth,
    fit_half_payload,
    measured_efficiencies,
    peaks,
)
from cpsolver.doors.profile.journal import Journal
from cpsolver.doors.profile.settings import settings
from cpsolver.doors.profile.task import Measurement, MeasurementSet, Size
from cpsolver.inputs.errors import InputError
from cpsolver.problem.resolve import resolve
from cpsolver.spec.spec import Spec
from hw_specs import Chip, complete_chip, load_chip
from tests.support.command import in_tmp, run, write
from tests.support.profiled import DEVICE, attention, collective, collective_seconds, gemm, measured, memory, problem

__all__ = ["in_tmp"]
FACTS = DeviceFacts("cuda", 80e9, 132, 8, "measured 2026-11-22 on NVIDIA H100 80GB HBM3 (driver 570, torch 2.9.0)")
NOTHING = GivenPeaks({})
WORK = AttentionWork(causal=0.5, masked_keys=200, backward=2.5)
PAYLOADS = settings().payload_bytes["cuda"]


def values(found: MeasurementSet, entry: Chip | None = None, given: GivenPeaks = NOTHING) -> dict[str, float]:
    got, _ = measured_efficiencies(found, peaks(entry, given, found, settings()), settings(), WORK)
    return {each.name: each.value for each in got}


def fields(found: MeasurementSet, entry: Chip | None, given: GivenPeaks = NOTHING) -> dict[str, object]:
    known = peaks(entry, given, found, settings())
    return chip_fields("ours", entry, measured_efficiencies(found, known, settings(), WORK)[0], known, given, FACTS)


# Figures.


def test_products_count_from_the_large_dimension_on() -> None:
    rate = 0.5 * 989e12
    large, small = gemm(4096, 8192, 4096, 2 * 4096 * 8192 * 4096 / rate), gemm(256, 256, 256, 1.0)
    assert values(measured(large, small), load_chip("h100"))["gemm_bf16"] == pytest.approx(0.5)


def test_without_large_products_the_largest_count_and_the_source_says_so() -> None:
    found = measured(gemm(256, 256, 256, 2 * 256**3 / 1e9), gemm(64, 64, 64, 1.0))
    got, _ = measured_efficiencies(found, peaks(None, GivenPeaks({"bf16": 0.002}), found, settings()), settings(), WORK)
    assert got[0].value == pytest.approx(0.5)
    assert "none has m, n, k >= 4096" in got[0].source
    assert "of the user" in got[0].source


def test_attention_counts_the_causal_half_keys_in_vain_and_backward_two_and_a_half_times() -> None:
    flops = 2 * 32 * 4096 * 256 * (2048 + 200)
    found = measured(attention("forward", 4096, 1e-3), attention("backward", 4096, 4e-3), gemm(1, 1, 1, 1.0))
    got = values(found, load_chip("h100"))
    assert got["attention_forward"] == pytest.approx(flops / 1e-3 / 989e12)
    assert got["attention_backward"] == pytest.approx(2.5 * flops / 4e-3 / 989e12)


def test_memory_counts_every_tensor_read_or_written_once() -> None:
    found = measured(memory("copy", 10**9, 1e-3), memory("add", 10**9, 1.5e-3))  # both 2 TB/s
    assert values(found, load_chip("h100"))["memory"] == pytest.approx(2e12 / 3350e9)


def reduces(name: str = "all_reduce", bandwidth: float = 360e9) -> list[Measurement]:
    half = 8 * 2.0**20
    return [collective(name, p, collective_seconds(name, p, bandwidth, half, 20e-6)) for p in PAYLOADS]


def test_the_fit_finds_what_the_cost_models_formula_was_given() -> None:
    points = [(each.number("payload"), each.median_s) for each in reduces()]
    half = fit_half_payload(points, 8, 20e-6, settings().half_payload_mib)
    assert half is not None
    assert half == pytest.approx(8 * 2.0**20, rel=0.05)
    fit = fit_bandwidth(points, "all_reduce", 8, 20e-6, half)
    assert fit is not None
    assert fit.bandwidth == pytest.approx(360e9, rel=0.02)
    assert fit_bandwidth([(1024, 1e-5)], "all_reduce", 8, 1.0, half) is None


def test_collectives_are_over_the_fabrics_one_way_bandwidth() -> None:
    got = values(measured(*reduces(), *reduces("all_gather", 315e9)), load_chip("h100"))
    assert got["all_reduce"] == pytest.approx(0.8, rel=0.02)
    assert got["all_gather"] == pytest.approx(0.7, rel=0.02)
    assert got["collective_half_payload_mib"] == pytest.approx(8, rel=0.05)
    assert got["collective_latency_us"] == pytest.approx(20, rel=0.01)


def test_planning_with_the_file_gives_back_the_seconds_that_were_measured() -> None:
    listed = [each for name in ("all_reduce", "reduce_scatter") for each in reduces(name)]
    chip = complete_chip(fields(measured(*listed), load_chip("h100")))
    text = {"model": "llama2-7b", "cluster": {"num_gpus": 8, "chips": ["h100"]}}
    spec = Spec.model_validate({**text, "training": {"global_batch_size": 8, "sequence_length": 4096}})
    eight, one = np.array([8]), np.array([1])
    for each in listed[1:]:
        kind, payload = str(each.size["collective"]), np.array([float(each.number("payload"))])
        predicted = model_seconds(resolve(spec), chip, kind, payload, eight, one)  # type: ignore[arg-type]
        assert predicted[0] == pytest.approx(each.median_s, rel=0.03)


def test_a_rate_far_above_the_peak_is_refused_and_told() -> None:
    found = measured(gemm(4096, 4096, 4096, 2 * 4096**3 / 3e15))
    got, odd = measured_efficiencies(found, peaks(load_chip("h100"), NOTHING, found, settings()), settings(), WORK)
    assert not got
    assert odd[0].label == "gemm_bf16"
    assert "--replaces" in odd[0].reason


# The chip file.


def test_what_is_not_measured_comes_from_the_entry_and_says_so() -> None:
    entry = load_chip("h100")
    made = complete_chip(fields(measured(gemm(4096, 4096, 4096, 2 * 4096**3 / 6e14)), entry))
    assert made.efficiency["gemm_bf16"].confidence == "measured"
    assert "2026-11-22" in made.efficiency["gemm_bf16"].source
    for name in ("network", "all_reduce", "memory"):
        assert made.efficiency[name].value == entry.efficiency[name].value
        assert made.efficiency[name].confidence == entry.efficiency[name].confidence
        assert made.efficiency[name].source.startswith("not measured here; the catalogue's h100")
    assert made.scale_out == entry.scale_out
    assert not made.aliases


def test_the_file_is_read_back_as_it_was_and_a_spec_takes_it() -> None:
    made = fields(measured(gemm(4096, 4096, 4096, 2 * 4096**3 / 6e14)), load_chip("h100"))
    text = chip_text(made, FACTS)
    assert YAML(typ="safe").load(text) == made
    write("ours.yaml", text)
    write("spec.yaml", "model: llama2-7b\ncluster: {num_gpus: 8, chips: {ours: {file: ours.yaml}}}\n"
          "training: {global_batch_size: 8, sequence_length: 4096}\nsearch: {top: 1}\n")  # fmt: skip
    assert run("solve", "spec.yaml", "--json").exit_code == 0


def test_a_name_with_a_line_break_stays_in_the_comment() -> None:
    made = {**fields(measured(gemm(4096, 4096, 4096, 2 * 4096**3 / 6e14)), load_chip("h100")), "name": "a\nb: 1"}
    text = chip_text(made, replace(FACTS, measured_on="device\nmemory: 0"))
    assert [line[0] for line in text.splitlines()[:2]] == ["#", "#"]
    assert YAML(typ="safe").load(text) == made


def test_a_device_without_an_entry_has_what_was_seen_and_tells_what_is_missing() -> None:
    made = fields(measured(gemm(256, 256, 256, 2 * 256**3 / 1e9), memory("copy", 10**8, 1e-2)), None)
    assert made["peak_tflops"] == {"bf16": pytest.approx(0.001)}
    assert made["memory"]["bandwidth_gb_s"] == pytest.approx(20)  # type: ignore[index]
    assert len(missing(made)) == 2
    given = GivenPeaks({}, fabric_gb_s=10, network_gbit_s=10)
    assert not missing(fields(measured(gemm(256, 256, 256, 1.0), memory("copy", 10**8, 1e-2)), None, given))


def test_the_users_peaks_take_the_entrys_place() -> None:
    given = GivenPeaks({"bf16": 500.0}, memory_gb_s=2000, fabric_gb_s=200, network_gbit_s=100)
    made = complete_chip(fields(measured(gemm(4096, 4096, 4096, 2 * 4096**3 / 4e14)), load_chip("h100"), given))
    assert made.efficiency_value("gemm_bf16") == pytest.approx(0.8)
    assert made.peak_flops("bf16") == 5e14
    assert (made.memory_bandwidth_bytes_s, made.scale_up_bandwidth_bytes_s) == (2e12, 2e11)
    assert made.peer_bandwidth_bytes_s == 2e11
    assert made.scale_out_bandwidth_bytes_s == 1.25e10


def test_the_comparison_has_the_catalogues_the_planned_and_the_measured() -> None:
    entry, found = load_chip("h100"), measured(gemm(4096, 4096, 4096, 2 * 4096**3 / (0.6 * 989e12)))
    got, _ = measured_efficiencies(found, peaks(entry, NOTHING, found, settings()), settings(), WORK)
    rows = {row.name: row for row in comparison(entry, got)}
    assert rows["gemm_bf16"].ratio == pytest.approx(0.6 / 0.8)
    assert rows["gemm_bf16"].planned != rows["gemm_bf16"].catalogue
    assert rows["memory"].measured is None
    assert [row.name for row in comparison(None, got)] == ["gemm_bf16"]


# The cost model beside what was measured.


def test_products_are_held_against_the_cost_model_with_the_measured_chip() -> None:
    rate = 0.6 * 989e12
    found = measured(gemm(8192, 8192, 8192, 2 * 8192**3 / rate))
    (pair,) = gemm_comparisons(problem(), complete_chip(fields(found, load_chip("h100"))), found)
    assert pair.measured == pytest.approx(2 * 8192**3 / rate)
    assert 0.85 < pair.ratio < 1.0  # the model takes off what depth and tiles cost


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_bytes_of_a_layer_are_the_memory_models(recompute: str) -> None:
    from cpsolver.cost.kinds import layer_kinds

    size: Size = {"tokens": 4096, "attention": "unfused", "recompute": recompute}
    one = problem()
    (pair,) = byte_comparisons(one, measured(Measurement("layer_bytes", size, bytes=1.0)))
    kept = layer_bytes(one, Shard.of(1, 1, False, False), layer_kinds(one.model)[0])
    scores = 2 * one.model.heads * 4096**2
    expected = {"none": kept.full[0], "selective": kept.full[0] - scores, "full": kept.checkpoint[0]}
    assert pair.predicted == pytest.approx(expected[recompute])


# The journal.


def kept(path: Path, quick: bool = False) -> dict[str, Measurement]:
    """The measurements that a journal gives back."""
    with closing(Journal(path, DEVICE, quick)) as journal:
        return journal.measurements


def test_a_journal_gives_back_what_it_was_given() -> None:
    path, one = Path("j.jsonl"), gemm(1, 2, 3, 0.5)
    journal = Journal(path, DEVICE)
    journal.add(one)
    journal.close()
    assert kept(path) == {one.key: one}


def test_half_a_line_and_a_damaged_one_are_not_there_and_the_next_begins_anew() -> None:
    path, one, two = Path("j.jsonl"), gemm(1, 2, 3, 0.5), gemm(4, 5, 6, 0.25)
    journal = Journal(path, DEVICE)
    journal.add(one)
    journal.close()
    with path.open("a") as file:
        file.write('{"kind": "gemm"}\n{"kind": "ge')
    again = Journal(path, DEVICE)
    assert list(again.measurements) == [one.key]
    again.add(two)
    again.close()
    assert list(kept(path)) == [one.key, two.key]
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_a_full_run_does_not_take_what_was_measured_quickly() -> None:
    path, one = Path("j.jsonl"), gemm(1, 2, 3, 0.5)
    journal = Journal(path, DEVICE, quick=True)
    journal.add(one)
    journal.close()
    assert list(kept(path, quick=True)) == [one.key]
    assert not kept(path)


@pytest.mark.parametrize(
    ("changed", "told"), [({"device": "NVIDIA A100"}, "A100"), ({"torch": "2.6.0"}, "torch 2.9.0")]
)
def test_another_devices_journal_is_refused_and_left_alone(changed: dict[str, str], told: str) -> None:
    path = Path("j.jsonl")
    Journal(path, DEVICE).close()
    before = path.read_bytes()
    with pytest.raises(InputError, match="another --output") as caught:
        Journal(path, {**DEVICE, **changed})
    assert told in str(caught.value)
    assert path.read_bytes() == before


def test_a_file_that_is_no_journal_is_refused() -> None:
    path = Path("j.jsonl")
    path.write_text("something else\n")
    with pytest.raises(InputError, match="no journal"):
        Journal(path, DEVICE)
