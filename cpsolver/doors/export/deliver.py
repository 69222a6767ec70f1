"""The target that a user names, and the folder that the files go to."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from cpsolver.doors.export.base import Launch
from cpsolver.doors.export.targets import EXPORTERS
from cpsolver.inputs.errors import InputError, Trouble, nearest_names
from cpsolver.inputs.output import draft_of


def check_target(target: str) -> None:
    """Raises InputError, with the nearest name, for a target that nothing is exported to."""
    if target not in EXPORTERS:
        allowed, nearest = ", ".join(sorted(EXPORTERS)), nearest_names(target, EXPORTERS)
        raise InputError(Trouble("--to", "unknown target", target, allowed, nearest))


def check_directory(folder: str) -> None:
    """Raises InputError for a file where a directory is asked for."""
    if Path(folder).exists() and not Path(folder).is_dir():
        raise InputError(Trouble("", "is a file: --output is a directory", file=folder))


def check_folder(folder: str, launch: Launch, force: bool) -> None:
    """Raises InputError where the files cannot be written, or with `force` off are there already; lists every one."""
    check_directory(folder)
    path = Path(folder)
    there = [path / name for name in launch.files if (path / name).exists()]
    if there and not force:
        message = "is there already: give another directory, or --force to replace it"
        raise InputError([Trouble("", message, file=str(file)) for file in there])


def write_files(folder: str, launch: Launch) -> None:
    """Write every file of the launch, all or none; scripts may be run. Raises OSError."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    with ExitStack() as drafts:
        for name, text in launch.files.items():
            file = Path(folder) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            draft = drafts.enter_context(draft_of(file))
            draft.write_text(text, encoding="utf-8")
            if name.endswith(".sh"):
                draft.chmod(0o755)
