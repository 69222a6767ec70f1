import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from cpsolver.commands import COMMANDS
from cpsolver.commands import main as cli
from cpsolver.evaluation.evaluation import PARTS
from tests.support.checkout import ROOT
from tests.support.command import command, in_tmp, messages, run, write  # noqa: F401
from tests.support.selection import first, full

EXAMPLES = ROOT / "examples"
SMALL = """\
model: llama2-7b
cluster: {num_gpus: 16, chips: {a800: 8, h800: 16}}
training: {global_batch_size: 32, sequence_length: 2048}
search: {top: 2, pin: {vpp: 1, tp: [1, 2], flash_attention: true}}
"""
TOO_BIG = """\
model: llama2-70b
cluster: {num_gpus: 8, chips: a800}
training: {global_batch_size: 8, sequence_length: 4096}
search: {pin: {vpp: 1}}
"""


def commands() -> list[tuple[str, click.Command]]:
    names = cli.main.list_commands(click.Context(cli.main))
    return [(name, command(name)) for name in names]


# Help and start-up.


@pytest.mark.parametrize(("name", "command"), commands(), ids=[name for name, _ in commands()])
def test_every_command_has_help_with_an_example_and_documents_its_options(name: str, command: click.Command) -> None:
    _, line = COMMANDS[name]
    assert len(line) <= 72
    assert f"  {name}" in run("--help").stdout
    assert line in run("--help").stdout
    text = run(name, "--help").stdout
    assert f"Example:\n    apss-cp {name}" in text
    named = {option.name for option in command.params if isinstance(option, click.Option) and not option.hidden}
    for option in command.params:
        if isinstance(option, click.Option) and option.hidden:  # another name of one that is shown
            assert option.name in named
            continue
        assert isinstance(option, click.Argument) or option.help, option.name
        if isinstance(option, click.Option):
            assert option.opts[0] in text


