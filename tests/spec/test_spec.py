import contextlib
import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpsolver.inputs.document import parse_yaml
from cpsolver.inputs.errors import InputError
from cpsolver.spec.search import Decisions, forbidden_for, pinned_for
from cpsolver.spec.spec import Spec, load_spec, parse_spec
from cpsolver.spec.starter import starter_spec

GOOD: dict[str, Any] = {
    "model": "llama2-70b",
    "cluster": {"num_gpus": 256, "chips": {"a800": 128, "h800": 160}},
    "training": {"global_batch_size": 512, "sequence_length": 4096},
}


def spec_with(path: str = "", value: Any = None) -> dict[str, Any]:
    """GOOD with one value set, by dotted path."""
    data = copy.deepcopy(GOOD)
    here: dict[str, Any] = data
    *parents, last = path.split(".") if path else [""]
    for part in parents:
        here = here.setdefault(part, {})
    if path:
        here[last] = value
    return data


def good(path: str = "", value: Any = None) -> Spec:
    return parse_spec(spec_with(path, value))


def wrong(data: Any) -> str:
    with pytest.raises(InputError) as caught:
        parse_spec(data)
    return str(caught.value)


def wrong_text(text: str) -> list[str]:
    document = parse_yaml(text, file="spec.yaml", collect=True)
    with pytest.raises(InputError) as caught:
        parse_spec(document.data, document)
    return str(caught.value).splitlines()


def test_defaults() -> None:
    spec = good()
    assert (spec.cluster.gpus_per_node, spec.cluster.memory_margin, spec.stack) == (8, None, None)
    assert (spec.training.precision, spec.training.dropout, spec.training.fused_kernels) == (
        "bf16",
        False,
        True,
    )
    search = spec.search
    assert (search.top, search.time_limit_s, search.layer_split, search.recompute_scope) == (
        3,
        None,
        "auto",
        "chip",
    )
    assert search.pin == search.forbid == Decisions()


@pytest.mark.parametrize(
    ("written", "limits"),
    [
        ("a800", {"a800": None}),
        (["h800", "a800"], {"h800": None, "a800": None}),
        ({"h800": -1, "a800": None}, {"h800": None, "a800": None}),
        ({"a800": 256}, {"a800": 256}),
        ({"a800": {"max": 64}, "h800": {}}, {"a800": 64, "h800": None}),
    ],
)
def test_short_forms_of_chips(written: Any, limits: dict[str, int | None]) -> None:
    assert [*(good("cluster.chips", written).cluster.chips)] == [*limits]
    assert {name: chip.max for name, chip in good("cluster.chips", written).cluster.chips.items()} == limits


def test_a_chip_of_ones_own() -> None:
    chips = good("cluster.chips", {"x": {"max": 256, "spec": {"memory_GB": 80}}, "y": {"file": "y.yaml"}}).cluster.chips
    assert chips["x"].spec == {"memory_GB": 80}
    assert chips["y"].file == "y.yaml"


def test_decisions_are_normalised() -> None:
    written = {
        "tp": 8,
        "pp": [2, 4],
        "flash_attention": True,
        "recompute": {"*": "none", "a800": ["block", "uniform"]},
        "recompute_num_layers": 0,
        "stages": {"h800": [1, 2]},
        "chip_order": ["h800", "a800"],
    }
    pin = good("search.pin", written).search.pin
    assert (pin.tp, pin.pp, pin.flash_attention, pin.dp) == ((8,), (2, 4), (True,), None)
    assert pin.recompute == {"*": ("none",), "a800": ("block", "uniform")}
    assert (pin.recompute_num_layers, pin.stages) == ({"*": (0,)}, {"h800": (1, 2)})
    assert pin.chip_order == ("h800", "a800")
    assert pinned_for(pin.recompute, "a800") == ("block", "uniform")
    assert pinned_for(pin.recompute, "h800") == ("none",)
    assert forbidden_for(pin.recompute, "a800") == ("none", "block", "uniform")


