"""plan: a problem in one line."""

import json
from pathlib import Path
from typing import Any

import pytest

import cpsolver
from cpsolver.inputs.errors import InputError
from cpsolver.problem.flags import OneLine
from tests.support.command import in_tmp, run, write  # noqa: F401

LINE = ("plan", "llama2-7b", "--on", "a800:16", "--batch", "16", "--seq", "2048", "--top", "1")


def test_a_line_is_answered_as_its_spec_and_writes_nothing() -> None:
    result = run(*LINE)
    assert result.exit_code == 0
    assert result.stdout.startswith("llama2-7b on 16 × a800; 16 × 2,048 tokens a step")
    assert not list(Path().iterdir())


def test_the_spec_that_is_asked_for_gives_the_same_answer() -> None:
    line = json.loads(run(*LINE, "--write-spec", "spec.yaml", "--json").stdout)
    solved = json.loads(run("solve", "spec.yaml", "--json").stdout)
    assert line["plans"][0]["strategy"] == solved["plans"][0]["strategy"]
    assert line["problem"] == solved["problem"]
    again = run(*LINE, "--write-spec", "spec.yaml")
    assert again.exit_code == 2
    assert "spec.yaml: is there already" in again.stderr


def test_a_spec_that_is_written_holds_all_that_was_said() -> None:
    write("mine.yaml", "layers: 4\nhidden: 1024\nffn: 2816\nheads: 8\nvocab: 4000\n")
    line = OneLine("mine.yaml", "h800:16,a800:8", 32, 2048, "megatron-lm", "megatron-core", "fp16", 4)
    Path("specs").mkdir()
    write("specs/spec.yaml", line.spec_text("specs/spec.yaml", top=2, time_limit_s=None))
    asked, read = line.problem(top=2), cpsolver.load_problem("specs/spec.yaml")
    assert (asked.num_gpus, asked.spec.cluster.gpus_per_node, asked.spec.search.top) == (24, 4, 2)
    assert (asked.spec.launcher, asked.spec.stack, asked.spec.training.precision) == (
        "megatron-lm",
        "megatron-core",
        "fp16",
    )
    assert (asked.model, asked.supplies, asked.spec.search) == (read.model, read.supplies, read.spec.search)
    assert asked.spec.training == read.spec.training


def test_fewer_devices_than_a_usual_node_are_one_node() -> None:
    assert OneLine("llama2-7b", "h100:4", 8, 512).problem().spec.cluster.gpus_per_node == 4


@pytest.mark.parametrize("model", ["meta-llama/Llama-3.1-70B", "Llama-3.1-70B", "llama3.1-70b"])
def test_models_go_by_their_repositories(model: str) -> None:
    assert OneLine(model, "h100:64", 64, 8192).problem().model.name == "llama3.1-70b"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"on": "h100"}, "--on = 'h100': does not say how many h100 there are"),
        ({"on": "h100:0"}, "--on = 'h100:0': has 0 of h100: at least 1"),
        ({"on": "h100:8,h100:8"}, "--on = 'h100:8,h100:8': names 'h100' twice"),
        ({"on": "h100:many"}, "must be a whole number, not 'many'"),
        ({"on": "h101:8"}, "--on = 'h101': unknown chip"),
        ({"on": "h100:12"}, "--on = 12: is not a multiple of --gpus-per-node = 8"),
        ({"model": "llama3.1-71b"}, "MODEL = 'llama3.1-71b': unknown model"),
        ({"batch": 0}, "--batch = 0: must be at least 1"),
        ({"seq": -1}, "--seq = -1: must be at least 1"),
        ({"launcher": "megatron"}, "--launcher = 'megatron': unknown launcher"),
        ({"stack": "core"}, "--stack = 'core': unknown"),
        ({"precision": "int8"}, "--precision = 'int8': is not one of the choices"),
    ],
)
def test_what_is_wrong_is_named_by_its_flag(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        OneLine(**{"model": "llama2-7b", "on": "h100:8", "batch": 8, "seq": 512, **changes}).problem()
    assert said in str(caught.value)


def test_chips_that_cannot_be_counted_hide_nothing_else() -> None:
    with pytest.raises(InputError) as caught:
        OneLine("llama2-7", "h101:0", 0, -1, gpus_per_node=8).problem()
    assert [trouble.where for trouble in caught.value.troubles] == ["--on", "--batch", "--seq", "MODEL", "--on"]
    for on in ("", {"ours": {"max": 0, "file": "nowhere.yaml"}}):  # and bring nothing about that is not there
        with pytest.raises(InputError) as caught:
            OneLine("llama2-7b", on, 0, 512).problem()
        assert [str(trouble.value) for trouble in caught.value.troubles if trouble.where == "--batch"] == ["0"]
        assert not any("unknown chip" in str(trouble) for trouble in caught.value.troubles)
