"""Reading a table of measured runs: sound rows become runs, and what is wrong is told by row and column."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpsolver.evidence.runs.columns import COLUMNS
from cpsolver.evidence.runs.table import PUBLISHED, Table, missing_columns, read_runs
from cpsolver.inputs.errors import InputError, Trouble
from tests.support.checkout import ROOT
from tests.support.measured import table

EXPERTS = {"moe_experts": 8, "moe_topk": 2, "moe_ffn": 64}

Read = Callable[[str | bytes], Table]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def of(content: str | bytes) -> Table:
        path = tmp_path / "cases.csv"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_runs(path)

    return of


def only(found: Table) -> Trouble:
    assert len(found.troubles) == 1, found.troubles
    return found.troubles[0]


# What is sound.


def test_the_published_table_has_no_troubles() -> None:
    found = read_runs(PUBLISHED)
    assert not found.troubles
    assert {run.complete for run in found.runs} == {True, False}
    assert not [run.id for run in found.runs if run.complete and missing_columns(run)]


def test_a_row_becomes_a_run(read: Read) -> None:
    (run,) = read(table({"vpp": 2, "recompute": "block:5", "internode_gbps_per_gpu": 12.5})).runs
    assert (run.line, run.id, run.vpp, run.recompute, run.internode_gbps_per_gpu) == (2, "run1", 2, "block:5", 12.5)
    assert run.gated_mlp is True
    assert run.sharding_group is None
    assert run.complete


def test_numbers_and_flags_may_be_written_as_programs_write_them(read: Read) -> None:
    (run,) = read(table({"layers": "32.0", "gated_mlp": "False", "precision": "BF16", "chip": "A100"})).runs
    assert (run.layers, run.gated_mlp, run.precision, run.chip) == (32, False, "bf16", "a100")


def test_lists_and_switches_are_read(read: Read) -> None:
    row = {**EXPERTS, "etp": 1, "ep": 8, "mtp_layers": 1, "layers_per_stage": "17,15", "precision": "fp8"}
    switches = {"fp8_recipe": "MX", "a2a_overlap": 0, "routing": "forced", "dispatcher": "hybridep", "cuda_graph": "te"}
    more = {"recompute": "selective", "recompute_modules": "moe_act mla_up_proj", "offload_layers": 4}
    (run,) = read(table({**row, **switches, **more})).runs
    assert (run.etp, run.mtp_layers, run.layers_per_stage, run.offload_layers) == (1, 1, (17, 15), 4)
    assert run.recompute_modules == ("mla_up_proj", "moe_act")
    assert (run.fp8_recipe, run.a2a_overlap, run.routing) == ("mx", False, "forced")
    assert (run.dispatcher, run.cuda_graph) == ("hybridep", "te")


def test_the_page_on_the_table_has_every_column() -> None:
    page = (ROOT / "docs" / "validate.md").read_text(encoding="utf-8")
    assert [name for name in COLUMNS if f"`{name}`" not in page] == []


def test_optional_columns_may_be_absent(read: Read) -> None:
    optional = tuple(name for name, column in COLUMNS.items() if column.optional)
    (run,) = read(table({}, without=optional)).runs
    assert (run.cp, run.ep, run.vpp, run.dp, run.framework) == (1, 1, 1, 4, "")
    assert (run.etp, run.mtp_layers, run.layers_per_stage, run.cuda_graph) == (None, None, None, None)
    assert run.complete


def test_an_empty_cell_is_unknown(read: Read) -> None:
    (run,) = read(table({"vpp": "", "mbs": "", "complete": 0})).runs
    assert missing_columns(run) == ("vpp", "mbs")
    (run,) = read(table({"mbs": ""}, without=("complete",))).runs
    assert not run.complete


def test_line_ends_and_a_byte_order_mark_make_no_difference(read: Read) -> None:
    text = table({}, {"id": "run2"})
    assert read(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()) == read(text)


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(table({"tp": "x"}).encode())))
    assert only(read_runs("-")).file == "<stdin>"


# What is wrong with a row.


@pytest.mark.parametrize(
    ("column", "cell", "told"),
    [
        ("layers", "many", "must be a number, not text"),
        ("layers", "3.5", "must be a whole number"),
        ("heads", "0", "must be at least 1"),
        ("mbs", "-4", "must be at least 1"),
        ("moe_topk", "-1", "must be at least 0"),
        ("num_gpus", "1e12", "must be at most 1,048,576"),
        ("step_time_s", "nan", "must be a finite number"),
        ("step_time_s", "inf", "must be a finite number"),
        ("step_time_s", "0", "must be more than 0"),
        ("peak_mem_gib", "-3", "must be more than 0"),
        ("step_time_s", "1e-308", "must be from 1e-06 to 1e+09"),
        ("peak_mem_gib", "1e300", "must be from 1e-06 to 1e+09"),
        ("model", "m" * 300, "must be at most 100 characters"),
        ("chip", "c" * 300, "must be at most 100 characters"),
        ("gated_mlp", "maybe", "allowed: 0, 1"),
        ("recompute", "selectiv", "did you mean 'selective'"),
        ("recompute", "block:0", "block:N"),
        ("sharding", "zero4", "allowed: none, zero1, zero2, zero3"),
        ("precision", "bf17", "did you mean 'bf16'"),
        ("peak_mem_kind", "alocated", "did you mean 'allocated'"),
        ("chip", "a1000", "did you mean 'a100'"),
        ("etp", "0", "must be at least 1"),
        ("mtp_layers", "-1", "must be at least 0"),
        ("layers_per_stage", "16+16", "a whole number for each pipeline rank, such as 16 16 16 13"),
        ("layers_per_stage", ",", "has no entries"),
        ("recompute_modules", "core_attn mla_up", "'mla_up' is not one of the modules (allowed: core_attn, layernorm"),
        ("recompute_modules", "mpl", "did you mean 'mlp'"),
        ("fp8_recipe", "mxfp8", "allowed: delayed, current, blockwise, mx, nvfp4"),
        ("a2a_overlap", "some", "allowed: 0, 1"),
        ("routing", "force", "did you mean 'forced'"),
        ("dispatcher", "deep_ep", "(allowed: alltoall, allgather, deepep, hybridep); did you mean 'deepep'"),
        ("cuda_graph", "ful", "did you mean 'full'"),
        ("offload_layers", "half", "must be a number, not text"),
        ("step_time_s", "", "is empty, and the row is marked complete"),
        ("model", "", "is empty, and the row is marked complete"),
        ("id", "", "must not be empty"),
    ],
)
def test_a_bad_cell_is_told_by_row_and_column_and_the_others_are_read(
    read: Read, column: str, cell: str, told: str
) -> None:
    found = read(table({"id": "good"}, {"id": "bad", column: cell}))
    trouble = only(found)
    assert told in str(trouble)
    assert trouble.line == 3
    assert trouble.path[-1] == column
    assert column == "id" or trouble.where == f"row bad, {column}"
    assert [run.id for run in found.runs] == ["good"]


@pytest.mark.parametrize(
    ("row", "column", "told"),
    [
        ({"dp": 8}, "dp", "tp * pp * cp * dp = 2 * 2 * 1 * 8 = 32, not num_gpus = 16"),
        ({"dp": "", "pp": 3}, "num_gpus", "no multiple of tp * pp * cp = 6"),
        ({"gbs": 66}, "gbs", "no multiple of mbs * dp = 1 * 4 = 4"),
        ({"dp": "", "gbs": 66}, "gbs", "no multiple of mbs * dp = 1 * 4 = 4"),
        ({"ep": 3}, "ep", "does not divide the 8 GPUs of a pipeline stage"),
        ({"layers": 1}, "pp", "more than the 1 layers"),
        ({"moe_experts": 4, "moe_topk": 8, "moe_ffn": 64}, "moe_topk", "8 experts chosen of 4"),
        ({"kv_heads": 5}, "kv_heads", "do not divide the 32 heads"),
        ({"sharding_group": 3}, "sharding_group", "does not divide the 4 ranks"),
        ({"heads": 31, "kv_heads": 31}, "tp", "tp = 2 does not divide the 31 heads"),
        ({"moe_experts": 6, "moe_topk": 2, "moe_ffn": 64, "ep": 4}, "moe_experts", "ep = 4 does not divide the 6"),
        ({"pp": 1, "dp": 8, "vpp": 2}, "vpp", "need a pipeline"),
        ({"vpp": 20}, "vpp", "vpp * pp = 20 * 2 = 40 chunks are more than the 32 layers"),
        ({"vpp": 2, "gbs": 60}, "vpp", "whole groups of pp = 2, not 15"),
        ({**EXPERTS, "ep": 8, "etp": 2}, "etp", "etp * ep = 2 * 8 = 16 does not divide the 8 GPUs"),
        ({"etp": 2}, "etp", "splits experts, and moe_experts is 0"),
        ({"layers_per_stage": "32"}, "layers_per_stage", "has 1 entries, and pp is 2"),
        ({"layers_per_stage": "16 15"}, "layers_per_stage", "has 31 layers in all, and the model has 32"),
        (
            {"layers_per_stage": "16 17", "mtp_layers": 1},
            "layers_per_stage",
            "multi-token prediction are for mtp_layers",
        ),
        ({"recompute_modules": "mlp"}, "recompute_modules", "goes with recompute = selective, and that is none"),
        ({"recompute_modules": "moe", "recompute": "selective"}, "recompute_modules", "moe: of a mixture of experts"),
        ({"fp8_recipe": "mx"}, "fp8_recipe", "mx is a recipe of precision fp8, and that is bf16"),
        ({"fp8_recipe": "nvfp4", "precision": "fp8"}, "fp8_recipe", "nvfp4 is a recipe of precision nvfp4"),
        ({"fp8_recipe": "mx", "precision": "nvfp4"}, "fp8_recipe", "mx is a recipe of precision fp8"),
        ({"dispatcher": "deepep"}, "dispatcher", "deepep is of a mixture of experts"),
        ({"routing": "forced"}, "routing", "forced is of a mixture of experts"),
        ({"a2a_overlap": 1}, "a2a_overlap", "hides an all-to-all of experts, and moe_experts is 0"),
        ({"offload_layers": 33}, "offload_layers", "33 layers on the host are more than the 32"),
    ],
)
def test_an_impossible_layout_is_told(read: Read, row: dict[str, Any], column: str, told: str) -> None:
    trouble = only(read(table(row)))
    assert told in trouble.message
    assert trouble.path == ("run1", column)


def test_a_mixture_of_experts_needs_its_top_k(read: Read) -> None:
    assert only(read(table({"moe_experts": 8, "moe_ffn": 64}))).path == ("run1", "moe_topk")


def test_every_problem_of_a_row_is_told(read: Read) -> None:
    found = read(table({"tp": "x", "gbs": 66, "precision": "int8"}))
    assert [trouble.path[-1] for trouble in found.troubles] == ["tp", "precision", "gbs"]


def test_an_id_twice_names_the_other_line(read: Read) -> None:
    assert "is the id of line 2 too" in only(read(table({}, {}))).message


def test_lines_are_counted_past_cells_of_several_lines(read: Read) -> None:
    found = read(table({"model": "two\nlines"}, {"id": "bad", "tp": "x"}))
    assert only(found).line == 4


def test_a_row_that_is_too_long_is_told_and_blank_ones_are_not(read: Read) -> None:
    text = table({}, {"id": "run2"}).replace("run2,a lab", "run2,a,lab") + "\n,,\n"
    found = read(text)
    assert f"has {len(COLUMNS) + 1} cells, and the header {len(COLUMNS)}" in only(found).message
    assert len(found.runs) == 1


@pytest.mark.parametrize("broken", ['bad,"no end', 'bad,"quoted" and more', "bad,a\0b"])
def test_a_row_that_is_no_csv_is_told_and_the_others_are_read(read: Read, broken: str) -> None:
    first, *rows = table({"id": "one"}, {"id": "two"}, {"id": "three"}).splitlines()
    found = read("\n".join([first, rows[0], broken, *rows[1:]]) + "\n")
    assert [(run.id, run.line) for run in found.runs] == [("one", 2), ("two", 4), ("three", 5)]
    assert only(found).message.startswith("is no CSV")
    assert only(found).line == 3


# What is wrong with a file.


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (table().encode(), "has a header and no rows"),
        (b"\x89PNG\xff\xfe\x00", "is not UTF-8"),
        (b"id,\x00\n", "is no CSV"),
        (table({}).replace("source_ref", '"source_ref').encode(), "is no CSV: unexpected end of data"),
        (table({}).replace(",", ";").encode(), "is separated by semicolons"),
        (table({}).replace("num_gpus", "num_gpu").encode(), "num_gpus: the column is missing; did you mean 'num_gpu'?"),
        (table({}).replace("source_ref", "tp").encode(), "tp: the column is there twice"),
    ],
)
def test_a_file_that_is_no_table_is_refused(read: Read, content: bytes, told: str) -> None:
    with pytest.raises(InputError) as caught:
        read(content)
    assert told in str(caught.value)
    assert "cases.csv" in str(caught.value)


def test_every_missing_column_is_told(read: Read) -> None:
    with pytest.raises(InputError) as caught:
        read("id,model\na,b\n")
    needed = [name for name, column in COLUMNS.items() if not column.optional and name not in ("id", "model")]
    assert [trouble.where for trouble in caught.value.troubles] == needed


def test_a_file_that_is_not_there_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path, told in ((tmp_path / "none.csv", "no such file"), (tmp_path, "is a directory")):
        with pytest.raises(InputError, match=told):
            read_runs(path)


@given(
    column=st.sampled_from(sorted(COLUMNS)),
    cell=st.one_of(st.text(max_size=12), st.integers().map(str), st.floats().map(str)),
)
def test_no_cell_ends_in_anything_but_a_run_or_a_trouble(
    column: str, cell: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.csv"
    path.write_bytes(table({column: cell}).encode("utf-8", "surrogatepass"))
    try:
        found = read_runs(path)
    except InputError:
        return
    assert len(found.runs) == 1 or found.troubles
