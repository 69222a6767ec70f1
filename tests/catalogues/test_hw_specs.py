from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from hw_specs import (
    EFFICIENCY_NAMES,
    Chip,
    UnknownChipError,
    UnknownFigureError,
    chip_names,
    complete_chip,
    list_chips,
    load_chip,
    units,
    unusable_reasons,
)

NAMES = chip_names()
MEASURED = [
    "a100",
    "a100_40g",
    "a800",
    "h100",
    "h800",
    "h200",
    "h100_96g_500w",
    "gh200",
    "b200",
    "gb200",
    "gb300",
    "b300",
    "ascend_910b",
    "kunlun3",
    "h20",
    "v100_32g",
    "v100_16g",
    "t4",
    "rtx_3090",
    "rtx_2080",
    "titan_rtx",
]


def own(**changes: Any) -> dict[str, Any]:
    return {
        "name": "mine",
        "peak_tflops": {"bf16": 400},
        "memory": {"capacity_gb": 64, "bandwidth_gb_s": 1600},
        "scale_up": {"bandwidth_gb_s": 200},
        "scale_out": {"bandwidth_gbit_s": 200},
        **changes,
    }


@pytest.mark.parametrize("name", NAMES)
def test_file_is_named_after_its_chip_and_complete(name: str) -> None:
    chip = load_chip(name)
    assert chip.name == name
    assert chip.sources
    assert set(chip.efficiency) == set(EFFICIENCY_NAMES)


def within(low: float, high: float, value: float | None) -> bool:
    return value is None or low <= value <= high


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_in_the_units_they_claim(name: str) -> None:
    chip = load_chip(name)
    assert within(50, 10_000, chip.peak_tflops.bf16)
    assert within(6, 600, chip.memory.capacity_gb)
    assert within(240, 30_000, chip.memory.bandwidth_gb_s)
    assert within(16, 2_000, chip.scale_up.bandwidth_gb_s)
    assert within(10, 2_000, chip.scale_out.bandwidth_gbit_s)
    if chip.memory.usable_gib is not None:
        assert chip.memory.usable_source
        assert 0.9 < units.gib_to_bytes(chip.memory.usable_gib) / units.gb_to_bytes(chip.memory.capacity_gb or 0) < 1.08
    if chip.compute_units is not None:
        assert chip.compute_units_source
    for figure in ("memory", "network", "gemm_bf16", "attention_forward"):
        assert 0.2 <= chip.efficiency_value(figure) <= 1
    assert chip.efficiency_value("attention_backward") <= chip.efficiency_value("attention_forward")


def test_no_two_chips_answer_to_one_name() -> None:
    claims = [claim for chip in list_chips() for claim in (chip.name, *chip.aliases)]
    assert len(claims) == len(set(claims))


def test_catalogue_holds_the_chips_of_the_measured_runs() -> None:
    assert set(MEASURED) <= set(NAMES)
    assert len(NAMES) >= 63


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("A100-SXM-80GB", "a100"),
        ("v100_sxm2_32gb", "v100_32g"),
        ("p800", "kunlun3"),
        ("kl3", "kunlun3"),
        ("kunlun3_p800", "kunlun3"),
        ("ascend_910b2", "ascend_910b"),
        ("gb200_nvl72", "gb200"),
    ],
)
def test_aliases(alias: str, name: str) -> None:
    assert load_chip(alias).name == name


def test_unknown_chip_gives_the_nearest() -> None:
    with pytest.raises(UnknownChipError, match="a800") as caught:
        load_chip("a80")
    assert "a800" in caught.value.nearest
    with pytest.raises(KeyError):
        load_chip("../a800")


@pytest.mark.parametrize("name", ["a800", "h800"])
def test_export_chips_have_200_gb_s_one_way(name: str) -> None:
    assert load_chip(name).scale_up_bandwidth_bytes_s == 200e9


def test_910b_mesh_is_196_gb_s_one_way_and_28_a_pair() -> None:
    chip = load_chip("ascend_910b")
    assert chip.scale_up_bandwidth_bytes_s == 196e9
    assert chip.peer_bandwidth_bytes_s == 28e9
    assert chip.scale_up.topology == "mesh"
    assert "910B2" in (chip.notes or "")


@pytest.mark.parametrize(
    ("name", "tflops"),
    [("ascend_910b1", 373.9), ("ascend_910b", 353.9), ("ascend_910b3", 294.9), ("ascend_910b4", 245.8)],
)
def test_910b_peaks_leave_the_vector_unit_out(name: str, tflops: float) -> None:
    assert load_chip(name).peak_tflops.bf16 == load_chip(name).peak_tflops.fp16 == tflops


def test_peaks_are_dense() -> None:
    assert load_chip("h100").peak_flops("bf16") == 989e12
    assert load_chip("a100").peak_flops("bf16") == 312e12
    assert load_chip("a100").peak_flops("fp16") == 312e12