def test_help_and_version_import_nothing_heavy() -> None:
    heavy = ("numpy", "ortools", "pydantic", "rich.console", "ruamel.yaml")
    code = f"""
import sys, cli
for args in (['--help'], ['solve', '--help'], ['search', '--help'], ['--version']):
    try:
        cli.main(args)
    except SystemExit as end:
        assert not end.code, end.code
print([name for name in {heavy} if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_a_misspelt_command_gets_the_nearest() -> None:
    result = run("slove", "spec.yaml")
    assert result.exit_code == 2
    assert "Did you mean 'solve'?" in result.stderr
    assert "No such command 'xyz'." in run("xyz").stderr


def test_version() -> None:
    assert re.fullmatch(r"apss-cp, version \d+\.\d+\.\d+\S*\n", run("--version").stdout)


# solve.


def test_solve_prints_a_report_and_exits_0() -> None:
    result = run("solve", write("spec.yaml", SMALL))
    assert result.exit_code == 0
    assert messages(result) == ""
    assert "Run this  plan 1" in result.stdout
    assert "Proven: the 2 fastest of" in run("solve", "spec.yaml", "--full").stdout


def test_solve_json_is_one_consistent_document() -> None:
    result = run("solve", write("spec.yaml", SMALL), "--json")
    document = json.loads(result.stdout, parse_constant=lambda name: pytest.fail(name))
    told = ["status", "problem", "plans", "recommendation", "open_switches", "proof", "reasons", "versions"]
    assert list(document) == told
    assert document["status"] == "optimal"
    assert document["problem"]["chips"] == {"a800": 8, "h800": 16}
    assert {"apss_cp", "ortools", "python", "answer"} == set(document["versions"])
    assert [plan["rank"] for plan in document["plans"]] == [1, 2, *range(3, len(document["plans"]) + 1)]
    assert [plan["added"] for plan in document["plans"]] == [False, False] + [True] * (len(document["plans"]) - 2)
    times = [plan["step_time_s"] for plan in document["plans"] if not plan["added"]]
    assert times == sorted(times)
    assert document["recommendation"]["fastest"] == 0
    assert document["recommendation"]["run_this"] in range(len(document["plans"]))
    families = [plan["family"] for plan in document["plans"][:2]]
    assert len(set(families)) == 2
    tokens = 32 * 2048
    for plan in document["plans"]:
        assert plan["proven"]
        assert plan["gap"] == 0
        assert sum(plan["breakdown_s"].values()) == pytest.approx(plan["step_time_s"])
        assert plan["throughput_tokens_per_s"] == pytest.approx(tokens / plan["step_time_s"])
        assert plan["throughput_tokens_per_s_per_gpu"] * 16 == pytest.approx(plan["throughput_tokens_per_s"])
        assert 0 < plan["mfu"] < 1
        assert plan["memory_gib"].keys() == plan["capacity_gib"].keys()
        assert plan["step_time_low_s"] < plan["step_time_s"] < plan["step_time_high_s"]
        assert "published runs" in plan["interval_basis"]
        assert set(plan["breakdown_s"]) == set(PARTS)
        for stage in plan["stages"]:
            seconds = dict(stage["microbatch_s"])
            assert seconds.pop("total") == pytest.approx(sum(seconds.values()))
            assert {"fragments"} < set(stage["memory_gib"])
            assert "sharding" in seconds
            assert stage["device_memory_gib"] > stage["memory_gib"]["total"]
            parts = dict(stage["memory_gib"])
            total = parts.pop("total")
            assert sum(parts.values()) == pytest.approx(total)
            assert total <= plan["memory_gib"][stage["chip"]] <= plan["capacity_gib"][stage["chip"]]
    proof = document["proof"]
    ends = ("memory", "bounded", "solved", "open")
    assert sum(proof["refused"].values()) + sum(proof[end] for end in ends) == proof["considered"]


@pytest.mark.full
def test_a_solved_plan_can_be_evaluated_with_the_same_numbers() -> None:
    spec = write("spec.yaml", SMALL)
    plans = json.loads(run("solve", spec, "--json").stdout)["plans"]
    for plan in plans:
        given = write("plan.json", json.dumps(plan["strategy"]))
        result = run("evaluate", spec, "--strategy", given, "--json")
        document = json.loads(result.stdout)
        assert result.exit_code == 0
        assert (document["status"], document["legal"], document["violations"]) == ("evaluated", True, [])
        for name, value in document["plans"][0].items():
            assert name in ("rank", "tie_with_best", "probability_fastest") or value == plan[name]


def test_top_and_time_limit_replace_the_specs() -> None:
    text = SMALL.replace("top: 2", "top: 5, time_limit_s: 1000")
    result = run("solve", "-", "--json", "--top", "1", "--time-limit", "500", stdin=text)
    assert len(json.loads(result.stdout)["plans"]) == 1
    for wrong in (("--top", "0"), ("--top", "101"), ("--time-limit", "0"), ("--time-limit", "nan")):
        assert run("solve", write("spec.yaml", SMALL), *wrong).exit_code == 2


@pytest.mark.full
def test_verbose_shows_the_search_on_stderr() -> None:
    spec = write("spec.yaml", SMALL)
    quiet, verbose = run("solve", spec, "--json"), run("solve", spec, "--json", "--verbose")
    assert messages(quiet) == ""
    assert "bounding" in verbose.stderr
    assert json.loads(verbose.stdout)["plans"] == json.loads(quiet.stdout)["plans"]


@pytest.mark.full
def test_output_goes_to_the_file() -> None:
    spec = write("spec.yaml", SMALL)
    assert run("solve", spec, "--json", "-o", "out.json").stdout == ""
    assert json.loads(Path("out.json").read_text())["status"] == "optimal"
    assert run("solve", spec, "-o", "out.txt").stdout == ""
    assert "Run this" in Path("out.txt").read_text()


@pytest.mark.full
def test_a_model_too_big_exits_3_with_reasons() -> None:
    spec = write("spec.yaml", TOO_BIG)
    result = run("solve", spec)
    assert result.exit_code == 3
    assert "There is no plan" in result.stdout
    result = run("solve", spec, "--json")
    assert result.exit_code == 3
    document = json.loads(result.stdout)
    assert (document["status"], document["plans"]) == ("infeasible", [])
    assert document["reasons"]


def test_no_plan_in_time_exits_4() -> None:
    text = (EXAMPLES / "llama2-70b-mixed.yaml").read_text()
    spec = write("spec.yaml", text)
    result = run("solve", spec, "--time-limit", "0.000001")
    assert result.exit_code == 4
    assert "No plan found by the time limit" in result.stdout
    assert json.loads(run("solve", spec, "--time-limit", "0.000001", "--json").stdout)["status"] == "unknown"


@pytest.mark.skipif(os.name == "nt", reason="signals")
@pytest.mark.parametrize(("event", "codes"), [("bounding", (0, 4)), full("optimal:", (0,))])
def test_ctrl_c_in_a_search_ends_with_what_is_known(event: str, codes: tuple[int, ...]) -> None:
    spec = str(EXAMPLES / "llama2-70b-mixed.yaml")  # with 100 plans, many to be solved: it takes a while
    command = [sys.executable, "-m", "cli", "solve", spec, "--top", "100", "--verbose"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while event not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode in codes
    assert "the interruption" in " ".join(out.split())
    assert "Traceback" not in out + err


@pytest.mark.full
def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m cli models | head -1"
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr


SOLVED = (
    *("llama2-70b-a800-256", "llama2-70b-mixed", "custom-model", "pinned", "seed-published"),
    *("llama-65b-ascend-32", "llama3.1-405b-long-context"),
)  # those with experts take longer, and are only resolved: tests/system/test_docs.py


@pytest.mark.parametrize("name", first(1, SOLVED))
def test_every_example_is_solved(name: str) -> None:
    result = run("solve", str(EXAMPLES / f"{name}.yaml"))
    assert result.exit_code == 0
    assert "proven, as predicted: none of" in result.stdout


@pytest.mark.full
def test_a_strange_chip_name_is_shown_as_it_is() -> None:
    text = (EXAMPLES / "custom-model.yaml").read_text().replace("mychip:", "'[/x]':")
    result = run("solve", "-", stdin=text)
    assert result.exit_code == 0
    assert "[/x]" in result.stdout


# evaluate.


def test_the_published_plan_is_an_example() -> None:
    spec, strategy = (str(EXAMPLES / f"seed-published{end}.yaml") for end in ("", "-strategy"))
    result = run("evaluate", spec, "--strategy", strategy)
    assert result.exit_code == 0
    assert "Legal" in result.stdout


def test_a_plan_out_of_memory_is_evaluated_and_refused() -> None:
    spec = str(EXAMPLES / "seed-published.yaml")
    text = (EXAMPLES / "seed-published-strategy.yaml").read_text().replace("mbs: 1", "mbs: 4")
    result = run("evaluate", spec, "-s", write("plan.yaml", text))
    assert result.exit_code == 3
    assert "Not legal" in result.stdout
    assert "memory: stage" in result.stdout
    document = json.loads(run("evaluate", spec, "-s", "plan.yaml", "--json").stdout)
    assert not document["legal"]
    assert {found["rule"] for found in document["violations"]} == {"memory"}
    assert document["plans"][0]["step_time_s"] > 0


def test_a_plan_that_does_not_add_up_is_bad_input_with_every_violation() -> None:
    spec = str(EXAMPLES / "seed-published.yaml")
    text = (EXAMPLES / "seed-published-strategy.yaml").read_text()
    plan = write("plan.yaml", text.replace("dp: 16", "dp: 3").replace("[3]", "[4]"))
    result = run("evaluate", spec, "-s", plan)
    assert result.exit_code == 2
    assert result.stdout == ""
    for rule in ("degrees", "batch", "layers"):
        assert f"error: plan.yaml: {rule}: " in result.stderr
    document = json.loads(run("evaluate", spec, "-s", plan, "--json").stdout)
    assert (document["status"], document["plans"]) == ("not_evaluated", [])
    assert len(document["violations"]) >= 3


# init, schema, models, chips.


def test_init_writes_a_spec_that_loads_and_never_overwrites_unasked() -> None:
    from cpsolver.spec.spec import load_spec

    result = run("init", "my.yaml")
    assert result.exit_code == 0
    assert load_spec("my.yaml").model == "llama2-70b"
    named = Path("my.yaml").read_text().splitlines()[0].removeprefix("# yaml-language-server: $schema=")
    assert json.loads(Path(named).read_text())["title"] == "apss-cp spec"
    write("my.yaml", "mine")
    result = run("init", "my.yaml")
    assert result.exit_code == 2
    assert "my.yaml: is there already" in result.stderr
    assert Path("my.yaml").read_text() == "mine"
    assert run("init", "my.yaml", "--force").exit_code == 0
    assert Path("my.yaml").read_text() != "mine"
    assert run("init", "-").stdout == Path("my.yaml").read_text()
    assert "cannot be written" in run("init", "nowhere/my.yaml").stderr


def test_schema_is_json() -> None:
    schema = json.loads(run("schema").stdout)
    assert set(schema["properties"]) == {"model", "cluster", "training", "stack", "launcher", "search"}


@pytest.mark.parametrize(
    ("command", "name", "wrong"), [("models", "llama2-70b", "lama2-70b"), ("chips", "h800", "h80")]
)
def test_the_catalogues(command: str, name: str, wrong: str) -> None:
    """All models can be planned, and not all chips."""
    listing = run(command).stdout
    assert name in listing
    assert ("cannot be planned yet" in listing) is (command == "chips")
    entries = json.loads(run(command, "--json").stdout)
    assert len(entries) > 40
    assert command == "models" or all(entry["supported"] != bool(entry["unsupported_reasons"]) for entry in entries)
    detail = run(command, name).stdout
    assert "sources" in detail
    assert json.loads(run(command, name, "--json").stdout)["name"] == name
    result = run(command, wrong)
    assert result.exit_code == 2
    assert name in result.stderr


def test_the_catalogue_says_what_is_a_proposal_and_what_is_assumed() -> None:
    assert "a proposal" in run("models", "llama-175b").stdout
    assert "assumed" in run("chips", "a800").stdout


@pytest.mark.full
def test_evaluate_takes_what_solve_prints() -> None:
    spec = write("spec.yaml", SMALL)
    answer = write("answer.json", run("solve", spec, "--json").output)
    again = json.loads(run("evaluate", spec, "--strategy", answer, "--json").output)["plans"][0]
    best = json.loads(Path(answer).read_text())["plans"][0]
    assert again["strategy"] == best["strategy"]
    assert again["step_time_s"] == best["step_time_s"]


def test_an_answer_never_overwrites_its_spec() -> None:
    spec = write("spec.yaml", SMALL)
    result = run("solve", spec, "--output", spec)
    assert result.exit_code == 2
    assert "would overwrite it" in result.output
    assert Path(spec).read_text() == SMALL


def test_a_closed_stdout_is_told() -> None:
    command = f"exec {sys.executable} -m cli models >&-"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert "stdout is closed" in done.stderr
