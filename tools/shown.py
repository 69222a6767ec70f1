"""What documents show is what the commands print: `python -m tools.shown` runs the commands and writes what they print.

In the pages below every block ```sh is run, in order, in a folder of the page's own beside examples/; so is a comment
`<!-- $ COMMAND -->`. A block ```text that comes next holds what the last command printed. Its last line … says that
more follows, its first that it is the end: as many lines are shown as stand there now. A test checks the pages.
"""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from cpsolver.commands.main import main as apss_cp

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/tutorial.md", "docs/gallery.md")
LEFT_OUT = "…"
_BLOCK = re.compile(r"```(sh|text)\n(.*?)```|<!-- \$ (.+?) -->", re.DOTALL)


@dataclass(frozen=True)
class Ran:
    """A command of a page, and what it printed on stdout."""

    command: str
    exit_code: int
    printed: str


def ran(command: str) -> Ran:
    """The command run here, in this process, on a terminal of the usual width."""
    program, *arguments = shlex.split(command)
    if program != "apss-cp":
        raise ValueError(f"only apss-cp is run, not {command!r}")
    found = CliRunner(env={"COLUMNS": None}).invoke(apss_cp, arguments, prog_name="apss-cp")
    return Ran(command, found.exit_code, found.stdout)


def commands(block: str) -> Iterator[str]:
    """The commands of a block, those over several lines in one; comments are left out."""
    for line in block.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.partition("  #")[0]


def excerpt(printed: str, shown: str) -> str:
    """Of what a command printed what a block shows, by the … at its end or start and its number of lines."""
    lines, kept = printed.rstrip().splitlines(), shown.rstrip().splitlines()
    if kept and kept[-1] == LEFT_OUT and len(lines) >= len(kept):
        return "\n".join([*(line.rstrip() for line in lines[: len(kept) - 1]), LEFT_OUT]) + "\n"
    if kept and kept[0] == LEFT_OUT and len(lines) >= len(kept):
        return "\n".join([LEFT_OUT, *(line.rstrip() for line in lines[1 - len(kept) :])]) + "\n"
    return "\n".join(line.rstrip() for line in lines) + "\n"


def renewed(page: str) -> tuple[str, list[Ran]]:
    """A page's text with what its commands print now, and the commands, each run once."""
    done: list[Ran] = []

    def renew(match: re.Match[str]) -> str:
        if match[1] == "text":
            return f"```text\n{excerpt(done[-1].printed, match[2])}```" if done else match[0]
        done.extend(map(ran, commands(match[2] or match[3])))
        return match[0]

    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        Path("examples").symlink_to(ROOT / "examples")
        return _BLOCK.sub(renew, (ROOT / page).read_text(encoding="utf-8")), done


def main() -> None:
    """Write every page anew."""
    for page in PAGES:
        text, done = renewed(page)
        (ROOT / page).write_text(text, encoding="utf-8")
        print(f"{page}: {len(done)} commands")


if __name__ == "__main__":
    main()
