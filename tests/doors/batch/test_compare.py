"""compare: days, dollars and break-even prices worked out by hand, and the command."""

from __future__ import annotations

import json
from math import ceil, exp, log
from statistics import NormalDist
from typing import Any

import pytest

from cpsolver.doors.batch.compare import ComparisonRequest, cluster_of, compare, comparison, problems_of
from cpsolver.inputs.errors import InputError
from tests.support.command import in_tmp, run, write

__all__ = ["in_tmp"]

SPEC = """\
model: llama2-7b
cluster: {num_gpus: 32, chips: a800, prices: {a800: 1.5}}
training: {global_batch_size: 64, sequence_length: 4096, tokens: 1.0e+10}
search: {pin: {tp: 2, cp: 1, mbs: 1, vpp: 1, pp: [1, 2]}, deadline: {days: 2}}
"""
ON = ("--on", "a800:32", "--on", "h800:32@2.5", "--on", "a800:16@1.5,h800:16@2.5")
STEPS = ceil(1e10 / (64 * 4096))  # 38,147


def expected(low: float, median: float, high: float) -> float:
    """The mean of a split log-normal: each half's, half a log-normal's."""
    normal = NormalDist()
    below, above = log(median / low) / 1.2816, log(high / median) / 1.2816
    return median * (exp(below**2 / 2) * normal.cdf(-below) + exp(above**2 / 2) * normal.cdf(above))


def asked(*options: str) -> Any:
    write("spec.yaml", SPEC)
    return json.loads(run("compare", "spec.yaml", *options, "--json").stdout)


def test_days_dollars_and_break_even_prices_are_those_of_a_hand() -> None:
    found = asked(*ON, "--no-nodes")
    assert [option["name"] for option in found["options"]] == [ON[1], ON[3], ON[5]]
    hourly = (32 * 1.5, 32 * 2.5, 16 * 1.5 + 16 * 2.5)
    write("alone.yaml", SPEC)
    plan = json.loads(run("solve", "alone.yaml", "--json").stdout)["plans"][0]
    mean_s = expected(plan["step_time_low_s"], plan["step_time_s"], plan["step_time_high_s"])
    assert found["options"][0]["days"]["mean"] == pytest.approx(mean_s * STEPS / 86_400, rel=1e-6)
    assert found["options"][0]["days"]["low"] == pytest.approx(plan["step_time_low_s"] * STEPS / 86_400)
    for option, per_hour in zip(found["options"], hourly, strict=True):
        assert option["dollars_per_hour"] == pytest.approx(per_hour)
        for end in ("low", "mean", "high"):
            assert option["dollars"][end] == pytest.approx(option["days"][end] * 24 * per_hour)
    costs = [option["dollars"]["mean"] for option in found["options"]]
    in_time = [place for place, option in enumerate(found["options"]) if option["deadline_probability"] >= 0.5]
    assert found["winner"] == min(in_time, key=costs.__getitem__)
    for place, option in enumerate(found["options"]):
        others = [one for one in in_time if one != place]
        rival = min(others, key=costs.__getitem__)
        assert option["rival"] == rival
        # at that price its devices cost, over its days, what the rival costs
        hours = option["days"]["mean"] * 24 * option["devices"]
        assert option["break_even_dollars_per_device_hour"] * hours == pytest.approx(costs[rival])


@pytest.mark.full
def test_a_node_more_and_a_node_less_are_solved_too() -> None:
    write("spec.yaml", SPEC)
    write("other.yaml", SPEC.replace("num_gpus: 32", "num_gpus: 8"))
    found = json.loads(run("compare", "spec.yaml", "other.yaml", "--json").stdout)
    first, second = found["options"]
    assert [(one["name"], one["num_gpus"]) for one in first["nodes"]] == [("+1 node", 40), ("-1 node", 24)]
    assert [one["num_gpus"] for one in second["nodes"]] == [16]  # less than a node there is not
    write("less.yaml", SPEC.replace("num_gpus: 32", "num_gpus: 16"))
    (alone,) = json.loads(run("solve", "less.yaml", "--top", "1", "--json").stdout)["plans"]
    assert second["nodes"][0]["days"] == alone["days"]
    assert second["nodes"][0]["dollars"] == alone["dollars"]