def test_a_dumped_spec_parses_to_an_equal_one() -> None:
    spec = good("search", {"pin": {"tp": 8, "recompute": "none", "stages": {"a800": 2}}, "forbid": {"vpp": [2, 3]}})
    assert parse_spec(json.loads(spec.model_dump_json())) == spec
    assert parse_spec(spec.model_dump()) == spec


def test_a_section_commented_out_is_its_default() -> None:
    assert good("search", None) == good("search", {"pin": None, "forbid": None}) == good()


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("clusters", {}, "clusters = {}: is not a known field; did you mean 'cluster'?"),
        ("cluster.num-gpu", 8, "cluster.num-gpu = 8: is not a known field; did you mean 'num_gpus'?"),
        ("num_gpus", 8, "num_gpus = 8: is not a known field; did you mean 'cluster.num_gpus'?"),
        ("training.gbs", 8, "training.gbs = 8: is not a known field; did you mean 'global_batch_size'?"),
        ("seq_len", 8, "seq_len = 8: is not a known field; did you mean 'training.sequence_length'?"),
        ("search.pin.zero", 3, "search.pin.zero = 3: is not a known field; did you mean 'sharded: parameters'?"),
        ("zero_stage", 1, "did you mean 'search.pin.sharded: optimizer'?"),
        ("search.pin.zero", "on", "did you mean 'sharded: optimizer, gradients or parameters'?"),
        ("cluster.chips", 2.5, "cluster.chips = 2.5: must be a mapping name -> number, a list of names or one name"),
        ("training", 2.5, "training = 2.5: must be a mapping of fields, not a number"),
        ("search.tp", 8, "is not a known field; did you mean 'top'"),
        ("search.mbs", 8, "is not a known field; did you mean 'search.pin.mbs' or 'search.forbid.mbs'?"),
        (
            "training.zzz",
            8,
            "(allowed: global_batch_size, sequence_length, precision, dropout, fused_kernels, expert_imbalance, ",
        ),
        (
            "cluster.chips",
            {"a800": {"mx": 3}},
            "cluster.chips.a800.mx = 3: is not a known field; did you mean 'max'?",
        ),
        ("cluster.num_gpus", 0, "cluster.num_gpus = 0: must be at least 1 (allowed: 1 to 1,048,576)"),
        ("cluster.num_gpus", 2**20 + 8, "must be at most 1,048,576"),
        ("cluster.num_gpus", 10**30, "must be at most 1,048,576"),
        ("cluster.num_gpus", "256", "cluster.num_gpus = '256': must be a whole number, not text"),
        ("cluster.num_gpus", 256.0, "cluster.num_gpus = 256.0: must be a whole number, written without"),
        ("cluster.num_gpus", True, "cluster.num_gpus = true: must be a whole number, not true or false"),
        ("cluster.num_gpus", None, "cluster.num_gpus: must be a whole number, and nothing is given"),
        ("cluster.memory_margin", float("nan"), "must be a finite number (allowed: 0 to 0.5)"),
        ("cluster.memory_margin", 0.6, "must be at most 0.5"),
        ("cluster.memory_margin", "5%", "must be a number, not text"),
        ("cluster.chips", {}, "cluster.chips = {}: must name at least one value"),
        ("cluster.chips", {"a800": 0}, "cluster.chips.a800 = 0: must be at least 1"),
        ("cluster.chips", {"a800": "many"}, "cluster.chips.a800 = 'many': must be a whole number, not text"),
        ("cluster.chips", {"a800": -2}, "-1 for no limit"),
        ("cluster.chips", [4090], "must list chip names as text"),
        ("cluster.chips", ["a800", "a800"], "names a chip twice"),
        ("cluster.chips", {"x": {"spec": {}, "file": "x.yaml"}}, "both spec and file"),
        ("cluster", [], "cluster = []: must be a mapping of fields, not a list (allowed: num_gpus, gpus_per_node,"),
        ("model", 405, "model = 405: must be a catalogue name"),
        ("model", "", "must be a catalogue name"),
        ("training.precision", "BF16", "(allowed: bf16, fp16, fp8, nvfp4, fp32); did you mean 'bf16'?"),
        ("training.dropout", "no", "training.dropout = 'no': must be true or false, not text"),
        ("training.dropout", 1, "must be true or false, not a number"),
        ("search.top", 101, "must be at most 100 (allowed: 1 to 100)"),
        ("search.time_limit_s", 0, "must be more than 0"),
        ("search.time_limit_s", float("inf"), "must be a finite number"),
        ("search.layer_split", "evn", "did you mean 'even'"),
        ("search.pin", {"tp": [2, 0]}, "search.pin.tp[1] = 0: must be at least 1"),
        ("search.pin", {"tp": []}, "search.pin.tp = []: must name at least one value"),
        ("search.pin", {"tp": "8"}, "search.pin.tp = '8': must be a whole number, not text"),
        ("search.pin", {"flash_attention": 1}, "must be true or false"),
        ("search.pin", {"recompute": "full"}, "(allowed: none, selective, block, uniform)"),
        ("search.pin", {"stages": 2}, "search.pin.stages = 2: must be a mapping"),
        ("search.pin", {"chip_order": "a800"}, "must be a list, not text"),
    ],
)
def test_a_wrong_value_is_named(path: str, value: Any, said: str) -> None:
    assert said in wrong(spec_with(path, value))


