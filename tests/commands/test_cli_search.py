import ast
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cpsolver.doors.report.seed_tool import plan_dictionary
from cpsolver.problem.load import problem_from
from cpsolver.problem.strategy_file import load_strategy
from cpsolver.search.search import search
from tests.support.checkout import ROOT
from tests.support.command import command, in_tmp, run, write  # noqa: F401

EXAMPLES = ROOT / "examples"
SEED_KEYS = ["sim_throughput", "sim_total_time_s", "max-use-mem-size", "strategy"]
MORE_SIZES = [
    "context-parallel-size",
    "cp-comm-type",
    "hierarchical-context-parallel-sizes",
    "expert-model-parallel-size",
    "expert-tensor-parallel-size",
]
SHARDING = ["data-parallel-sharding-strategy", "num-distributed-optimizer-instances"]
STRATEGY_KEYS = [
    "pipeline-model-parallel-size",
    "tensor-model-parallel-size",
    "micro-batch-size",
    *MORE_SIZES,
    "use-flash-attn",
    "sequence-parallel",
    "use-distributed-optimizer",
    "fused-rmsnorm",
    "apply-rotary-positional-embedding-kernel",
    *SHARDING,
    "pipeline-stage-chips",
    "pipeline-stage-layers",
    "recompute-granularity",
    "recompute-method",
    "recompute-num-layers",
    "recompute-modules",
]
FLAG_KEYS = STRATEGY_KEYS[8:13]


def search_plans(*args: str) -> list[dict[str, Any]]:
    result = run("search", *args)
    assert result.exit_code == 0, result.output
    return [ast.literal_eval(line) for line in result.stdout.splitlines()]


def test_search_has_the_seeds_flags_and_defaults() -> None:
    expected = {
        "--model-name": "llama2-70b",
        "--num-gpus": 256,
        "--gpu-infos": "a800",
        "--nproc-per-node": 8,
        "--global-batch-size": 1024,
        "--sequence-length": 4096,
        "--top": 5,
        "--mode": "fast",
    }
    options = {option.opts[0]: option.default for option in command("search").params}
    assert set(options) - set(expected) == {"--launcher", "--tokens", "--prices", "--json"}  # ours
    assert {name: options[name] for name in expected} == expected


@pytest.mark.parametrize("infos", ["a800", "a800:128,h800:160"])
def test_search_prints_the_seeds_dictionaries(infos: str) -> None:
    plans = search_plans("--gpu-infos", infos, "--global-batch-size", "512", "--top", "3")
    assert len(plans) == 3
    assert sorted(plan["sim_total_time_s"] for plan in plans) == [plan["sim_total_time_s"] for plan in plans]
    for plan in plans:
        assert list(plan) == SEED_KEYS
        assert type(plan["sim_throughput"]) is int
        assert plan["sim_throughput"] == pytest.approx(512 * 4096 / plan["sim_total_time_s"], abs=1)
        check_strategy(plan["strategy"], len(plan["max-use-mem-size"]))


def check_strategy(strategy: dict[str, Any], types: int) -> None:
    assert list(strategy) == [key for key in STRATEGY_KEYS if key in strategy]
    assert all(strategy[key] == "" for key in FLAG_KEYS if key in strategy)
    stages = strategy["pipeline-model-parallel-size"]
    chips = strategy["pipeline-stage-chips"]
    assert len(chips) == (stages if types > 1 else 1)
    assert len(set(chips)) == types
    if types > 1:
        assert len(strategy["pipeline-stage-layers"]) == stages
        assert sum(strategy["pipeline-stage-layers"]) == 80
    else:
        assert "pipeline-stage-layers" not in strategy
        assert 80 % stages == 0
    for key in STRATEGY_KEYS[-4:-1]:
        assert len(strategy[key]) == types
    for granularity, method, amount in zip(*(strategy[key] for key in STRATEGY_KEYS[-4:-1]), strict=True):
        assert granularity in (None, "full", "selective")
        assert method in ((None,) if granularity != "full" else ("block", "uniform"))
        assert (amount is not None) == (granularity == "full")


