"""`apss-cp stacks`, and the fitted factors in `apss-cp chips`."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from cpsolver.doors.report import catalogue, stacks
from cpsolver.profiles.constants import load_calibration
from cpsolver.profiles.stack import Constants, load_stack, stack_names
from hw_specs import load_chip
from tests.support.command import in_tmp, run, write  # noqa: F401
from tests.support.fitted import FITTED


def plain(report: object, width: int = 80) -> str:
    text = io.StringIO()
    Console(file=text, width=width, highlight=False).print(report)
    assert max(map(len, text.getvalue().splitlines())) <= width
    assert "…" not in text.getvalue()
    return text.getvalue()


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (stacks, catalogue):
        monkeypatch.setattr(module, "load_calibration", lambda: FITTED)


def after(text: str, name: str) -> str:
    """What stands about a constant: its line and the indented ones below it, as one line."""
    lines = text[text.index(f"\n{name} ") + 1 :].splitlines()
    below = 1 + next((at for at, line in enumerate(lines[1:]) if not line.startswith("    ")), len(lines))
    return " ".join(" ".join(lines[:below]).split())


# stacks.


def test_the_list_names_every_stack_with_its_title() -> None:
    text = run("stacks").stdout
    flat = " ".join(text.split())
    for name in stack_names():
        assert f"\n{name}" in text
        assert load_stack(name).title in flat
    listed = json.loads(run("stacks", "--json").stdout)
    assert [entry["name"] for entry in listed] == list(stack_names())
    assert all(entry["title"] for entry in listed)


def test_the_list_says_which_stacks_were_measured(fitted: None) -> None:
    text = plain(stacks.stacks_report())
    assert "\nmegatron-core  measured runs: 30 on ampere\n" in text
    assert "\nnemo  measured runs: 40 on hopper\n" in text
    assert "\npaddlenlp\n" in text


@pytest.mark.parametrize("name", stack_names())
def test_one_stack_shows_every_constant_that_planning_uses(name: str) -> None:
    text = run("stacks", name).stdout
    used = load_calibration().stack(load_stack(name)).constants
    fields = json.loads(run("stacks", name, "--json").stdout)
    assert list(fields["constants"]) == list(Constants.model_fields)
    for constant in Constants.model_fields:
        entry = getattr(used, constant)
        assert after(text, constant).startswith(f"{constant} {entry.value:.4g} {entry.confidence} ")
        told = fields["constants"][constant]
        assert (told["value"], told["confidence"]) == (entry.value, entry.confidence)
        assert (told["fitted"] is not None) == (told["replaces"] is not None) == (entry.confidence == "fitted")


@pytest.mark.parametrize("name", ["megatron-core", "fsdp-composer", "fsdp-torchtitan"])
def test_one_stack_shows_what_its_framework_runs(name: str) -> None:
    text, told = run("stacks", name).stdout, json.loads(run("stacks", name, "--json").stdout)["runs"]
    runs = load_stack(name).runs
    assert (told is None) == (runs is None) == ("what it runs" not in text)
    for fact, source in runs.sources.items() if runs else ():
        value = getattr(runs, fact)
        assert told[fact] == {"value": list(value) if isinstance(value, tuple) else value, "source": source}
        assert source in after(text, fact)


def test_a_fitted_constant_says_runs_error_and_what_it_replaced(fitted: None) -> None:
    text = plain(stacks.stacks_report("megatron-core"))
    assert "3 of them fitted" in text
    own = after(text, "elementwise_traffic")
    assert own.startswith(
        "elementwise_traffic 2 fitted fitted to 30 published runs, standard error 0.2; replaces 1 (assumed: "
    )
    assert "standard error 0.075; replaces 0.9 (assumed" in after(text, "sharding_overlap")  # logit: 0.4 * 0.75 * 0.25
    assert "fitted to 12 published runs; replaces 0.08" in after(text, "allocator_overhead")
    shared = after(plain(stacks.stacks_report("nemo")), "elementwise_traffic")
    assert shared.startswith("elementwise_traffic 1.5 fitted fitted to 70 published runs, standard error 0.15;")


def test_a_fitted_constant_in_json(fitted: None) -> None:
    told = stacks.stacks_document("megatron-core")["constants"]
    assert told["elementwise_traffic"]["fitted"] == {"runs": 30, "standard_error": pytest.approx(0.2)}
    assert (
        told["elementwise_traffic"]["replaces"]
        == load_stack("megatron-core").constants.elementwise_traffic.model_dump()
    )
    assert told["allocator_overhead"]["fitted"] == {"runs": 12, "standard_error": None}
    assert told["gradient_bytes"]["fitted"] is told["gradient_bytes"]["replaces"] is None


def test_a_stack_has_what_it_is_fitted_with(fitted: None) -> None:
    own = FITTED.model_copy(update={"stacks": {"megatron-deepspeed-bloom": FITTED.stacks["megatron-core"]}})
    found = own.fitted_constants(load_stack("megatron-deepspeed-bloom-bf16"))
    assert {name: entry.value for name, entry in found.items()} == {
        "elementwise_traffic": 2,
        "allocator_overhead": 0.25,
    }


def test_an_unknown_stack_is_told_with_the_nearest() -> None:
    result = run("stacks", "megatron-cor")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "unknown software stack" in result.stderr
    assert "did you mean 'megatron-core'" in result.stderr
    troubles = json.loads(run("stacks", "megatron-cor", "--json").stdout)["troubles"]
    assert troubles[0]["nearest"][0] == "megatron-core"


def test_a_spec_with_an_unknown_stack_is_told_the_nearest() -> None:
    text = "model: llama2-7b\ncluster: {num_gpus: 8, chips: a800}\nstack: nem\n"
    spec = write("spec.yaml", text + "training: {global_batch_size: 8, sequence_length: 512}\n")
    result = run("solve", spec)
    assert result.exit_code == 2
    assert "spec.yaml:3:1 stack = 'nem': unknown software stack" in result.stderr
    assert "did you mean 'nemo'" in result.stderr


def test_the_starter_says_where_stacks_are_listed() -> None:
    assert "`apss-cp stacks`" in run("init", "-").stdout


# chips.


def test_a_chip_shows_the_value_that_planning_uses_beside_the_catalogues(fitted: None) -> None:
    chip = load_chip("a100")
    text = plain(catalogue.chips_report("a100"))
    gemm, memory = chip.efficiency["gemm_bf16"].value, chip.efficiency["memory"].value
    assert f"gemm_bf16 {gemm:.4g} {gemm * 0.6:.4g} 40 verified" in " ".join(text.split())
    assert f" memory {memory:.4g} {memory * 0.8:.4g} 80 secondary" in " ".join(text.split())
    network = chip.efficiency["network"].value
    assert f"network {network:.4g} {network:.4g} secondary" in " ".join(text.split())
    assert "all chips and of ampere" in " ".join(text.split())
    assert "no run of this architecture" in " ".join(plain(catalogue.chips_report("mi300x")).split())


def test_a_chip_in_json_has_its_factors(fitted: None) -> None:
    told = catalogue.chips_document("a100")
    value = told["efficiency"]["gemm_bf16"]["value"]
    assert told["calibrated"]["gemm_bf16"]["value"] == pytest.approx(0.6 * value)
    assert [factor["chips"] for factor in told["calibrated"]["gemm_bf16"]["factors"]] == ["all chips", "ampere"]
    assert [factor["runs"] for factor in told["calibrated"]["gemm_bf16"]["factors"]] == [90, 40]
    assert told["calibrated"]["gemm_bf16"]["factors"][1]["standard_error"] == pytest.approx(0.12)
    assert set(told["calibrated"]) == {"gemm_bf16", "gemm_fp16", "gemm_fp8", "gemm_fp4", "memory"}


@pytest.mark.parametrize("name", ["a100", "a800", "h800", "b200", "ascend_910b", "mi300x"])
def test_factors_multiply_to_what_planning_uses(name: str) -> None:
    chip = load_chip(name)
    used, factors = load_calibration().chip(chip).efficiency, catalogue.fitted_factors(chip)
    for each, entry in chip.efficiency.items():
        product = entry.value
        for _, fitted in factors.get(each, []):
            product = min(product * fitted.value, max(1.0, entry.value))  # of the peak no more than all
        assert used[each].value == pytest.approx(product)