def test_a_nodes_size_must_divide() -> None:
    assert wrong(spec_with("cluster.num_gpus", 100)) == (
        "cluster.num_gpus = 100: is not a multiple of cluster.gpus_per_node = 8 (the default):"
        " nodes are used whole (allowed: 96 or 104, or another gpus_per_node)"
    )


def test_fewer_chips_than_asked() -> None:
    said = "cluster.num_gpus = 512: is more than cluster.chips has: 288 in all (a800: 128, h800: 160)"
    assert said in wrong(spec_with("cluster.num_gpus", 512))
    data = spec_with("cluster.num_gpus", 512)
    data["cluster"]["chips"]["h800"] = -1
    parse_spec(data)


@pytest.mark.parametrize(
    ("pin", "forbid", "said"),
    [
        ({"tp": 8}, {"tp": [4, 8]}, "search.pin.tp = 8: contradicts search.forbid.tp = [4, 8]"),
        ({"tp": [2, 8]}, {"tp": [4, 8]}, None),
        (
            {"flash_attention": True},
            {"flash_attention": True},
            "search.pin.flash_attention = true: contradicts",
        ),
        ({}, {"flash_attention": [True, False]}, "search.forbid.flash_attention"),
        ({}, {"recompute": ["none", "selective", "block", "uniform"]}, "forbids every choice"),
        (
            {"recompute": {"a800": "none"}},
            {"recompute": "none"},
            "search.pin.recompute.a800 = 'none': contradicts",
        ),
        ({"recompute": "none"}, {"recompute": {"a800": "none"}}, None),
        ({"recompute": "none"}, {"recompute": "none"}, "contradicts search.forbid.recompute = 'none'"),
        ({"layers": [40, 40]}, {"layers": [40, 40]}, "search.pin.layers = [40, 40]: contradicts"),
        ({"layers": [40, 40]}, {"layers": [30, 40, 40]}, None),
        (
            {"stages": {"a800": 2}},
            {"stages": {"a800": [2, 3]}},
            "contradicts search.forbid.stages.a800 = [2, 3]",
        ),
    ],
)
def test_pin_against_forbid(pin: dict[str, Any], forbid: dict[str, Any], said: str | None) -> None:
    data = spec_with("search", {"pin": pin, "forbid": forbid})
    if said is None:
        parse_spec(data)
    else:
        assert said in wrong(data)


@pytest.mark.parametrize(
    ("pin", "said"),
    [
        ({"pp": 4, "layers": [40, 40]}, "search.pin.layers: has 2 entries, and search.pin.pp = 4"),
        ({"pp": [2, 4], "layers": [40, 40]}, None),
        ({"layers": [40, 40], "stage_chips": ["a800"]}, "search.pin.stage_chips has 1"),
        (
            {"stages": {"a800": 2}, "stage_chips": ["a800", "h800"]},
            "search.pin.stages.a800: gives 'a800' 2 stages",
        ),
        ({"chip_order": ["a800", "a800"]}, "names a chip twice"),
        (
            {"chip_order": ["a800", "h80"]},
            "chip_order[1]: 'h80' is not one of cluster.chips (allowed: a800, h800)",
        ),
        ({"stage_chips": ["A-800"]}, "did you mean 'a800'?"),
        ({"recompute": {"b200": "none"}}, "search.pin.recompute.b200: 'b200' is not one of cluster.chips"),
        ({"stages": {"*": 2}}, "'*' is not one of"),
    ],
)
def test_pins_must_hold_together(pin: dict[str, Any], said: str | None) -> None:
    data = spec_with("search.pin", pin)
    if said is None:
        parse_spec(data)
    else:
        assert said in wrong(data)


