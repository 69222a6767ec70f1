"""Where an answer goes: stdout, or files that are checked before the search and written whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import say

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment


def file_error(path: str, message: str) -> InputError:
    """A trouble with a file that the user named."""
    return InputError(Trouble("", message, file=path))


def check_writable(path: str | None, *inputs: str) -> None:
    """Raises InputError when the file cannot be written, or is one of the `inputs`; None is stdout."""
    if path is None:
        return
    target = Path(path)
    if (link := _link_of(target)) is not None:
        raise file_error(path, f"cannot be written: {link}")
    if target.exists() and any(Path(name).exists() and target.samefile(name) for name in inputs):
        raise file_error(path, "is an input of this command: the answer would overwrite it")
    if target.is_dir():
        raise file_error(path, "cannot be written: it is a directory")
    if not target.parent.is_dir():
        raise file_error(path, say("cannot be written: there is no directory {folder}", folder=target.parent))
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        raise file_error(path, "cannot be written: permission denied")


def beside(source: str, ending: str) -> str:
    """The name of a file beside an input, with another ending: `runs.calibration.yaml`. What has no name to change, as
    standard input and a root folder, gives one in the folder in which the command runs."""
    path = Path(source)
    return ending.removeprefix(".") if source == "-" or not path.name else str(path.with_suffix(ending))


def check_files(targets: Mapping[str, str | None], *inputs: str) -> None:
    """Raises InputError for every file of an option that cannot be written, is an input, or is another option's too."""
    troubles: list[Trouble] = []
    taken: dict[Path, str] = {}
    for option, path in targets.items():
        if path is None:
            continue
        try:
            check_writable(path, *inputs)
        except InputError as error:
            troubles += error.troubles
        first = taken.setdefault(Path(path).absolute(), option)
        if first != option:
            told = say("is the file of {first} and of {option}: give two", first=first, option=option)
            troubles.append(Trouble("", told, file=path))
    if troubles:
        raise InputError(troubles)


@contextmanager
def draft_of(path: str | Path) -> Iterator[Path]:
    """A file to write in place of `path`, which it becomes when the block ends; after an error all is as it was.

    The draft stands beside the target, so that a full disk or a kill leaves no half of an answer. What is no plain
    file (/dev/stdout, a pipe), or cannot be replaced where it stands, is written itself. A link is not followed, so
    that nobody who may make one chooses which file is lost; those of the system (/dev/stdout) are. Raises OSError.
    """
    if (link := _link_of(Path(path))) is not None:
        raise OSError(errno.ELOOP, link, str(path))
    target = Path(os.path.realpath(path))
    replaceable = target.is_file() and os.access(target, os.W_OK) and os.access(target.parent, os.W_OK)
    if target.exists() and not replaceable:
        yield target
        return
    draft = target.with_name(f".{target.name[:50]}.{os.getpid()}.tmp")
    try:
        yield draft
        if target.exists():
            shutil.copymode(target, draft)
        draft.replace(target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _link_of(path: Path) -> str | None:
    """Why the path is not written: it is a link to a file, and not one of the system."""
    if not path.is_symlink() or path.absolute().parts[1] in ("dev", "proc"):
        return None
    return f"it is a link to {os.path.realpath(path)}: name the file itself"


def write_file(path: str | Path, text: str) -> None:
    """Write a file of the answer, whole or not at all, line ends as they are; raises InputError that names it."""
    try:
        with draft_of(path) as draft:
            draft.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise file_error(str(path), say("cannot be written: {why}", why=error.strerror)) from None


def write_new_file(path: str, text: str, force: bool) -> None:
    """The same for a file that is not there yet; one that is, is replaced with `force` only."""
    if not force and os.path.lexists(path):
        raise file_error(path, "is there already: give another path, or --force to replace it")
    write_file(path, text)


def deliver(text: str, path: str | None) -> None:
    """Write text to the file, or to stdout."""
    if path is None:
        print(text)
    else:
        write_file(path, text + "\n")


def deliver_report(report: RenderableType, path: str | None = None) -> None:
    """Write what rich renders; no colours and 80 columns (or COLUMNS, 40 at least) where there is no terminal."""
    if path is not None:
        write_file(path, _plain(_console(StringIO()), report))
    elif sys.stdout.isatty():
        _console().print(_Harmless(report))
    else:
        print(_plain(_console(), report), end="")


_NARROWEST = 40
_USUAL = 80


def _console(file: TextIO | None = None) -> Console:
    """With columns that a report can have: some systems say that there are none (COLUMNS=0), or next to none."""
    from rich.console import Console

    console = Console(file=file, highlight=False)
    if console.width < _NARROWEST:
        console.width = _NARROWEST if console.width > 0 else _USUAL
    return console


_OBEYED = re.compile("[\\0-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u2069\\ufeff]")
"""Characters that a terminal obeys, or that turn or break a line: rich writes most of them as they are."""


class _Harmless:
    """A report whose texts, names of the user's among them, have a mark in place of such characters."""

    def __init__(self, report: RenderableType) -> None:
        self.report = report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        from rich.segment import Segment

        for text, style, control in console.render(self.report, options):
            yield Segment(text if control else _OBEYED.sub("\N{REPLACEMENT CHARACTER}", text), style, control)


def _plain(console: Console, report: RenderableType) -> str:
    """The report as text without the blanks that fill up a line."""
    with console.capture() as captured:
        console.print(_Harmless(report))
    return "".join(line.rstrip() + "\n" for line in captured.get().splitlines())
