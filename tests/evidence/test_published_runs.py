"""The table of published runs is whole: a citation for every figure, unique ids, layouts that add up."""

from __future__ import annotations

import csv
from collections import Counter

import pytest

from benchmarks.fit import publisher_of
from cpsolver.inputs.document import load_yaml
from tests.support.checkout import ROOT

FOLDER = ROOT / "cpsolver" / "evidence" / "runs"
TABLE = FOLDER / "published_runs.csv"
HOSTS = ("https://arxiv.org/abs/", "https://github.com/", "https://pytorch.org/blog/")


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, strict=True))


@pytest.fixture(scope="module")
def complete(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [row for row in rows if row["complete"] == "1"]


@pytest.fixture(scope="module")
def sources() -> dict[str, dict[str, str]]:
    return load_yaml(FOLDER / "sources.yaml").data


def test_there_are_rows_to_look_at_and_rows_to_score(
    rows: list[dict[str, str]], complete: list[dict[str, str]]
) -> None:
    assert len(complete) == 613
    assert len(rows) > len(complete)
    assert {row["complete"] for row in rows} == {"0", "1"}


def test_the_file_is_plain_text_with_no_loose_cells(rows: list[dict[str, str]]) -> None:
    assert b"\r" not in TABLE.read_bytes()
    for row in rows:
        assert None not in row, row["id"]
        assert None not in row.values(), row["id"]
        assert all(cell == cell.strip() for cell in row.values()), row["id"]


def test_every_source_is_described_and_every_description_used(
    rows: list[dict[str, str]], sources: dict[str, dict[str, str]]
) -> None:
    with (FOLDER / "mixed_runs.csv").open(encoding="utf-8", newline="") as file:
        mixed = {row["source"] for row in csv.DictReader(file, strict=True)}
    assert {row["source"] for row in rows} | mixed == set(sources)
    for name, source in sources.items():
        assert set(source) - {"publisher"} == {"citation", "url", "what", "inferred"}, name
        assert all(text.strip() for text in source.values()), name
        assert source["url"].startswith(HOSTS), name
        assert source.get("publisher", source["url"]).startswith(HOSTS), name


def test_runs_of_the_same_recipes_have_one_publisher(sources: dict[str, dict[str, str]]) -> None:
    """A fit without a publisher must not have seen the same layouts on the same clusters under another name."""
    recipes = [name for name in sources if "Megatron-Bridge" in name or "MoE recipe" in name]
    assert len(recipes) == 5
    assert {publisher_of(sources[name]) for name in recipes} == {"https://github.com/NVIDIA-NeMo/Megatron-Bridge"}
    logs = [name for name in sources if name.startswith("MLPerf")]
    assert len({publisher_of(sources[name]) for name in logs}) == 1


def test_every_row_says_where_it_is_published(rows: list[dict[str, str]]) -> None:
    for row in rows:
        reference = row["source_ref"]
        assert "@" in reference or reference.startswith(("arXiv", "github.com/", "pytorch.org/blog/")), row["id"]


def test_ids_are_unique(rows: list[dict[str, str]]) -> None:
    ids = Counter(row["id"] for row in rows)
    assert [name for name, count in ids.items() if not name or count > 1] == []


def test_layouts_add_up(complete: list[dict[str, str]]) -> None:
    for row in complete:
        dp, tp, pp, cp, gpus = (int(row[name]) for name in ("dp", "tp", "pp", "cp", "num_gpus"))
        assert dp * tp * pp * cp == gpus, row["id"]
        assert int(row["gbs"]) % (int(row["mbs"]) * dp) == 0, row["id"]


def test_complete_rows_have_a_time_that_agrees_with_their_throughput(complete: list[dict[str, str]]) -> None:
    for row in complete:
        step = float(row["step_time_s"])
        assert step > 0, row["id"]
        tokens = int(row["gbs"]) * int(row["seq_len"]) / step / int(row["num_gpus"])
        assert tokens == pytest.approx(float(row["tokens_per_s_per_gpu"]), rel=0.02), row["id"]


def test_memory_is_always_of_a_stated_kind(rows: list[dict[str, str]]) -> None:
    for row in rows:
        assert bool(row["peak_mem_gib"]) == bool(row["peak_mem_kind"]), row["id"]
        assert row["peak_mem_kind"] in ("", "allocated", "reserved", "device", "unstated"), row["id"]