def test_search_json_has_the_same_plans() -> None:
    args = ("--model-name", "llama2-7b", "--num-gpus", "16", "--global-batch-size", "48", "--top", "2")
    lines = run("search", *args, "--json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == search_plans(*args)


def test_a_line_of_search_can_be_evaluated() -> None:
    spec = str(EXAMPLES / "llama2-70b-mixed.yaml")
    (plan,) = search_plans("--gpu-infos", "a800:128,h800:160", "--global-batch-size", "512", "--top", "1")
    result = run("evaluate", spec, "--strategy", write("line.txt", repr(plan)), "--json")
    (found,) = json.loads(result.stdout)["plans"]
    assert found["step_time_s"] == pytest.approx(plan["sim_total_time_s"])
    assert list(found["memory_gib"].values()) == pytest.approx(plan["max-use-mem-size"])


NEW: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "experts": ("mixtral-8x7b", {"ep": 4, "etp": 2, "tp": 2, "pp": 2}, {"expert-model-parallel-size": 4}),
    "all-to-all": ("llama2-7b", {"cp": 4, "ulysses": 4}, {"context-parallel-size": 4, "cp-comm-type": "a2a"}),
    "both": ("llama2-7b", {"cp": 4, "ulysses": 2}, {"hierarchical-context-parallel-sizes": [2, 2]}),
    "gather": ("llama2-7b", {"cp": 2, "cp_gather": True}, {"cp-comm-type": "allgather"}),
    "parameters": ("llama2-7b", {"sharded": "parameters"}, {"data-parallel-sharding-strategy": "optim_grads_params"}),
    "modules": (
        "llama2-7b",
        {"recompute": "selective", "recompute_modules": ["core_attn", "mlp"]},
        {"recompute-modules": [["core_attn", "mlp"]]},
    ),
    "group": ("llama2-7b", {"sharding_group": 8, "dp": 16}, {"num-distributed-optimizer-instances": 2}),
}


@pytest.mark.parametrize("name", NEW)
def test_what_the_seed_did_not_search_has_megatrons_names_and_is_read_back(name: str) -> None:
    model, pin, said = NEW[name]
    spec = {
        "model": model,
        "cluster": {"num_gpus": 16, "chips": "h100"},
        "training": {"global_batch_size": 32, "sequence_length": 4096},
        "search": {"top": 1, "layer_split": "even", "pin": {"vpp": 1, "mbs": 1, **pin}},
    }
    problem = problem_from(spec)
    (plan,) = search(problem).plans
    line = plan_dictionary(problem, plan)
    assert said.items() <= line["strategy"].items()
    assert list(line["strategy"]) == [key for key in STRATEGY_KEYS if key in line["strategy"]]
    assert load_strategy(write("line.txt", repr(line)), problem) == plan.strategy


def test_search_says_on_stderr_what_its_flags_leave_open() -> None:
    flags = ["--num-gpus", "8", "--gpu-infos", "h100", "--global-batch-size", "64", "--top", "1"]
    experts = run("search", "--model-name", "deepseek-v2-lite", *flags, "--launcher", "megatron-bridge")
    assert re.search(r"^Not given: graphs.*: [\d.]+ to [\d.]+ m?s a step\.$", experts.stderr, re.MULTILINE)
    assert set(ast.literal_eval(experts.stdout)) == set(SEED_KEYS)
    assert "Not given" not in run("search", "--model-name", "llama2-7b", *flags).stderr


def test_search_keeps_to_the_launcher() -> None:
    args = ("--model-name", "llama2-7b", "--num-gpus", "16", "--global-batch-size", "32", "--top", "1")
    (plan,) = search_plans(*args, "--launcher", "accelerate")
    assert plan["strategy"]["pipeline-model-parallel-size"] == 1
    result = run("search", "--launcher", "megatron")
    assert result.exit_code == 2
    assert "--launcher = 'megatron': unknown launcher" in result.stderr


@cache
def _mixed_plan() -> dict[str, Any]:
    (plan,) = search_plans("--gpu-infos", "a800:128,h800:160", "--global-batch-size", "512", "--top", "1")
    return plan


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cp-comm-type": "ring"}, "cp-comm-type = 'ring': is not one of the choices"),
        ({"cp-comm-type": "a2a+p2p"}, "hierarchical-context-parallel-sizes: must be the all-to-all and the ring size"),
        ({"context-parallel-size": 0}, "context-parallel-size = 0: must be a whole number"),
        ({"context-parallel-size": 3}, "times context parallelism's 3 does not divide the 256 GPUs"),
    ],
)
def test_a_line_that_contradicts_itself_is_refused(change: dict[str, Any], said: str) -> None:
    spec = str(EXAMPLES / "llama2-70b-mixed.yaml")
    plan = _mixed_plan()
    changed = {**plan, "strategy": {**plan["strategy"], **change}}
    result = run("evaluate", spec, "--strategy", write("line.txt", repr(changed)))
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_model_without_these_kernels_has_no_flags_for_them() -> None:
    args = ("--num-gpus", "256", "--gpu-infos", "a100", "--sequence-length", "2048", "--top", "1")
    (plan,) = search_plans("--model-name", "gpt3-175b", *args)
    assert not {"fused-rmsnorm", "apply-rotary-positional-embedding-kernel"} & set(plan["strategy"])


