"""Running the command line in a folder of its own."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from cpsolver.commands import main as cli


@pytest.fixture(autouse=True)
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test of a module that imports this runs in an empty folder."""
    monkeypatch.chdir(tmp_path)


def command(name: str) -> click.Command:
    """The command of that name, loaded."""
    found = cli.main.get_command(click.Context(cli.main), name)
    assert found is not None
    return found


def run(*args: str, stdin: str | None = None, **environment: str) -> Result:
    """A command's result; whatever goes wrong, it never ends in a traceback."""
    result = CliRunner().invoke(cli.main, args, input=stdin, env=environment)
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def messages(result: Result) -> str:
    """What the command told on stderr, without the progress that a slow machine is shown after two seconds."""
    return re.sub(r"(?m)^\d+ s: .*\n", "", result.stderr)


def write(name: str, text: str) -> str:
    """A file of that name in the test's folder; returns the name."""
    Path(name).write_text(text, encoding="utf-8")
    return name
