"""What bash makes of training scripts, compared with what import read of them, argument by argument.

Each script is run by bash in a temporary folder whose programs only note their words; PATH has nothing else, so that no
program of this machine is run and nothing is fetched. Loops that wait are cut off after some seconds.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cpsolver.doors.importing.command import find_training
from cpsolver.doors.importing.shell import Script, batch_values, read_script
from cpsolver.inputs.errors import InputError

_STUBS = (
    "torchrun",
    "deepspeed",
    "srun",
    "msrun",
    "mpirun",
    "python",
    "python3",
    "accelerate",
    "nohup",
    "ds",
    "megatron",
    "mpiexec",
)
_EMPTY = (
    "mkdir",
    "rm",
    "cp",
    "sleep",
    "hostname",
    "npu-smi",
    "git",
    "pip",
    "conda",
    "module",
    "scontrol",
)
_MODEL = ("--num-layers", "--hidden-size", "--model-name", "--config-file", "--output_dir")
"""Arguments that a training has one of; the last is ms-swift's."""
_SECONDS = 10
_NOTE = '#!{bash}\n{{ printf "%s\\0" "$0" "$@"; printf "\\n\\0"; }} >> "$WORDS_NOTED"\n'
_STARTED = "|".join(map(re.escape, _STUBS))
_BY_PATH = re.compile(rf"""(?<=[\s;&|("'=])(?:/[\w.+-]+)*/bin/({_STARTED})(?:\.\d+)?(?=["'\s])""")
"""Where a program is named by its place: no other than the one that notes its words may run."""
_GOES_ON = {"BASH_FUNC_cd%%": '() { builtin cd "$@" 2> /dev/null || true; }'}
"""Folders that are missing here are there for whoever runs the script."""
_HANDS_ON = 'while [ $# -gt 1 ]; do if [ "$1" = -c ]; then exec {bash} "$@"; fi; shift; done\n'
"""A launcher hands a text behind -c on to a shell."""
_GPUS = "#!{bash}\nfor ((i = 0; i < ${{SLURM_GPUS_ON_NODE:-0}}; i++)); do echo GPU; done\n"
"""A line for each GPU that Slurm was asked for."""
_TOOLS = (
    "basename",
    "dirname",
    "expr",
    "seq",
    "tr",
    "cut",
    "wc",
    "cat",
    "tee",
    "head",
    "tail",
    "sort",
    "sed",
    "awk",
    "grep",
    "realpath",
)


def compared(outcomes: Sequence[Any], folder: Path) -> Iterator[str]:
    """Lines that say of how many scripts the arguments agree, and where others differ."""
    tally: Counter[str] = Counter()
    for outcome in outcomes:
        if outcome.imported is None:
            continue
        verdict, detail = _verdict(outcome.file, outcome.options.arguments, outcome.options.gpus_per_node)
        tally[verdict] += 1
        if verdict == "no run":
            yield f"no run\t{outcome.file.relative_to(folder)}\t{detail}"
        if verdict == "differs":
            yield f"differs\t{outcome.file.relative_to(folder)}\t{detail}"
    yield "compared with bash: " + ", ".join(f"{count} {what}" for what, count in sorted(tally.items()))


def _verdict(file: Path, arguments: Sequence[str] | None, gpus: int | None) -> tuple[str, str]:
    """`agrees`, `differs`, `noted` (what was not followed is told) or `no run`, and what differs."""
    text = file.read_text(errors="replace")
    try:
        script = read_script(text, str(file), {}, arguments, gpus)
        training = find_training(script, str(file))
    except InputError as error:
        return "no run", str(error)
    ours = [script.variables.shown(token) for token in training.tokens]
    runs = bash_runs(file, arguments or (), gpus) or bash_runs(file, arguments or (), gpus, stops=False)
    if not runs:
        return "no run", ""
    if any(_same(script, training.tokens, run) for run in runs):
        return "agrees", ""
    likest = max(runs, key=lambda run: len(set(run) & set(ours)))
    detail = f"here {sorted(set(ours) - set(likest))[:8]}, bash {sorted(set(likest) - set(ours))[:8]}"
    return ("noted" if script.warnings or not training.certain else "differs"), detail


def _same(script: Script, tokens: Sequence[str], words: Sequence[str]) -> bool:
    """Whether a command of bash has these arguments at its end; unclear ones stand for anything, or nothing."""
    return _fits(script, list(tokens), list(words[-len(tokens) :])) or _fits(script, list(tokens), list(words))


def _fits(script: Script, tokens: list[str], words: list[str]) -> bool:
    known = [token for token in tokens if not script.variables.unclear_in(token)]
    if len(known) == len(tokens):
        return tokens == words
    rest = iter(words)  # what is known stands in this order among bash's words
    return all(any(token == word for word in rest) for token in known)


def bash_runs(file: Path, arguments: Sequence[str], gpus: int | None = None, stops: bool = True) -> list[list[str]]:
    """The words of each program with arguments of a model that the script starts, in the order of their starts.

    `gpus`: of the node; None: as many as Slurm was asked for. `stops`: whether the script ends where a command fails,
    if it asks for that (`set -e`).
    """
    bash = shutil.which("bash")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        programs, noted = folder / "bin", folder / "words"
        programs.mkdir()
        for stub in _STUBS:
            _executable(programs / stub, _NOTE.format(bash=bash) + _HANDS_ON.format(bash=bash))
        for stub in _EMPTY:
            _executable(programs / stub, f"#!{bash}\n")
        _executable(programs / "nvidia-smi", _GPUS.format(bash=bash))
        for tool in _TOOLS:
            if found := shutil.which(tool):
                (programs / tool).symlink_to(found)
        for shell in ("bash", "sh"):
            _executable(programs / shell, _nested(str(bash)))
        _executable(programs / "sbatch", f"#!{bash}\nexec {bash}\n")  # runs its input, and no files
        text = file.read_text(errors="replace")
        stubbed = re.sub(r"(?<!\w)PATH=", "PATH_ELSEWHERE=", _BY_PATH.sub(r"\1", text))
        if not stops:
            stubbed = re.sub(r"^\s*set\s+-.*$", ":", stubbed, flags=re.MULTILINE)
        if stubbed != text:
            file = folder / file.name
            file.write_text(stubbed)
        environment = {"PATH": str(programs), "WORDS_NOTED": str(noted), "HOME": str(folder), **_GOES_ON}
        environment |= batch_values(text) | ({} if gpus is None else {"SLURM_GPUS_ON_NODE": str(gpus)})
        command = [str(bash), "--norc", str(file.absolute()), *arguments]
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                command,
                cwd=folder,
                env=environment,
                capture_output=True,
                timeout=_SECONDS,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        text = noted.read_text(errors="replace") if noted.exists() else ""
    runs = [run.split("\0")[:-1] for run in text.split("\n\0") if run]
    return [run for run in runs if any(word.split("=")[0] in _MODEL for word in run)]


def _nested(bash: str) -> str:
    """A shell that runs `-c` texts, and no files."""
    return f'#!{bash}\nif [ "$1" = -c ]; then exec {bash} "$@"; fi\n'


def _executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