MISTAKES = """\
modle: llama2-70b
cluster:
  num_gpus: 300
  chips: {a800: 128, h800: 160}
  memory_margin: .nan
  memory_margin: 0.1
training:
  global_batch_size: "512"
search:
  pin: {tp: [2, x], recompute: {h800: [blok]}, pp: 4, layers: [1, 2]}
  forbid: {pp: [4, 8]}
"""


def test_several_mistakes_are_all_listed_with_their_places() -> None:
    lines = wrong_text(MISTAKES)
    places = [re.match(r"spec.yaml:(\d+:\d+ [\w.\[\]]+)", line) for line in lines]
    assert [place and place[1] for place in places] == [
        "1:1 model",
        "1:1 modle",
        "3:3 cluster.num_gpus",  # nodes of 8
        "3:3 cluster.num_gpus",  # 288 chips
        "5:3 cluster.memory_margin",
        "6:3 cluster.memory_margin",  # written twice
        "7:1 training.sequence_length",
        "8:3 training.global_batch_size",
        "10:17 search.pin.tp[1]",
        "10:40 search.pin.recompute.h800[0]",
        "10:48 search.pin.pp",  # forbidden
        "10:55 search.pin.layers",  # not one for each stage
    ]


def test_a_short_forms_mistake_is_found_where_it_is_written() -> None:
    text = starter_spec().replace("  pin:\n", "  pin:\n    recompute: [none, nine]\n")
    (line,) = wrong_text(text)
    assert re.match(r"spec.yaml:\d+:23 search.pin.recompute\[1\] = 'nine': is not one of the choices", line)


def test_files_are_found_from_the_specs_folder(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(
        "model: my/model.yaml\ncluster: {num_gpus: 8, chips: {x: {file: x.yaml}}}\n"
        "training: {global_batch_size: 8, sequence_length: 128}\n"
    )
    spec = load_spec(path)
    assert spec.model == str(tmp_path / "my" / "model.yaml")
    assert spec.cluster.chips["x"].file == str(tmp_path / "x.yaml")


WORDS = ["num_gpus", "gpus_per_node", "chips", "a800", "max", "spec", "file", "*", "top", "pin", "forbid"]
KEYS = st.sampled_from([*WORDS, *Spec.model_fields, *Decisions.model_fields])
NAMES = st.sampled_from(["none", "a800", "m.yaml", -1])
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), NAMES)
JUNK = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(KEYS, st.text(max_size=3)), inner, max_size=4)
    ),
    max_leaves=12,
)


def accepted_or_refused(data: Any) -> None:
    with contextlib.suppress(InputError):  # anything else fails the test
        assert isinstance(parse_spec(data), Spec)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.one_of(KEYS, SCALARS), JUNK, max_size=5))
def test_junk_is_refused_politely(data: Any) -> None:
    accepted_or_refused(data)


@settings(max_examples=200, deadline=None)
@given(
    section=st.sampled_from(["model", "cluster", "training", "search", "search.pin", "search.forbid", "cluster.chips"]),
    junk=st.one_of(JUNK, st.dictionaries(KEYS, JUNK, max_size=4)),
)
def test_junk_in_a_good_spec_is_refused_politely(section: str, junk: Any) -> None:
    accepted_or_refused(spec_with(section, junk))


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab:-[]{}#&*!|>'\"%@` \n\t,?0", max_size=30))
def test_junk_text_is_refused_politely(text: str) -> None:
    with contextlib.suppress(InputError):
        accepted_or_refused(parse_yaml(text).data)
