"""Sweeps, comparisons and shares in Chinese: nothing English is left but names; what is kept or read by machines is."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from cpsolver.doors.batch.cases import make_cases
from cpsolver.doors.batch.compare import ComparisonRequest, compare, size_name
from cpsolver.doors.batch.comparison_page import comparison_page
from cpsolver.doors.batch.decision import comparison_document, comparison_report
from cpsolver.doors.batch.files import document, sweep_csv
from cpsolver.doors.batch.page import sweep_page
from cpsolver.doors.batch.pool import FAILURES, CellTask, solve
from cpsolver.doors.batch.rows import new_row, plan_text, reasons_text
from cpsolver.doors.batch.run import error_text
from cpsolver.doors.batch.summary import summary
from cpsolver.doors.report.html.choices import choices_page
from cpsolver.explanation.account import solve as explained
from cpsolver.inputs.language import CHINESE, speaking
from cpsolver.problem.resolve import resolve
from cpsolver.spec.spec import parse_spec
from tests.support.batch_sweeps import BASE, answer, cases_of, sweep_of
from tests.support.command import in_tmp, run, write

__all__ = ["in_tmp"]

WRONG = "list: [{label: x, training.global_batch_size: 0}, {label: y, cluster.num_gpus: 8}]"
TIMED: dict[str, Any] = {
    "model": "llama2-7b",
    "cluster": {"num_gpus": 16, "chips": "a800", "prices": {"a800": 1.0}},
    "training": {"global_batch_size": 64, "sequence_length": 4096, "tokens": 1e11},
    "search": {"pin": {"tp": 2, "cp": 1, "pp": 1, "mbs": 1, "vpp": 1}, "deadline": {"days": 30}},
}
ON = "a800:16@1", "a800:32@1"
SHARES = """
model: phi3.5-mini
cluster: {num_gpus: 4, gpus_per_node: 2, chips: {a100: 2, h100: 2}}
training: {global_batch_size: 8, sequence_length: 2048}
search: {pin: {tp: 1, distributed_optimizer: true}}
"""
NAMES = {"llama2", "b", "a", "a100", "h100", "a800", "sqlite", "token", "tokens", "s", "ms", "GPU", "GPUs", "GiB"}
NAMES |= {"MFU", "M", "k", "h", "e", "tp", "zero", "ZeRO", "SynerFuse", "USAGE", "md"}


def shown(report: Any, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(report)
    return out.getvalue()


def english(text: str) -> set[str]:
    """Words that are no names, options or sizes."""
    bare = re.sub(r"--[\w-]+|cluster\.\w+|\bsweep\b|a40219c|llama2-7b", "", text)
    return {word for word in re.findall(r"[A-Za-z]+\d*", bare) if word not in NAMES}


@pytest.mark.parametrize("width", [80, 140])
def test_a_sweep_s_report_leaves_only_names_in_english(width: int) -> None:
    with speaking(CHINESE):
        text = shown(summary(answer((0.4, 0.6, 0.9, 0.95, 0.99))), width)
    assert english(text) == set()
    assert max(map(cell_len, text.splitlines())) <= width
    assert "按期概率" in text


def test_what_machines_read_of_a_sweep_is_the_same() -> None:
    found = answer()
    with speaking(CHINESE):
        assert (document(answer()), sweep_csv(answer())) == (document(found), sweep_csv(found))


def test_what_is_wrong_with_a_cell_is_kept_in_english_and_told_in_chinese() -> None:
    (first, *_), sweep = cases_of(WRONG), sweep_of(BASE + WRONG)
    with speaking(CHINESE):
        (case, *_) = make_cases(sweep)
        row = new_row(case)
        assert (row["error"], case.key) == (first.error, first.key)
        assert "必须" in str(error_text(case, row))
        failed = row | {"error": FAILURES[2].format(after="32", limit="2")}
        assert error_text(case, failed) == "工作进程没有应答：超出时限（2 s）32 s 后被终止"
    assert error_text(case, failed) == failed["error"]


IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "too big": {"model": "llama2-70b"},
    "a pin that no device fits": {"search": {"pin": {"pp": 3}}},
    "wishes that contradict each other": {"search": {"pin": {"tp": 8, "pp": 4, "dp": 4}}},
    "pinned layers": {"search": {"pin": {"layers": [20, 20]}}},
    "a launcher without a pipeline": {"launcher": "accelerate", "search": {"pin": {"pp": 2}}},
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_why_a_cell_has_no_plan_is_kept_in_english_and_for_pages_in_chinese(name: str) -> None:
    cell = {**TIMED, "cluster": {"num_gpus": 8, "chips": "a800"}, "search": {}} | IMPOSSIBLE[name]
    problem = resolve(parse_spec(cell))
    row = solve(CellTask("x", problem)).columns
    assert row["status"] == "infeasible"
    assert json.loads(row["reasons"])[0] == explained(problem).reasons[0]  # changes that help: as time allows
    told = reasons_text(row, CHINESE)
    assert told is not None
    assert len(told.splitlines()) == len(json.loads(row["reasons"]))
    names = r"search\.[\w.]+|llama2-70b|megatron-core|mbs|dp|cp|pp|a800|b200|gh200|h200|none|block|uniform|B |x"
    bare = re.sub(names, "", told)
    assert english(bare) <= {"layers", "accelerate"}
    assert reasons_text(row | {"reasons_translated": None}, CHINESE) == reasons_text(row)  # an older version's row


def test_a_kept_plan_is_told_again() -> None:
    stages = [{"chip": "a800", "layers": [16, 16]}]
    kept = {"strategy": {"tp": 8, "pp": 2, "dp": 1, "mbs": 1, "stages": stages}}
    row = {"strategy": "as it was kept", "plans": json.dumps([kept])}
    assert plan_text(row) == "as it was kept"
    with speaking(CHINESE):
        assert plan_text(row) == "tp 8 pp 2 dp 1 mbs 1, a800 2 × 16 层"
        assert size_name("-1 node of a800") == "-1 个 a800 节点"
        assert size_name("+1 node") == "+1 个节点"


def test_a_comparison_leaves_only_names_in_english_and_its_documents_are_the_same() -> None:
    found = compare(ComparisonRequest((TIMED,), ON))
    plain = comparison_document(found)
    with speaking(CHINESE):
        text = shown(comparison_report(found), 80)
        page = comparison_page(found)
        made = choices_page(page)
    assert english(text) == set()
    assert max(map(cell_len, text.splitlines())) <= 80
    assert page.document == plain
    assert page.choices[1].name == "a800:16@1，+1 个节点"
    assert '<html lang="zh">' in made
    assert "可供挑选的选项" in made


def test_a_sweep_s_page_speaks_chinese_and_its_script_has_the_words() -> None:
    with speaking(CHINESE):
        page = choices_page(sweep_page(answer()))
    assert all(text in page for text in ("相互权衡", "可供挑选的单元", "随集群大小的变化", "下载 CSV"))
    words = re.search(r'<script type="application/json" id="words">(.*?)</script>', page)
    assert words is not None
    assert json.loads(words[1])["Back to the picture"] == "回到图"


def test_shares_leave_only_names_in_english() -> None:
    name = write("spec.yaml", SHARES)
    assert english(run("replicas", name, "--lang", "zh").stdout) == set()
    plain, spoken = (run("replicas", name, "--json", "--lang", language).stdout for language in ("en", "zh"))
    assert plain == spoken


def test_errors_of_a_sweep_are_told_in_chinese() -> None:
    write("sweep.yaml", BASE + "grid: {cluster.num_gpus: [], size: [3]}\nlisted: []")
    found = run("batch", "sweep.yaml", "--lang", "zh")
    assert found.exit_code == 2
    assert all(text in found.stderr for text in ("没有值", "不是规格的字段", "不是扫描文件的键", "例如 {label: small"))
