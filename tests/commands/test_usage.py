"""Command lines that cannot be read: cpsolver/commands/usage.py."""

from __future__ import annotations

import json

import pytest

from tests.support.command import in_tmp, run, write

__all__ = ["in_tmp"]


def told(*words: str) -> list[tuple[str, str]]:
    """Name and message of each trouble that --json tells."""
    done = run(*words, "--json")
    assert done.exit_code == 2
    found = json.loads(done.stdout)
    assert found["status"] == "bad_input"
    return [(trouble["where"], trouble["message"]) for trouble in found["troubles"]]


def test_every_option_that_is_missing_or_wrong_is_told() -> None:
    done = run("plan", "--top", "0", "--seq", "2k")
    assert done.exit_code == 2
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert lines == [
        "Error: Missing argument 'MODEL'.",
        "Error: Missing option '--on'.",
        "Error: Missing option '--batch'.",
        "Error: Invalid value for '--seq': '2k' is not a valid integer.",
        "Error: Invalid value for '--top': 0 is not in the range 1<=x<=100.",
    ]
    assert done.stderr.count("Usage: ") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("solve", "x", "--top", "y"), "'y' is not a valid integer (allowed: 1 to 100)."),
        (("solve", "x", "--time-limit", "y"), "'y' is not a valid float (allowed: more than 0)."),
        (("import", "x", "--num-gpus", "y"), "'y' is not a valid integer (allowed: 1 or more)."),
    ],
)
def test_what_is_no_number_is_told_with_what_is_allowed(words: tuple[str, ...], said: str) -> None:
    assert said in run(*words).stderr


def test_machines_are_told_in_json() -> None:
    assert told("plan", "llama2-7b", "--on", "h100:8", "--seq", "x") == [
        ("--batch", "Missing option '--batch'."),
        ("--seq", "'x' is not a valid integer."),
    ]
    assert told("solve") == [("SPEC", "Missing argument 'SPEC'.")]
    assert told("solve", "x", "--topp", "3") == [("--topp", "No such option '--topp'. Did you mean '--top'?")]
    assert told("slove", "x") == [("", "No such command 'slove'. Did you mean 'solve'?")]
    chinese = run("solve", "--lang", "zh", "--top", "0", "--json")
    assert [trouble["where"] for trouble in json.loads(chinese.stdout)["troubles"]] == ["SPEC", "--top"]


def test_they_are_told_in_chinese() -> None:
    text = run("solve", "x", "--lang", "zh", "--top", "y").stderr
    assert "'y' 不是有效的数（integer）（允许：1 至 100）。" in text


def test_what_another_command_calls_it_is_known() -> None:
    write("spec.yaml", "{model: llama2-7b, cluster: {num_gpus: 8, chips: a800},\n"
          " training: {global_batch_size: 32, sequence_length: 2048}}")  # fmt: skip
    write("plan.yaml", "{tp: 2, dp: 4, mbs: 1, stages: [{chip: a800, layers: [32]}]}")
    for command in ("ranks", "check", "evaluate"):
        answers = {run(command, "spec.yaml", name, "plan.yaml").stdout for name in ("--plan", "-p", "--strategy", "-s")}
        assert len(answers) == 1
        assert "tp 2" in answers.pop() or command == "evaluate"
    assert "--strategy" not in run("ranks", "--help").stdout
    for name in ("--no-browser", "--no-open"):
        assert run("open", "nowhere.yaml", name).stderr == "error: nowhere.yaml: no such file\n"
        assert run("serve", "nowhere.yaml", name).stderr == "error: nowhere.yaml: no such file\n"
