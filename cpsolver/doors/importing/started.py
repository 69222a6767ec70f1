"""Scripts that only start others: the first that stands beside one is read in its place, with the arguments it gets."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cpsolver.doors.importing.megatron_files import above
from cpsolver.doors.importing.shell import Script
from cpsolver.doors.importing.simple import ScriptCommand
from cpsolver.inputs.document import read_text
from cpsolver.inputs.errors import InputError
from cpsolver.inputs.language import say

_SHELLS = ("bash", "sh", "zsh", "sbatch", "srun")
_SCHEDULERS = ("sbatch", "srun")
_SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch")
_LONGEST = 200
"""Letters of a file's name."""
_MOST = 5
"""Scripts that start scripts that start scripts."""


@dataclass(frozen=True)
class Started:
    """A script that another one starts: where it is, its text, its arguments and what it finds in its environment.

    `notes`: what a user should know of it.
    """

    path: Path
    text: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    notes: tuple[str, ...]


def started_script(script: Script, name: str, before: tuple[Path, ...]) -> Started | None:
    """The first script that a script starts and that is in its folder or above it; None without one.

    `before`: those that led here, none of which is read again.
    """
    if name == "<stdin>" or len(before) >= _MOST:
        return None
    own = Path(name).absolute()
    found = [one for one in _found(script, own.parent) if one[1] not in (*before, own)]
    if not found:
        return None
    command, path, options, arguments = found[0]
    variables = script.variables
    values = {each: variables.scalars[each] for each in variables.exported if each in variables.scalars}
    values |= command.settings
    known = {each: value for each, value in values.items() if not variables.unclear_in(value)}
    notes = [say("line {line} starts {file}, which is read", line=command.line, file=path.name)]
    if len(found) > 1:
        notes.append(say("the script starts {count} scripts: the first is read", count=len(found)))
    try:
        text = read_text(path)[1]
    except InputError:
        return None
    text += "".join(f"\n#SBATCH {option}" for option in options)  # on the command line they count more
    return Started(path, text, arguments, known, tuple(notes))


def _found(script: Script, folder: Path) -> Iterator[tuple[ScriptCommand, Path, tuple[str, ...], tuple[str, ...]]]:
    """Commands whose words are all known, the files that they start, a scheduler's options and the arguments."""
    for command in script.commands:
        words = command.words
        named = (place for place, word in enumerate(words) if word.endswith(_SUFFIXES) and len(word) < _LONGEST)
        at = next(named, None)
        if at is None or any(script.variables.unclear_in(word) for word in words):
            continue
        shell, options = posixpath.basename(words[0]), words[1:at]
        if at > 0 and (shell not in _SHELLS or not all(word.startswith("-") or word.isdigit() for word in options)):
            continue
        path = above(folder, words[at].removeprefix("./")) if "*" not in words[at] else None
        if path is not None:
            yield command, path, options if shell in _SCHEDULERS else (), words[at + 1 :]
