"""Scripts that start NeMo 1 on a configuration file: the file, and the overrides of the command line.

Read in NeMo v2.0.0 (examples/nlp/language_modeling/megatron_gpt_pretraining.py, nemo/core/config/hydra_runner.py) and
in its launcher 26e42fa (launcher_scripts/main.py, examples/training).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from cpsolver.doors.importing.hydra import OVERRIDE
from cpsolver.doors.importing.megatron_files import above
from cpsolver.doors.importing.shell import Script
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import say

_PROGRAM = re.compile(r"(?:^|/)megatron_gpt_(?:pretraining|continue_training)\w*\.py$")
_LAUNCHER = re.compile(r"(?:^|/)main\.py$")
_GROUP = "training="
_FOLDER, _NAME = ("--config-path", "-cp"), ("--config-name", "-cn")
_USUAL = {_FOLDER: "conf", _NAME: "megatron_gpt_config"}
"""What hydra_runner takes without them."""
_UNCLEAR = re.compile(r"\$\{?(\w+)\}?")


def nemo_file(script: Script, name: str) -> tuple[Path, tuple[str, ...]] | None:
    """The configuration that the script's first command of NeMo trains by, and its overrides; None without one.

    Raises InputError where the file is not in the script's folder or above it.
    """
    for command in script.commands:
        words = [script.variables.shown(word) for word in command.words]
        at = next((place for place, word in enumerate(words) if word.endswith(".py")), None)
        wanted = [] if at is None else list(_wanted(words[at], words[at + 1 :]))
        if at is None or not wanted:
            continue
        folder = None if name == "<stdin>" else Path(name).absolute().parent
        found = [path for one in wanted if folder is not None and (path := above(folder, one)) is not None]
        if not found:
            told = say("{wanted} is not in the script's folder or above it", wanted=wanted[0])
            allowed = say("that file, with --args for what the script sets of it")
            raise InputError(Trouble("", told, allowed=allowed, file=name, line=command.line))
        return found[0], tuple(_overrides(words[at + 1 :]))
    return None


def _wanted(program: str, words: Sequence[str]) -> Iterator[str]:
    """The file that a program of NeMo is told to train by, below any folder above the script; likeliest first."""
    group = next((word.removeprefix(_GROUP) for word in words if word.startswith(_GROUP)), None)
    if _LAUNCHER.search(program) and group is not None:
        yield from (f"launcher_scripts/conf/training/{group}.yaml", f"conf/training/{group}.yaml")
    elif _PROGRAM.search(program):
        folder, name = (_option(words, names) for names in (_FOLDER, _NAME))
        file = _known(f"{folder}/{name.removesuffix('.yaml')}.yaml")
        beside = _known(program.rpartition("/")[0])
        yield from dict.fromkeys([f"{beside}/{file}" if beside else file, file])


def _known(path: str) -> str:
    """A path from what follows the last variable that is not known, which begins anywhere above the script."""
    return path.rpartition("$")[2].partition("/")[2] if "$" in path else path


def _option(words: Sequence[str], names: tuple[str, str]) -> str:
    """The value of an option of Hydra, as `--name=value` or `--name value`."""
    joined = [word.partition("=")[2] for word in words if word.partition("=")[0] in names and "=" in word]
    apart = [after for before, after in pairwise(words) if before in names]
    return next(iter((*joined, *apart)), _USUAL[names]).rstrip("/")


def _overrides(words: Sequence[str]) -> Iterator[str]:
    """Fields that a command line sets. What a variable stands for that is not known stays open, by its name."""
    for word in words:
        if OVERRIDE.fullmatch(word):
            field, equals, value = word.partition("=")
            yield f"{field}{equals}{_UNCLEAR.sub(lambda found: f'${{oc.env:{found[1]}}}', value)}"