def test_of_a_mix_a_node_of_each_chip_type() -> None:
    write("spec.yaml", SPEC)
    mixed, _ = problems_of(ComparisonRequest(("spec.yaml",), ("a800:16,h800:8", "a800:32")))
    from cpsolver.doors.batch.compare import resized_of

    sizes = [(name, [supply.limit for supply in other.supplies]) for name, other in resized_of(mixed[1])]
    assert sizes == [
        ("+1 node of a800", [24, 8]),
        ("-1 node of a800", [8, 8]),
        ("+1 node of h800", [16, 16]),
    ]


@pytest.mark.full
def test_an_option_without_a_plan_says_why_and_has_no_say() -> None:
    write(
        "spec.yaml",
        SPEC.replace("llama2-7b", "llama2-70b").replace("32, chips", "8, chips").replace("days: 2", "days: 20"),
    )
    result = run("compare", "spec.yaml", "--on", "a800:8", "--on", "h800:64@2.5", "--no-nodes")
    assert result.exit_code == 0
    assert "none" in result.stdout
    assert "Winner: h800:64@2.5" in result.stdout
    found = asked("--on", "a800:32", "--on", "h800:32", "--no-nodes", "--tokens", "2e10")
    assert found["tokens"] == 2e10
    assert found["options"][1]["dollars"] is None
    assert found["winner"] in (0, None)


@pytest.mark.full
def test_the_table_fits_its_width_and_says_what_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    write("spec.yaml", SPEC)
    for columns in (80, 140):
        monkeypatch.setenv("COLUMNS", str(columns))
        text = run("compare", "spec.yaml", "--on", "a800:32", "--on", "h800:32@2.5").stdout
        assert max(map(len, text.splitlines())) <= columns
        for part in ("2 options: llama2-7b, 1e+10 tokens, within 2 days", "Winner: ", "+1 node", "even at"):
            assert part in text


def test_what_is_wrong_with_every_option_is_told() -> None:
    write("wrong.yaml", SPEC.replace("llama2-7b", "llama2-7"))
    found = run("compare", "nowhere.yaml", "wrong.yaml", "elsewhere.yaml").stderr
    for part in ("nowhere.yaml: no such file", "'llama2-7': unknown", "elsewhere.yaml: no such file"):
        assert part in found
    write("spec.yaml", SPEC)
    found = run("compare", "spec.yaml", "--on", "a80:8", "--on", "h800:many", "--on", "h800:8").stderr
    assert "'a80': unknown chip" in found
    assert "--on = 'h800:many': must be CHIP:DEVICES" in found
    found = run("compare", "wrong.yaml", "--on", "a800:8", "--on", "h800:8").stderr
    assert found.count("'llama2-7': unknown") == 1


def test_options_that_train_other_models_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    write("one.yaml", SPEC)
    write("other.yaml", SPEC.replace("llama2-7b", "llama-7b"))
    monkeypatch.setenv("COLUMNS", "200")
    text = run("compare", "one.yaml", "other.yaml", "--no-nodes").stdout
    assert text.startswith("2 options: llama2-7b, llama-7b, 1e+10 tokens, within 2 days")
    assert "Not the same training: one.yaml llama2-7b, other.yaml llama-7b." in text