def test_rack_scale_fabrics_span_nodes() -> None:
    spanning = {chip.name for chip in list_chips() if chip.scale_up.spans_nodes}
    assert {"gb200", "gb300", "ascend_910c"} <= spanning
    assert not spanning & {"a100", "h100", "b200", "ascend_910b", "kunlun3"}


def test_memory_is_what_the_framework_sees_where_that_is_known() -> None:
    assert load_chip("h100").memory_capacity_bytes == pytest.approx(79.11 * 2**30)
    assert load_chip("kunlun3").memory_capacity_bytes == 96e9


def test_all_reduce_figures_reproduce_the_two_measured_payloads() -> None:
    chip = load_chip("a100")
    peak = chip.efficiency_value("all_reduce") * chip.scale_up_bandwidth_bytes_s
    half = chip.collective_half_payload_bytes
    for payload_mib, gb_s in ((16, 135.6), (512, 222.3)):
        payload = units.mib_to_bytes(payload_mib)
        assert peak * payload / (payload + half) == pytest.approx(gb_s * 1e9, rel=0.01)


def test_own_figure_beats_vendor_default_beats_default() -> None:
    chip = complete_chip(own(vendor="huawei", efficiency={"gemm_bf16": 0.66}))
    assert (chip.efficiency["gemm_bf16"].value, chip.efficiency["gemm_bf16"].origin) == (0.66, "chip")
    assert chip.efficiency["memory"].origin == "vendor default"
    assert chip.efficiency["network_latency_us"].origin == "default"


def test_own_chip_needs_six_figures() -> None:
    chip = complete_chip(own())
    assert unusable_reasons(chip) == ()
    assert set(chip.efficiency) == set(EFFICIENCY_NAMES)
    assert chip.memory_capacity_bytes == 64e9
    assert chip.memory_bandwidth_bytes_s == 1.6e12
    assert chip.peer_bandwidth_bytes_s == chip.scale_up_bandwidth_bytes_s == 200e9
    assert chip.scale_out_bandwidth_bytes_s == 25e9
    assert chip.kernel_latency_s == pytest.approx(4e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"efficiency": {"gemm": 0.5}}, "unknown efficiency gemm"),
        ({"efficiency": {"memory": 80}}, "is a fraction"),
        ({"efficiency": 0.5}, "efficiency"),
        ({"scale_up": {"bandwidth_gb_s": 100, "peer_bandwidth_gb_s": 200}}, "is more than bandwidth_gb_s"),
        ({"memory": {"capacity_gb": -1}}, "capacity_gb"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_impossible_chips_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        complete_chip(own(**changes))


@pytest.mark.parametrize(
    ("name", "dtype", "word"),
    [
        ("metax_c550", "bf16", "bf16"),
        ("hygon_bw1000", "bf16", "scale-up"),
        ("mtt_s4000", "bf16", "network"),
        ("a100", "fp8", "fp8"),
        ("v100_32g", "bf16", "bf16"),
    ],
)
def test_unusable_reasons(name: str, dtype: Any, word: str) -> None:
    assert any(word in reason for reason in unusable_reasons(load_chip(name), dtype))


def test_usable_chips_have_no_reason() -> None:
    for name in ("a100", "a800", "h800", "kunlun3", "ascend_910b", "b200", "gb300"):
        assert unusable_reasons(load_chip(name)) == ()
    assert unusable_reasons(load_chip("v100_32g"), "fp16") == ()


@pytest.mark.parametrize(
    "ask",
    [
        lambda chip: chip.peak_flops("bf16"),
        lambda chip: chip.scale_up_bandwidth_bytes_s,
        lambda chip: chip.scale_out_bandwidth_bytes_s,
    ],
)
def test_asking_for_an_unknown_figure_names_it(ask: Callable[[Chip], float]) -> None:
    with pytest.raises(UnknownFigureError, match="metax_c550"):
        ask(load_chip("metax_c550"))


def test_unit_conversions() -> None:
    assert units.gbit_s_to_bytes_s(400) == units.gb_s_to_bytes_s(50) == 50e9
    assert units.gib_to_bytes(1) == 2**30
    assert units.bytes_to_gib(2**31) == 2
    assert units.mib_to_bytes(1) == 2**20
    assert units.tflops_to_flops(2) == 2e12
    assert units.microseconds_to_seconds(3) == pytest.approx(3e-6)


def test_loading_one_chip_scans_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from hw_specs import catalogue

    catalogue._load_file.cache_clear()
    monkeypatch.setattr(catalogue, "_files", lambda: pytest.fail("scanned the catalogue"))
    assert load_chip("a800").vendor == "nvidia"


def test_later_dies_of_a_family_are_told_apart() -> None:
    found = {
        name: (load_chip(name).architecture, load_chip(name).variant) for name in ("b200", "gb200", "b300", "gb300")
    }
    assert set(found.values()) == {("blackwell", None), ("blackwell", "blackwell_ultra")}
    assert {name for name, (_, variant) in found.items() if variant} == {"b300", "gb300"}
