"""Writes docs/cli.md, the reference of every command, from the commands themselves: `python -m tools.cli_reference`.

A test checks that the file is what this writes.
"""

from __future__ import annotations

import re
from inspect import cleandoc
from pathlib import Path
from typing import Any

import click

from cpsolver.commands import COMMANDS
from cpsolver.commands.main import main

TARGET = Path(__file__).parent.parent / "docs" / "cli.md"
_HEAD = """# The commands

Written by `python -m tools.cli_reference` from the commands; `apss-cp COMMAND --help` says the same.

Exit codes: 0 a plan; 2 bad input; 3 proven infeasible; 4 no plan within the time limit; 130 stopped by Ctrl-C;
70 a bug in apss-cp. With `--json` errors are JSON too.
"""


def reference() -> str:
    """The whole file."""
    context = click.Context(main, info_name="apss-cp", **main.context_settings)
    lines = [_HEAD, *(f"- [{name}](#{name}): {line}" for name, (_, line) in COMMANDS.items())]
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        lines.append(_section(click.Context(command, info_name=name, parent=context), command))
    return "\n".join(lines).rstrip() + "\n"


def _section(context: click.Context, command: click.Command) -> str:
    """A command: how it is called, what it does, its options."""
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    options = [_option(option) for option in command.params if isinstance(option, click.Option) and not option.hidden]
    table = ["| option | |", "| --- | --- |", *options] if options else []
    parts = [f"\n## {context.info_name}\n", f"`{usage}`\n", *_paragraphs(cleandoc(command.help or "")), *table]
    return "\n".join(parts)


def _paragraphs(text: str) -> list[str]:
    """The help's text; what click keeps as it is written becomes a block of code."""
    parts: list[str] = []
    for paragraph in text.replace("\r", "").split("\n\n"):
        if not paragraph.startswith("\b"):
            parts.append(" ".join(paragraph.split()).replace("<", "\\<") + "\n")
            continue
        head, *code = paragraph.removeprefix("\b\n").split("\n")
        parts.append("\n".join([head, "", "```", *(line.removeprefix("  ") for line in code), "```", ""]))
    return parts


def _option(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in option.opts)
    metavar = "" if option.is_flag else f" {option.metavar or _kind(option.type)}"
    usual = f" Default: {option.default}." if option.show_default and option.default is not None else ""
    required = " Required." if option.required else ""
    return f"| {names}{_escaped(metavar)} | {_escaped((option.help or '') + required + usual)} |"


def _kind(kind: click.ParamType[Any]) -> str:
    """What a value of an option without a word of its own is: choices, or the range of a number."""
    if isinstance(kind, click.Choice):
        return " or ".join(map(str, kind.choices))
    return re.sub(r" range$", "", kind.name).upper()


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "\\<")


if __name__ == "__main__":
    TARGET.write_text(reference(), encoding="utf-8")
