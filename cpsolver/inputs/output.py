"""Where an answer goes: stdout, or a file that is checked before the search and not after it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cpsolver.inputs.errors import InputError, Trouble

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def file_error(path: str, message: str) -> InputError:
    """A trouble with a file that the user named."""
    return InputError(Trouble("", message, file=path))


def check_writable(path: str | None, *inputs: str) -> None:
    """Raises InputError when the file cannot be written, or is one of the `inputs`; None is stdout."""
    if path is None:
        return
    target = Path(path)
    if target.exists() and any(Path(name).exists() and target.samefile(name) for name in inputs):
        raise file_error(path, "is an input of this command: the answer would overwrite it")
    if target.is_dir():
        raise file_error(path, "cannot be written: it is a directory")
    if not target.parent.is_dir():
        raise file_error(path, f"cannot be written: there is no directory {target.parent}")
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        raise file_error(path, "cannot be written: permission denied")


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
            troubles.append(Trouble("", f"is the file of {first} and of {option}: give two", file=path))
    if troubles:
        raise InputError(troubles)


@contextmanager
def _told_of(path: str) -> Iterator[None]:
    """What goes wrong while a file is written, a full disk say, names the file."""
    try:
        yield
    except OSError as error:
        raise file_error(path, f"cannot be written: {error.strerror}") from None


def deliver(text: str, path: str | None) -> None:
    """Write text to the file, or to stdout."""
    if path is None:
        print(text)
    else:
        with _told_of(path):
            Path(path).write_text(text + "\n", encoding="utf-8")


def deliver_report(report: RenderableType, path: str | None = None) -> None:
    """Write what rich renders; no colours and 80 columns (or COLUMNS) where there is no terminal."""
    from rich.console import Console

    if path is not None:
        with _told_of(path), open(path, "w", encoding="utf-8") as file:
            file.write(_plain(Console(file=file, highlight=False), report))
    elif sys.stdout.isatty():
        Console(highlight=False).print(report)
    else:
        print(_plain(Console(highlight=False), report), end="")


def _plain(console: Console, report: RenderableType) -> str:
    """The report as text without the blanks that fill up a line."""
    with console.capture() as captured:
        console.print(report)
    return "".join(line.rstrip() + "\n" for line in captured.get().splitlines())
