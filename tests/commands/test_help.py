"""Help in the user's language: cpsolver/commands/help.py."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner
from rich.cells import cell_len

from cpsolver.commands import COMMANDS
from cpsolver.commands.help import wide
from cpsolver.commands.main import main

CHINESE = re.compile("[\u4e00-\u9fff]")
WIDTH = 80


def helped(*args: str, locale: str = "C.UTF-8") -> str:
    done = CliRunner(env={"LC_ALL": locale}).invoke(main, [*args, "--help"], prog_name="apss-cp")
    assert done.exit_code == 0
    return done.stdout


def options(text: str, title: str) -> list[str]:
    return re.findall(r"^  (-\S+)", text.split(f"\n{title}\n")[1], re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_in_the_language_of_the_locale(name: str) -> None:
    english, chinese = helped(name), helped(name, locale="zh_CN.UTF-8")
    assert not CHINESE.search(english)
    assert chinese.startswith(f"用法： apss-cp {name}")
    assert "\n选项：\n" in chinese
    assert max(cell_len(line) for line in chinese.splitlines() if CHINESE.search(line)) <= WIDTH
    commands = [line.strip() for line in english.splitlines() if line.startswith("    apss-cp ")]
    assert all(command in chinese for command in commands)
    assert options(chinese, "选项：") == options(english, "Options:")


def test_the_program_s_help_and_an_explicit_language() -> None:
    assert "\n命令：\n" in helped("--lang", "zh")
    assert "\nCommands:\n" in helped("--lang", "en", locale="zh_CN.UTF-8")
    assert "\n选项：\n" in helped("solve", "--lang", "zh")
    assert "\nOptions:\n" in helped("--lang", "en", "solve", locale="zh_CN.UTF-8")


def test_wide_letters_count_for_two_columns() -> None:
    assert [len(wide(text)) for text in ("plan", "方案", "a方")] == [4, 4, 3]
