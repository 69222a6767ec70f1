"""What is kept: trials as they were, one tuner at a time, and nothing mixed up with another spec or command."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from cpsolver.doors.tune.outcome import Verdict
from cpsolver.doors.tune.state import Binding, State, command_meaning, differences, spec_meaning, stored_template
from cpsolver.doors.tune.template import parse_template
from cpsolver.doors.tune.trial import Proposal
from cpsolver.inputs.errors import InputError
from cpsolver.plans.strategy import StageGroup
from cpsolver.problem.load import load_problem
from cpsolver.search.search import search
from tests.support.command import in_tmp as in_tmp
from tests.support.command import write
from tests.support.tuning import SPEC, TRAINING, errors, kept, problem, tune


def proposal() -> Proposal:
    strategy = search(problem()).plans[0].strategy
    groups = (StageGroup("h100", (16, 16), "selective", (0, 0), ("core_attn", "mlp")),)
    return Proposal(replace(strategy, groups=groups, micro_batches=(1, 2)), "a reason", 2.0, 1.5, 2.5)


def test_a_trial_is_read_back_as_it_was() -> None:
    asked, verdict = proposal(), Verdict("ok", "a note", 2.1, 50.0, "allocated", 12.0, 8, 0.01)
    with State(Path("s")) as state:
        state.begin(1, asked, ("train", "--x"), False)
        state.finish(1, verdict)
    (trial,) = kept("s")
    assert (trial.strategy, trial.why, trial.predicted_s, trial.low_s, trial.high_s) == (
        asked.strategy,
        *("a reason", 2.0, 1.5, 2.5),
    )
    assert trial.command == ("train", "--x")
    assert {name: getattr(trial, name) for name in vars(verdict)} == vars(verdict)
    assert trial.directory == Path("s/trial-001").absolute()


def test_a_trial_that_is_over_stays_as_it_is() -> None:
    with State(Path("s")) as state:
        state.begin(1, proposal(), (), True)
        state.finish(1, Verdict("oom", ""))
        assert state.finish(1, Verdict("ok", "", 2.0)).outcome == "oom"


def test_two_tuners_do_not_share_a_folder() -> None:
    tune("--run", TRAINING, "--max-trials", "1")
    with State(Path("spec.tune")):
        assert "in use by another" in errors("--max-trials", "0")


def test_another_spec_is_refused_with_what_differs() -> None:
    tune("--run", TRAINING, "--max-trials", "1")
    before = kept()
    write("other.yaml", SPEC.replace("num_gpus: 8", "num_gpus: 16").replace("pp: 1", "pp: 2"))
    with State(Path("spec.tune")) as state, pytest.raises(InputError) as error:
        state.bind(Binding(spec_meaning(load_problem("other.yaml")), None))
    assert "cluster.num_gpus is 8 there and 16 here" in str(error.value)
    assert "search.pin.pp is [1] there and [2] here" in str(error.value)
    assert kept() == before


def test_how_many_plans_and_how_long_a_search_may_take_do_not_matter() -> None:
    more = SPEC.replace("top: 3", "top: 7, time_limit_s: 60")
    assert spec_meaning(problem()) == spec_meaning(load_problem(write("other.yaml", more)))


def test_another_command_is_refused_and_other_blanks_are_not() -> None:
    tune("--run", TRAINING, "--max-trials", "1")
    assert "the command.text is" in errors("--run", TRAINING + " --iters 9", "--max-trials", "1")
    tune("--run", TRAINING.replace(" ", "   "), "--max-trials", "1")


def test_a_template_is_stored_whole() -> None:
    for template in (parse_template("a 'b c' {arguments} {{x}}", False), parse_template("echo $A | b {tp}", True)):
        found, target = stored_template(command_meaning(template, "megatron-lm"))
        assert (found.words, found.shell, target) == (template.words, template.shell, "megatron-lm")


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE trials SET strategy = replace(strategy, 'h100', 'h200')",
        "UPDATE trials SET strategy = 'x', checksum = NULL",
        "UPDATE trials SET step_time_s = 1.0",
        "UPDATE trials SET note = CAST(x'ff' AS TEXT)",
        "UPDATE bound SET value = '{'",
        "DROP TABLE bound",
    ],
)
def test_damage_is_told(change: str) -> None:
    with State(Path("s")) as state:
        state.begin(1, proposal(), (), False)
        state.bind(Binding({}, None))
    with closing(sqlite3.connect("s/tune.sqlite")) as database, database:
        database.execute(change)
    with pytest.raises(InputError, match=r"damaged"), State(Path("s")) as state:  # noqa: PT012
        state.bind(Binding({}, None))
        state.trials()


def test_a_newer_version_is_refused() -> None:
    tune("--run", TRAINING, "--max-trials", "1")
    with closing(sqlite3.connect("spec.tune/tune.sqlite")) as database, database:
        database.execute("UPDATE schema_version SET version = 2")
    assert "has version 2 of the tables, and this apss-cp reads and writes version 1" in errors("--max-trials", "0")


def test_folders_that_cannot_be_used() -> None:
    write("file", "")
    Path("full").mkdir()
    write("full/thesis.txt", "")
    assert "it is a file" in errors("--run", TRAINING, "--state", "file")
    assert "with other things in it" in errors("--run", TRAINING, "--state", "full")
    assert "there is no directory" in errors("--run", TRAINING, "--state", "no/such")
    assert [path.name for path in Path("full").iterdir()] == ["thesis.txt"]
    Path("broken").mkdir()
    write("broken/tune.sqlite", "this is no database" * 100)
    assert "not a database" in errors("--run", TRAINING, "--state", "broken")


def test_differences_are_told_by_name() -> None:
    assert differences({"a": {"b": 1}, "c": [1]}, {"a": {"b": 2}, "c": [1], "d": None}, "") == [
        "a.b is 1 there and 2 here"
    ]
