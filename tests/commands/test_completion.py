"""What a shell completes."""

import click
import pytest
from click.shell_completion import ShellComplete

from cpsolver.commands.main import main


def completed(*arguments: str) -> list[str]:
    """What is offered for the last of the arguments."""
    shell = ShellComplete(main, {}, "apss-cp", "_APSS_CP_COMPLETE")
    return [item.value for item in shell.get_completions(list(arguments[:-1]), arguments[-1])]


@pytest.mark.parametrize(
    ("arguments", "offered"),
    [
        (("pl",), "plan"),
        (("plan", "llama3.1-7"), "llama3.1-70b"),
        (("plan", "meta-llama/Llama-3.1-7"), "meta-llama/Llama-3.1-70B"),
        (("plan", "llama3.1-70b", "--on", "h80"), "h800:"),
        (("plan", "llama3.1-70b", "--on", "h800:64,a80"), "h800:64,a800:"),
        (("plan", "llama3.1-70b", "--launcher", "megatron-l"), "megatron-lm"),
        (("plan", "llama3.1-70b", "--stack", "megatron-c"), "megatron-core"),
        (("plan", "llama3.1-70b", "--precision", "b"), "bf16"),
        (("plan", "llama3.1-70b", "--wri"), "--write-spec"),
        (("models", "QWEN3-2"), "qwen3-235b-a22b"),
        (("chips", "ascend_910b"), "ascend_910b"),
        (("stacks", "megatron-c"), "megatron-core"),
        (("export", "spec.yaml", "--to", "mega"), "megatron-lm"),
        (("search", "--gpu-infos", "a8"), "a800:"),
    ],
)
def test_names_are_completed(arguments: tuple[str, ...], offered: str) -> None:
    assert offered in completed(*arguments)


def test_a_spec_is_a_file() -> None:
    shell = ShellComplete(main, {}, "apss-cp", "_APSS_CP_COMPLETE")
    assert [item.type for item in shell.get_completions(["solve"], "spec")] == ["file"]


def test_every_option_that_takes_a_known_name_completes_it() -> None:
    for name in main.list_commands(click.Context(main)):
        command = main.get_command(click.Context(main), name)
        assert command is not None
        for option in command.params:
            if {"--launcher", "--stack", "--chip", "--to", "--model", "--model-name"} & set(option.opts):
                assert completed(name, option.opts[0], ""), (name, option.opts)
