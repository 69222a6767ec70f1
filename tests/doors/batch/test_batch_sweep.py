"""The sweep file: axes, lists, bases, shares of chips, and everything that can be wrong with it."""

from __future__ import annotations

import json

import pytest

from cpsolver.doors.batch.fields import leaves_of, with_field, with_shares
from cpsolver.inputs.errors import InputError
from tests.support.batch_sweeps import BASE, sweep_of
from tests.support.command import in_tmp, write

__all__ = ["in_tmp"]


def troubles(text: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        sweep_of(text)
    return [str(trouble) for trouble in caught.value.troubles]


def test_a_grid_is_every_combination_in_the_order_of_the_file() -> None:
    sweep = sweep_of(BASE + "grid: {model: [llama2-7b, llama2-70b], cluster.num_gpus: [8, 16]}")
    assert [cell.name for cell in sweep.cells] == ["llama2-7b, 8", "llama2-7b, 16", "llama2-70b, 8", "llama2-70b, 16"]
    last = sweep.data(sweep.cells[-1])
    assert (last["model"], last["cluster"]["num_gpus"], last["cluster"]["chips"]) == ("llama2-70b", 16, "a800")


def test_a_named_axis_sets_several_fields_under_one_label() -> None:
    sweep = sweep_of(BASE + "grid: {size: [{label: small, cluster.num_gpus: 8, training.global_batch_size: 32}]}")
    data = sweep.data(sweep.cells[0])
    assert sweep.cells[0].labels == {"size": "small"}
    assert (data["cluster"]["num_gpus"], data["training"]["global_batch_size"]) == (8, 32)


def test_a_field_s_value_may_have_a_label() -> None:
    sweep = sweep_of(BASE + "grid: {cluster.chips: [{label: old, value: {a800: -1}}, {h800: 8, a800: 8}]}")
    assert [cell.name for cell in sweep.cells] == ["old", "h800:8 a800:8"]
    assert sweep.data(sweep.cells[0])["cluster"]["chips"] == {"a800": -1}


def test_a_range_includes_both_ends() -> None:
    sweep = sweep_of(BASE + "grid: {cluster.num_gpus: {from: 16, to: 48, step: 16}}")
    assert [cell.name for cell in sweep.cells] == ["16", "32", "48"]


def test_a_list_comes_after_the_grid_and_its_labels_have_a_column() -> None:
    sweep = sweep_of(BASE + "grid: {stack: [megatron-core]}\nlist: [{label: big, cluster.num_gpus: 64}]")
    assert [dict(cell.labels) for cell in sweep.cells] == [{"stack": "megatron-core"}, {"cell": "big"}]
    assert sweep.axes == ("stack", "cell")


def test_a_section_s_mapping_sets_what_it_names_and_leaves_the_rest() -> None:
    sweep = sweep_of(BASE + "list: [{cluster: {num_gpus: 64}}]")
    assert sweep.data(sweep.cells[0])["cluster"] == {"num_gpus": 64, "chips": "a800"}
    assert list(leaves_of(("cluster", "chips"), {"a800": 8})) == [(("cluster", "chips"), {"a800": 8})]


def test_a_chip_s_own_number_turns_a_short_form_of_chips_into_a_mapping() -> None:
    data = {"cluster": {"chips": ["a800", "h800"]}}
    assert with_field(data, ("cluster", "chips", "h800"), 8)["cluster"]["chips"] == {"a800": -1, "h800": 8}
    assert data == {"cluster": {"chips": ["a800", "h800"]}}


@pytest.mark.parametrize(("total", "share", "devices"), [(64, "50 %", 32), (24, "50%", 16), (64, "12.5 %", 8)])
def test_a_share_of_the_cluster_is_rounded_up_to_whole_nodes(total: int, share: str, devices: int) -> None:
    data = {"cluster": {"num_gpus": total, "chips": {"a800": share, "h800": -1}}}
    assert with_shares(data)["cluster"]["chips"] == {"a800": devices, "h800": -1}


def test_a_share_of_thousands_of_digits_is_none() -> None:
    """Python refuses to read more than 4,300 of them: found by an attack."""
    data = {"cluster": {"num_gpus": 64, "chips": {"a800": "9" * 5000 + " %"}}}
    assert with_shares(data) == data


def test_a_range_under_a_name_that_is_no_field_is_told_once() -> None:
    """Each of 31,254 values was told, with the nearest fields looked for anew: minutes. Found by an attack."""
    told = troubles("base: {model: llama2-7b}\ngrid: {1.2.3: {from: -1000000, to: 128, step: 32}}")
    assert sum("is no field of a spec" in line for line in told) == 1


def test_a_base_in_a_file_of_its_own() -> None:
    write("base.json", json.dumps({"model": "llama2-7b", "cluster": {"num_gpus": 8, "chips": "a800"}}))
    sweep = sweep_of("base: base.json\nlist: [{cluster.num_gpus: 16}]")
    assert sweep.data(sweep.cells[0])["cluster"] == {"num_gpus": 16, "chips": "a800"}


def test_every_problem_of_the_file_is_listed_with_its_place() -> None:
    found = troubles("""
bse: 1
grid:
  cluster.num_gpu: [1]
  model: []
  sizes: [8]
  cluster.num_gpus: {from: 16, to: 8, step: 8}
list: [5, {}]
""")
    places = [text.split(" ")[0].removeprefix("sweep.yaml:").rstrip(":") for text in found]
    assert places == ["2:1", "2:1", "4:3", "5:3", "6:11", "7:3", "8:8", "8:11"]
    text = "\n".join(found)
    for part in ("did you mean 'base'?", "'cluster.num_gpus'", "has no values", "is no field of a spec"):
        assert part in text
    assert "base: is required, and missing" in text
    assert "sets no field" in found[-1]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has neither grid nor list"),
        ("grid: 5", "must be a mapping: a field or an axis's name"),
        ("list: {}", "must be a list of cells"),
        ("grid: {model: [llama2-7b, llama2-7b]}", "has the label of value 1: 'llama2-7b'"),
        (
            "list: [{label: a, cluster.num_gpus: 8}, {label: a, cluster.num_gpus: 16}]",
            "list[1]: has the label of value 1: 'a'",
        ),
        ("grid: {model: [a], other: [{label: x, model: b}]}", "sets model, which the axis 'model' sets too"),
        ("grid: {training.global_batch_size: {from: 1, to: 200000, step: 1}}", "makes 200,000 cells"),
        ("grid: {training.global_batch_size: {from: 1, to: 1000000000, step: 1}}", "makes 1,000,000,000 cells"),
        ("list: [{num_gpus: 8}]", "did you mean 'cluster.num_gpus'?"),
    ],
)
def test_what_is_wrong_with_axes_and_cells(text: str, told: str) -> None:
    assert told in "\n".join(troubles(BASE + text))


@pytest.mark.parametrize(
    ("base", "told"),
    [
        ("base: nowhere.yaml", "base = 'nowhere.yaml': no such file"),
        ("base: 5", "must be a spec's fields, or a file that has them"),
        ("base: broken.yaml", "broken.yaml:1"),
    ],
)
def test_what_is_wrong_with_a_base(base: str, told: str) -> None:
    write("broken.yaml", "a: [")
    assert told in "\n".join(troubles(base + "\nlist: [{model: llama2-7b}]"))