@pytest.mark.parametrize(
    ("files", "options", "said"),
    [
        ((SPEC,), (), "SPEC: is alone"),
        ((SPEC, SPEC), ("--on", "a800:32"), "--on: says on what one spec is compared"),
        ((SPEC,), ("--on", "a800", "--on", "h800:8"), "--on = 'a800': must be CHIP:DEVICES"),
        ((SPEC, SPEC.replace("tokens: 1.0e+10", "tokens: 2.0e+10")), (), "training.tokens: differs"),
        (
            (SPEC.replace(", deadline: {days: 2}", "").replace(", tokens: 1.0e+10", ""), SPEC),
            (),
            "is missing in 0.yaml",
        ),
    ],
)
def test_what_cannot_be_compared_is_said(files: tuple[str, ...], options: tuple[str, ...], said: str) -> None:
    names = [f"{number}.yaml" for number in range(len(files))]
    for name, text in zip(names, files, strict=True):
        write(name, text)
    result = run("compare", *names, *options)
    assert result.exit_code == 2
    assert said in result.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--on", "a800:-4"), "error: --on = 'a800:-4': has -4 of a800: at least 1\n"),
        (("--on", "a800:2000000"), "error: --on = 'a800:2000000': has 2000000 of a800: at most 1,048,576\n"),
        (("--on", "a800:8@0"), "error: --on = 'a800:8@0': has a price of 0 for a800: more than 0, and finite\n"),
        (("--on", "a800:8@nan"), "error: --on = 'a800:8@nan': has a price of nan for a800: more than 0, and finite\n"),
        (("--on", ":8"), "error: --on = ':8': names no chip type\n"),
        (("--on", "a800:8,a800:8"), "error: --on = 'a800:8,a800:8': names 'a800' twice\n"),
        (("--on", "a800:7"), "error: --on = 7: is not a multiple of cluster.gpus_per_node = 8"),
        (("--on", "no-chip:8"), "error: --on = 'no-chip': unknown chip"),
        (("--on", "a800:8", "--tokens", "nan"), "Invalid value for '--tokens': 'nan' is not a finite number."),
        (("--on", "a800:8", "--time-limit", "inf"), "Invalid value for '--time-limit': 'inf' is not a finite number."),
    ],
)
def test_what_is_wrong_with_an_option_is_told_by_its_name(options: tuple[str, ...], said: str) -> None:
    result = run("compare", write("spec.yaml", SPEC), "--on", "h800:8", *options)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "error: cluster." not in result.stderr


def test_a_call_has_its_arguments_names_for_them() -> None:
    from cpsolver import InputError
    from cpsolver.doors.python.sweeps import compare as asked

    def wrong(**given: Any) -> str:
        with pytest.raises(InputError) as caught:
            asked(write("spec.yaml", SPEC), **{"on": ["a800:8", "h800:8"], **given})
        return str(caught.value)

    assert wrong(on=["a800:7", "h800:8"]).startswith("on = 7: is not a multiple")
    assert wrong(tokens=float("nan")) == "tokens = nan: must be a finite number"
    assert wrong(time_limit_s=-1).startswith("time_limit_s = -1: must be more than 0")


def test_clusters_are_read_with_their_prices() -> None:
    wanted = {"num_gpus": 576, "chips": {"h100": 512, "a800": 64}, "prices": {"h100": 2.5}}
    assert cluster_of("h100:512@2.5, a800:64") == wanted
    with pytest.raises(InputError):
        cluster_of("h100:512@cheap")


def test_a_comparison_without_prices_has_neither_winner_nor_break_even() -> None:
    write("spec.yaml", SPEC.replace(", prices: {a800: 1.5}", ""))
    found = compare(ComparisonRequest(("spec.yaml",), ("a800:16", "a800:32"), resize=False))
    assert (found.front, found.winner) == ((), None)
    again = comparison([option.answer for option in found.options], [(), ()])
    assert [option.break_even for option in again.options] == [None, None]


def test_a_network_goes_along_to_clusters_of_the_same_chips() -> None:
    write("on-a-network.yaml", SPEC.replace("chips: a800", "chips: a800, network: hdr-8x200"))
    request = ComparisonRequest(("on-a-network.yaml",), on=("a800:16", "h800:16"))
    same, other = (problem for _, problem in problems_of(request))
    assert same.network is not None
    assert other.network is None
