"""`make attack`: a short form of it, and that it finds what is there to be found."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

import cpsolver
from cpsolver import Result
from cpsolver.search.search import search
from tests.support.checkout import ROOT
from tests.support.selection import full
from tools.attack import batch_kills, kills, tune_kills
from tools.attack.compare import disagreement
from tools.attack.doors import DOCUMENTED, Door, all_doors
from tools.attack.findings import Finding, Report, shortest, smallest
from tools.attack.fuzz import placed, trouble
from tools.attack.mutations import MUTATIONS, mutated
from tools.attack.night import run, tasks
from tools.attack.plans import Enumerator, TooManyPlans
from tools.attack.relations import no_better, no_worse, prefix, same

SMALL: dict[str, Any] = {
    "model": {"layers": 2, "hidden": 256, "heads": 4, "ffn": 512, "vocab": 1000},
    "cluster": {"num_gpus": 2, "gpus_per_node": 2, "chips": {"a800": {}}},
    "training": {"global_batch_size": 4, "sequence_length": 512},
    "search": {
        "top": 2,
        "diverse": False,
        "pin": {"mbs": 1, "cp": 1, "vpp": 1, "flash_attention": True, "recompute": "none", "sharded": "optimizer"},
    },
}
SLOW = ("spec, solved", "script", "runs", "overlay")


@pytest.mark.full
@pytest.mark.parametrize("counts", [{"plans": 8}, {"inputs": 40}], ids=str)
def test_a_short_attack_finds_nothing(counts: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report = run(counts, 20)
    assert not report.findings, report.as_text()
    assert sum(report.counts.values()) >= sum(counts.values())


def test_plans_that_the_answer_lacks_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    report, right = Report(), search(cpsolver.make_problem(SMALL))
    monkeypatch.setattr(cpsolver, "solve", lambda problem: right)
    assert disagreement(SMALL, report, advised=True) is None
    assert report.counts["every plan: problems compared"] == 1
    assert report.counts["every plan: plans judged"] > 2

    def without(change: Any) -> str | None:
        monkeypatch.setattr(cpsolver, "solve", lambda problem: change(right))
        return disagreement(SMALL, Report(), advised=True)

    assert "other values" in str(without(lambda result: replace(result, plans=result.plans[1:])))
    assert "status infeasible" in str(without(lambda result: replace(result, plans=(), status="infeasible")))
    assert "two plans of one kind" in str(without(lambda result: replace(result, plans=2 * result.plans[:1])))


def test_more_plans_than_may_be_are_not_judged() -> None:
    with pytest.raises(TooManyPlans):
        list(Enumerator(cpsolver.make_problem(SMALL), 3).judged())


def test_a_spec_loses_what_does_not_matter() -> None:
    spec = {"a": {"b": [1, 2, 3], "c": 4}, "d": 5}
    assert smallest(spec, lambda one: 2 in one.get("a", {}).get("b", [])) == {"a": {"b": [2]}}
    assert shortest(b"some text with an x in it", lambda text: b"x" in text) == b"x"


def door(enter: Any) -> Door:
    return Door((b"x",), "file", enter)


def test_a_door_may_refuse_and_answer_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.attack.fuzz.LONGEST_S", 0.05)

    def fails(folder: Path) -> tuple[int, str]:
        raise ValueError((folder / "file").read_text())

    def hangs(folder: Path) -> tuple[int, str]:
        while True:
            pass

    assert trouble(door(lambda folder: (2, "error: no\n")), b"x") is None
    assert "ValueError" in str(trouble(door(fails), b"x"))
    assert "more than" in str(trouble(door(hangs), b"x"))
    assert "exit code 70" in str(trouble(door(lambda folder: (70, "a bug")), b"x"))
    assert "raw characters" in str(trouble(door(lambda folder: (0, "\x1b[2J")), b"x"))


@pytest.mark.parametrize("name", [name if name not in SLOW else full(name) for name in all_doors()])
def test_what_is_not_spoilt_comes_in(name: str) -> None:
    """Or most of what is spoilt would only be refused for something else."""
    found = []
    for data in all_doors()[name].inputs[:2]:
        with placed(all_doors()[name], data) as folder:
            found.append(all_doors()[name].enter(folder)[0])
    assert set(found) <= DOCUMENTED - {2}


def test_seeds_are_the_same_attacks_again() -> None:
    for seed in range(40):
        assert mutated(Random(seed), b"a: 1\nb: [2, 3]\n") == mutated(Random(seed), b"a: 1\nb: [2, 3]\n")
    for change in MUTATIONS:
        assert any(change(Random(seed), b"a: 1\nb: [2, 3]\nc: d\n") != b"a: 1\nb: [2, 3]\nc: d\n" for seed in range(9))
        assert isinstance(change(Random(1), b""), bytes)


def test_kinds_take_turns() -> None:
    assert list(tasks({"plans": 2, "inputs": 4}, 5))[:3] == [("inputs", 5), ("plans", 5), ("inputs", 6)]


def answers(*seconds: float) -> Result:
    """An answer with plans of these seconds."""
    result = search(cpsolver.make_problem(SMALL))
    plan = replace(result.plans[0], added=False)
    plans = [replace(plan, evaluation=replace(plan.evaluation, step_time_s=each)) for each in seconds]
    return replace(result, plans=tuple(plans))


def test_relations_hold_or_are_broken() -> None:
    one, faster, longer = answers(1.0, 2.0), answers(1.0, 1.9), answers(1.0, 2.0, 3.0)
    assert [no_better(one, faster) is None, no_worse(one, faster) is None] == [False, True]
    assert [no_better(one, longer) is None, no_worse(one, longer) is None] == [False, True]
    assert [prefix(one, longer) is None, prefix(faster, longer) is None] == [True, False]
    assert [same(one, one) is None, same(one, faster) is None] == [True, False]


def test_what_a_kill_must_not_do_is_told() -> None:
    kept = {"a": {"seconds": 1.0}, "b": {"seconds": 2.0}}
    assert not batch_kills.changed(kept, kept | {"c": {"seconds": 1.0}})
    assert "1 rows of 2" in batch_kills.changed(kept, {"a": kept["a"]})[0]
    assert "1 rows of 2" in batch_kills.changed(kept, kept | {"b": {"seconds": 2.1}})[0]
    row = {"outcome": "ok", "step_time_s": tune_kills.STEP_S, "strategy": "p"}
    trials = {n: row | {"strategy": f"p{n}"} for n in range(1, tune_kills.PLANS + 1)}
    ran = Counter(map(str, trials))
    assert not list(tune_kills.wrong_ends(trials, ran))
    for wrong, told in (
        (trials | {3: row | {"outcome": "running"}}, "trial 3 is running"),
        (trials | {3: row | {"step_time_s": 2.5, "strategy": "p3"}}, "trial 3 is ok, and did not run or took 2.5 s"),
        (trials | {21: row | {"strategy": "p20"}}, "1 plans were settled twice"),
        ({n: trials[n] for n in range(2, 21)}, "1 plans of 20 were not settled"),
    ):
        assert any(told in each for each in tune_kills.wrong_ends(wrong, ran | Counter("21")))
    assert any("did not run" in each for each in tune_kills.wrong_ends(trials, ran - Counter("7")))


@pytest.mark.full
@pytest.mark.parametrize("kind", ["supervisor", "worker"])
def test_a_session_of_kills_leaves_all_whole(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kills, "AT_ONCE", 2)
    report = kills.attacked(kills.KINDS.index(kind))
    assert not report.findings, report.as_text()
    assert report.counts[f"kills: {kind}"] > 0


@pytest.mark.full
def test_the_command_tells_findings_and_ends_with_1(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tools.attack", "--plans", "0", "--inputs", "1", "--relations", "0", "--kills", "0"]
    words += ["--jobs", "1"]
    done = subprocess.run([*words, "--json", tmp_path / "found.json"], cwd=ROOT, capture_output=True, check=False)
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert done.returncode == bool(found["findings"])
    assert sum(found["counts"].values()) == 1
    report = Report(findings=[Finding("a kind", "what", "7", "text")])
    assert "a kind, seed 7: what\ntext" in report.as_text()
