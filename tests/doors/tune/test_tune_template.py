"""Templates: words, fields, quotes, and all that is wrong with one told before anything runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cpsolver.doors.tune.template import FIELDS, check_command, parse_template, values_of
from cpsolver.inputs.errors import InputError
from cpsolver.search.search import search
from tests.support.command import in_tmp as in_tmp
from tests.support.tuning import errors, problem

VALUES = dict.fromkeys(FIELDS, "7") | {"plan": "/a b/plan.json"}


def test_arguments_are_many_words_and_the_others_one_each() -> None:
    command = parse_template("train 'my data' {arguments} --plan={plan} {tp}x{pp}", False).command(
        VALUES, ("-a", "1 2")
    )
    assert command == ("train", "my data", "-a", "1 2", "--plan=/a b/plan.json", "7x7")


def test_doubled_braces_are_braces() -> None:
    assert parse_template("echo {{tp}} {{{tp}}}", False).command(VALUES, ()) == ("echo", "{tp}", "{7}")


def test_shell_gets_quoted_values() -> None:
    command = parse_template("cat {plan} | run {arguments} $HOME", True).command(VALUES, ("-a", "x y", "$(rm)"))
    assert command == ("/bin/sh", "-c", "cat '/a b/plan.json' | run -a 'x y' '$(rm)' $HOME")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("train {argumets}", "did you mean 'arguments'"),
        ("train {tp:02d}", "is not a field"),
        ("train {tp!r}", "is not a field"),
        ("train {}", "is not a field"),
        ("train x{arguments}", "a word of its own"),
        ("train {tp", "without its partner"),
        ("train tp}", "without its partner"),
        ("train 'tp", "cannot be split"),
        ("  ", "is empty"),
    ],
)
def test_what_is_wrong_is_told(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told.replace("(", r"\(")):
        parse_template(text, False)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("cat '{plan}'", "in quotes"),
        ('cat "{plan}"', "in quotes"),
        ('bash -c "train {arguments}"', "in quotes"),
        ('x "$(cat "{plan}")"', "in quotes"),
        ("x `cat {plan}`", "in backticks"),
        ("x \\{plan}", "after a backslash"),
        ("x # {directory}", "in a comment"),
        ("cat <<END\n{plan}\nEND", "after <<"),
    ],
)
def test_a_shell_is_given_no_text_where_quoting_does_not_hold(text: str, place: str) -> None:
    with pytest.raises(InputError, match=f"stands {place}"):
        parse_template(text, True)


@pytest.mark.parametrize(
    "text",
    [
        'x "$(cat {plan})"',
        "# a comment\ncat {plan}",
        'x \'a\'{plan}"b" \'(\' {directory}/x "--tp={tp}" ")"',
        'echo a#b "a\\"" {plan} $(run {arguments})',
        "(cd {directory}; x=${{A:-{plan}}} run)",
    ],
)
def test_a_shell_is_given_texts_that_stand_by_themselves(text: str) -> None:
    told = parse_template(text, True).command(VALUES | {"plan": "$(touch it)", "directory": "/d e"}, ("$(touch it)",))
    script = f"cat() {{ :; }}; run() {{ :; }}; x() {{ :; }}; cd() {{ :; }}; {told[2]}"
    if "#" not in text[:1]:
        subprocess.run([told[0], "-c", script], check=True)
    assert not Path("it").exists()


def test_every_problem_at_once() -> None:
    with pytest.raises(InputError) as error:
        parse_template("a {b} {c} {d", False)
    assert len(error.value.troubles) == 3


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no-such-command-here", "no such command"),
        ("./missing.sh", "no such file"),
        ("./plain.sh", "may not be run"),
        ("./folder/", "is a directory"),
        ("A=1 sh", "needs --shell"),
    ],
)
def test_commands_that_are_not_there(text: str, told: str) -> None:
    Path("plain.sh").write_text("", encoding="utf-8")
    Path("folder").mkdir()
    with pytest.raises(InputError, match=told):
        check_command(parse_template(text, False))


def test_commands_that_only_a_trial_knows_are_let_be() -> None:
    check_command(parse_template("{directory}/train.sh", False))
    check_command(parse_template("A=1 no-such-command", True))


def test_nothing_is_written_for_a_wrong_template() -> None:
    assert "no such command" in errors("--run", "no-such-command-here {arguments}")
    assert not Path("spec.tune").exists()


def test_values_are_those_of_the_plan_and_the_spec() -> None:
    given = problem()
    strategy = search(given).plans[0].strategy
    values = values_of(given, strategy, 3, Path("/state/trial-003"), Path("/state/trial-003/plan.json"))
    assert set(values) == set(FIELDS) - {"arguments"}
    assert (values["trial"], values["directory"], values["plan"]) == (
        "3",
        "/state/trial-003",
        "/state/trial-003/plan.json",
    )
    assert int(values["tp"]) * int(values["dp"]) * int(values["pp"]) * int(values["cp"]) == 8
    sizes = ("num_gpus", "nodes", "gpus_per_node", "gbs", "seq_length")
    assert [values[name] for name in sizes] == ["8", "1", "8", "32", "4096"]
