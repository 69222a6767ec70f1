import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cpsolver.commands import main as cli
from cpsolver.commands.common import EXIT_BUG
from tests.support.checkout import ROOT
from tests.support.command import in_tmp, run, write  # noqa: F401

EXAMPLES = ROOT / "examples"
SMALL = """\
model: llama2-7b
cluster: {num_gpus: 16, chips: {a800: 8, h800: 16}}
training: {global_batch_size: 32, sequence_length: 2048}
search: {top: 2, pin: {vpp: 1, tp: [1, 2], flash_attention: true}}
"""
HYBRID = (
    "{layers: 4, hidden: 1024, ffn: 2816, heads: 8, vocab: 4000, mtp_layers: 1, layer_pattern: M-*-, "
    "mamba: {heads: 16, head_dim: 64, groups: 4, state: 128, conv: 4}}"
)

BAD_SPECS = {
    "unknown model": (SMALL.replace("llama2-7b", "llama2-7"), ["spec.yaml:1:1 model = 'llama2-7'", "'llama2-7b'"]),
    "unknown chip": (SMALL.replace("h800", "h80"), ["spec.yaml:2:", "'h80': unknown chip", "'h800'"]),
    "out of range": (SMALL.replace("num_gpus: 16", "num_gpus: 0"), ["cluster.num_gpus = 0: must be at least 1"]),
    "too few chips": (SMALL.replace("16, chips", "32, chips"), ["is more than cluster.chips has: 24 in all"]),
    "node size": (SMALL.replace("num_gpus: 16", "num_gpus: 12"), ["not a multiple of cluster.gpus_per_node = 8"]),
    "broken yaml": (SMALL.replace("32, seq", "32 seq"), ["spec.yaml:3:", "is not YAML"]),
    "duplicate key": (SMALL + "model: llama2-13b\n", ["spec.yaml:5:1", "written twice, first on line 1"]),
    "unknown key": (SMALL.replace("top: 2", "topp: 2"), ["spec.yaml:4:10", "did you mean 'top'"]),
    "module": (
        SMALL.replace("llama2-7b", HYBRID),
        ["model.mtp_pattern", "mtp_layers is 1 but mtp_pattern is not"],
    ),
    "unknown launcher": (SMALL + "launcher: megatron\n", ["spec.yaml:5:1 launcher = 'megatron'", "megatron-lm"]),
    "unknown stack": (SMALL + "stack: megatron\n", ["spec.yaml:5:1 stack = 'megatron'", "megatron-core"]),
    "empty": ("", ["is empty"]),
}


@pytest.mark.parametrize("command", ["explain", "evaluate", "check"])
def test_a_rank_of_no_file_is_refused(command: str) -> None:
    result = run(command, write("spec.yaml", SMALL), "--set", "tp=2", "--plan-rank", "2")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--plan-rank: says which plan of --strategy, and none is given" in result.stderr


@pytest.mark.parametrize("command", ["solve", "evaluate"])
@pytest.mark.parametrize("name", BAD_SPECS)
def test_bad_specs_exit_2_and_say_where(name: str, command: str) -> None:
    text, said = BAD_SPECS[name]
    more = ("-s", str(EXAMPLES / "seed-published-strategy.yaml")) if command == "evaluate" else ()
    result = run(command, write("spec.yaml", text), *more)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert all(line.startswith("error: ") for line in result.stderr.splitlines())
    for words in said:
        assert words in result.stderr


def test_several_mistakes_are_all_listed_in_order_as_text_and_json() -> None:
    text = SMALL.replace("llama2-7b", "lama2-7b").replace("16, chips: {a800", "0, chips: {a80").replace("32", "0")
    text = text.replace("top", "topp")
    result = run("solve", write("spec.yaml", text), "--json")
    assert result.exit_code == 2
    document = json.loads(result.stdout)
    assert document["status"] == "bad_input"
    assert [trouble["line"] for trouble in document["troubles"]] == [1, 2, 2, 3, 4]
    assert len(result.stderr.splitlines()) == 5


def test_a_missing_spec_and_a_missing_strategy() -> None:
    assert "nowhere.yaml: no such file" in run("solve", "nowhere.yaml").stderr
    result = run("evaluate", write("spec.yaml", SMALL), "-s", "nowhere.yaml")
    assert result.exit_code == 2
    assert "nowhere.yaml: no such file" in result.stderr


@pytest.mark.parametrize("output", ["nowhere/out.json", "."])
def test_an_unwritable_output_is_refused_before_the_search(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpsolver.explanation.account.search", lambda *_, **__: pytest.fail("searched first"))
    result = run("solve", write("spec.yaml", SMALL), "--output", output)
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr


def test_an_unwritable_cache_is_refused() -> None:
    write("cache", "a file")
    result = run("search", "--num-gpus", "8", "--model-name", "llama2-7b", "--mode", "analytic")
    assert result.exit_code == 2
    assert "cache" in result.stderr


def test_a_bug_is_told_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise AssertionError("a slip")

    monkeypatch.setattr("cpsolver.explanation.account.search", broken)
    result = CliRunner().invoke(cli.main, ["solve", write("spec.yaml", SMALL)])
    assert result.exit_code == EXIT_BUG
    assert "this is a bug in apss-cp: AssertionError: a slip" in result.stderr


def test_a_plan_that_breaks_a_rule_is_a_bug_with_the_plan_and_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpsolver.search.found.violations", lambda *_: ["memory: too much"])
    result = CliRunner().invoke(cli.main, ["solve", write("spec.yaml", SMALL)])
    assert result.exit_code == EXIT_BUG
    assert "this is a bug in apss-cp: InternalError: " in result.stderr
    assert "memory: too much. The plan: Strategy(tp=" in result.stderr


def test_ctrl_c_outside_a_search_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cpsolver.problem.load.load_problem", interrupted)
    result = run("solve", "spec.yaml")
    assert (result.exit_code, result.output) == (130, "")


def test_a_dash_for_the_output_is_stdout() -> None:
    write("spec.yaml", SMALL)
    done = run("ranks", "spec.yaml", "-o", "-")
    assert done.exit_code == 0
    assert "tp varies fastest" in done.stdout
    assert not Path("-").exists()


def test_a_misspelt_field_deep_in_a_model_or_chip_has_its_neighbour() -> None:
    moe = "{experts: 8, top_k: 2, expert_ffn: 512, topk: 2}"
    model = f"{{layers: 4, hidden: 1024, ffn: 2816, heads: 8, vocab: 32000, attention: {{knd: gqa}}, moe: {moe}}}"
    chip = "{max: 16, spec: {scale_out: {bandwith_gbit_s: 200}}}"
    result = run("solve", write("spec.yaml", SMALL.replace("llama2-7b", model).replace("a800: 8", f"ours: {chip}")))
    assert result.exit_code == 2
    for said in ("attention.knd = 'gqa': is not a known field; did you mean 'kind'?", "did you mean 'top_k'?"):
        assert said in result.stderr
    assert "bandwith_gbit_s = 200: is not a known field; did you mean 'bandwidth_gbit_s'?" in result.stderr
