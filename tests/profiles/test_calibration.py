"""Fitted factors laid over the catalogue: what they scale, and where they stop."""

from __future__ import annotations

import pytest

from cpsolver.profiles.constants import ALL, Calibration, load_calibration
from hw_specs import complete_chip, load_chip
from tests.support.fitted import entry
from tests.support.problems import chip_spec


def test_no_factor_takes_an_efficiency_above_the_peak() -> None:
    """0.8 * 1.1 = 0.88 stays, 0.9 * 1.1 * 1.2 = 1.188 is cut to 1; 1.2 of the fabric (sums made in the switch) is
    catalogued: 1.2 * 1.1 goes back to 1.2, and 1.2 * 0.5 = 0.6 is not cut."""
    efficiency = {"gemm_bf16": 0.8, "gemm_fp8": 0.9, "all_reduce": 1.2, "all_gather": 0.95}
    chip = complete_chip({"name": "x", **chip_spec(efficiency=efficiency, architecture="a")})
    chips = {ALL: {"gemm": entry(1.1, 9), "fabric": entry(1.1, 9)}, "a": {"gemm_fp8": entry(1.2, 9)}}
    scaled = Calibration(name="test", method="made up", chips=chips, stacks={}).chip(chip)
    expected = {"gemm_bf16": 0.88, "gemm_fp8": 1.0, "all_reduce": 1.2, "all_gather": 1.0}
    assert {name: scaled.efficiency_value(name) for name in expected} == pytest.approx(expected)
    lower = Calibration(name="test", method="", chips={"a": {"fabric": entry(0.5, 9)}}, stacks={}).chip(chip)
    assert lower.efficiency_value("all_reduce") == pytest.approx(0.6)


def test_the_published_factors_would_take_the_h20_above_its_peak() -> None:
    """Its fp8 products, times the factors of all chips' products and of those in fp8, are cut to 1; then Hopper's own.

    Kernels of a chip with little compute reach nearly all of it without the factor of others.
    """
    calibration, chip = load_calibration(), load_chip("h20")
    every, own = calibration.chips[ALL], calibration.chips["hopper"]
    product = chip.efficiency_value("gemm_fp8") * every["gemm"].value * every["gemm_fp8"].value
    assert product > 1.1
    assert calibration.chip(chip).efficiency_value("gemm_fp8") == pytest.approx(own["gemm"].value)
    assert own["gemm"].value < 1


def test_factors_of_a_variant_come_after_those_of_its_architecture() -> None:
    """0.5 * 1.1 of all chips * 0.9 of the family = 0.495; of the later die * 1.2 = 0.594; fp4 has its own."""
    chips = {
        ALL: {"gemm": entry(1.1, 9), "gemm_fp4": entry(1.5, 9)},
        "family": {"gemm": entry(0.9, 9)},
        "later": {"gemm": entry(1.2, 9)},
    }
    calibration = Calibration(name="test", method="", chips=chips, stacks={})
    efficiency = {"gemm_bf16": 0.5, "gemm_fp4": 0.5}
    fields = {"name": "x", **chip_spec(efficiency=efficiency, architecture="family")}
    first, later = complete_chip(fields), complete_chip({**fields, "variant": "later"})
    found = [calibration.chip(chip).efficiency_value(name) for name in efficiency for chip in (first, later)]
    assert found == pytest.approx([0.495, 0.594, 0.7425, 0.891])