def test_analytic_mode_writes_a_trace_of_each_plan() -> None:
    args = ("--model-name", "llama2-13b", "--num-gpus", "16", "--global-batch-size", "32", "--top", "2")
    plans = search_plans(*args, "--mode", "analytic")
    for rank, plan in enumerate(plans, 1):
        trace = json.loads(Path(f"cache/plan-{rank}.json").read_text())
        passes = [event for event in trace["traceEvents"] if event.get("cat") in ("forward", "backward")]
        pp, shown = trace["otherData"]["pp"], trace["otherData"]["microbatches"]
        assert len(passes) == 2 * pp * shown
        end_s = max(event["ts"] + event["dur"] for event in passes) / 1e6
        assert 0.5 * plan["sim_total_time_s"] < end_s <= plan["sim_total_time_s"] * 1.01
    assert not Path("cache/plan-3.json").exists()


@pytest.mark.full
def test_search_fails_as_solve_does() -> None:
    args = ("--num-gpus", "8", "--global-batch-size", "8")
    result = run("search", *args)
    assert result.exit_code == 3
    assert result.stdout == ""
    assert "\nerror: " in f"\n{result.stderr}"  # what the wait is for may be told first
    document = json.loads(run("search", *args, "--json").stdout)
    assert document["status"] == "infeasible"


SEARCH_MISTAKES = [
    (["--num-gpus", "0"], "--num-gpus = 0: must be at least 1"),
    (["--num-gpus", "1048584"], "--num-gpus = 1048584: must be at most 1,048,576"),
    (["--num-gpus", "250"], "--num-gpus = 250: is not a multiple of --nproc-per-node = 8"),
    (["--nproc-per-node", "0"], "--nproc-per-node = 0: must be at least 1"),
    (["--global-batch-size", "1048577"], "--global-batch-size = 1048577: must be at most 1,048,576"),
    (["--sequence-length", "1000"], "--sequence-length = 1000: must be a multiple of 512 (allowed: 512 or 1,024)"),
    (["--sequence-length", "1049088"], "--sequence-length = 1049088: must be at most 1,048,576"),
    (["--top", "0"], "--top = 0: must be at least 1"),
    (["--model-name", "llama2-7"], "--model-name = 'llama2-7': unknown model"),
    (["--gpu-infos", "h80"], "--gpu-infos = 'h80': unknown chip"),
    (["--gpu-infos", "a800:100"], "--num-gpus = 256: is more than --gpu-infos has: 100 in all"),
    (["--gpu-infos", "a800:x"], "must be a whole number, not 'x'"),
    (["--gpu-infos", "a800:0,h800"], "--gpu-infos a800 = 0: must be at least 1"),
    (["--gpu-infos", "a800,,h800"], "names no chip type"),
    (["--gpu-infos", "a800,a800:8"], "names 'a800' twice"),
    (["--gpu-infos", ""], "names no chip type"),
]


@pytest.mark.parametrize(("args", "said"), SEARCH_MISTAKES, ids=[" ".join(args) for args, _ in SEARCH_MISTAKES])
def test_search_names_the_flag_that_is_wrong(args: list[str], said: str) -> None:
    result = run("search", *args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert said in result.stderr
    assert not re.search(r"(cluster|training|search)\.", result.stderr)


def test_search_lists_every_mistake() -> None:
    result = run("search", "--num-gpus", "0", "--top", "0", "--sequence-length", "7", "--model-name", "lama", "--json")
    assert result.exit_code == 2
    troubles = json.loads(result.stdout)["troubles"]
    assert {trouble["where"] for trouble in troubles} == {"--num-gpus", "--top", "--sequence-length", "--model-name"}
    assert len(result.stderr.splitlines()) == 4


def test_search_tells_days_and_dollars_on_stderr() -> None:
    flags = ("--model-name", "llama2-7b", "--num-gpus", "16", "--global-batch-size", "64", "--top", "1")
    told = run("search", *flags, "--tokens", "1e9", "--prices", "a800:1.2")
    assert re.search(
        r"1e\+09 tokens: [\d.]+ days expected \(80 % interval .*\), \$[\d.]+ \(\$[\d.]+ to \$[\d.]+\)\.", told.stderr
    )
    assert list(ast.literal_eval(told.stdout)) == SEED_KEYS
    wrong = run("search", *flags, "--tokens", "0", "--prices", "a800")
    assert wrong.exit_code == 2
    assert "--prices = 'a800': must be dollars per device-hour" in wrong.stderr
    assert "--tokens = 0.0: must be at least 1" in wrong.stderr
