"""The entrance of the command: what a Ctrl-C does before there is a command, and where it cannot be raised."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cpsolver.commands import entry
from cpsolver.commands.main import main

WHILE_IT_LOADS = """
import builtins, os, signal
plain = builtins.__import__
def interrupted(name, *more):
    if name == "cpsolver.commands.main":
        builtins.__import__ = plain
        os.kill(os.getpid(), signal.SIGINT)
    return plain(name, *more)
builtins.__import__ = interrupted
from cpsolver.commands.entry import main
main()
"""
IN_A_DESTRUCTOR = """
import signal, sys
from cpsolver.commands import entry, main
class Part:
    def __del__(self):
        raise KeyboardInterrupt
def command(_arguments):
    try:
        Part()
        while True:
            pass
    except KeyboardInterrupt:
        print("it came")
main.main = command
entry.main()
"""


def ended(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)


def test_ctrl_c_while_the_command_is_loaded_ends_it_without_a_word() -> None:
    found = ended(WHILE_IT_LOADS)
    assert (found.returncode, found.stdout, found.stderr) == (-signal.SIGINT, "", "")


def test_ctrl_c_that_cannot_be_raised_comes_again() -> None:
    found = ended(IN_A_DESTRUCTOR)
    assert (found.returncode, found.stdout, found.stderr) == (0, "it came\n", "")


def test_ctrl_c_that_is_ignored_stays_so() -> None:
    ignored = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    kept = "import sys; sys.argv[1:] = ['--version']\nimport atexit\n" + (
        "atexit.register(lambda: print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN))\n"
    )
    assert ended(f"{ignored}{kept}from cpsolver.commands.entry import main; main()").stdout.endswith("True\n")


def test_ctrl_c_while_the_arguments_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "parse_args", interrupted)
    result = CliRunner().invoke(main, ["solve", "x.yaml"])
    assert (result.exit_code, result.output) == (130, "")


def test_what_else_cannot_be_raised_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    class Ignored:
        exc_type, exc_value, exc_traceback, err_msg, object = ValueError, ValueError("so"), None, None, None

    with pytest.MonkeyPatch.context() as patch:
        told = list[object]()
        patch.setattr(sys, "__unraisablehook__", told.append)
        entry.raise_later(Ignored)
    assert told == [Ignored]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
@pytest.mark.parametrize("asked", ["--help", "--version", "chips"])
def test_a_full_disk_is_told(asked: str) -> None:
    program = f"import sys; sys.argv[1:] = [{asked!r}]; from cpsolver.commands.entry import main; main()"
    with Path("/dev/full").open("w") as full:
        found = subprocess.run(
            [sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (found.returncode, found.stderr) == (2, "error: No space left on device\n")


def test_who_closes_stderr_gets_the_answer_all_the_same() -> None:
    asked = ["plan", "llama2-7b", "--on", "a800:8", "--batch", "8", "--seq", "2048"]
    closed = f"import sys; sys.stderr = None; sys.argv[1:] = {asked}; "
    found = ended(f"{closed}from cpsolver.commands.entry import main; main()")
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.startswith("llama2-7b on 8 × a800")
