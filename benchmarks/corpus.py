"""Reads every training script of a folder of repositories, and says how many become a spec and a plan.

    python -m benchmarks.corpus FOLDER [--bash] [--chip h100] [--list]

FOLDER holds a folder for each repository. A script counts where it starts a program with sizes of a model; what
trains no decoder is out of scope. Scripts with arguments of their own are read with those of the command lines in the
repository's documents. With --bash each script is run by bash with programs that only note their words, in a temporary
folder without the network's programs, and what was read is compared with them.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.corpus_bash import compared
from cpsolver.doors.importing.imported import Imported, ImportOptions, import_source
from cpsolver.doors.importing.scope import OutOfScopeError
from cpsolver.inputs.errors import InputError

_SUFFIXES = ("*.sh", "*.slurm", "*.sbatch", "*.bash")
_MODEL = re.compile(r"--(num-layers|hidden-size|num-attention-heads)\b")
_STARTS = re.compile(r"\b(torchrun|deepspeed|srun|msrun|mpirun|torch\.distributed|python3?)\b")
_VOCABULARY = 50_304
"""Given where a script leaves the vocabulary to a tokenizer's file."""
_DEVICES = 64
"""Given where a script leaves the devices to a cluster."""


@dataclass(frozen=True)
class Outcome:
    """What became of a script: `spec and plan`, `no words`, `refused` or `out of scope`; and why."""

    file: Path
    what: str
    why: str = ""
    helped: tuple[str, ...] = ()
    imported: Imported | None = None
    arguments: tuple[str, ...] | None = None


def scripts(repository: Path) -> Iterator[Path]:
    """Files that start a program with sizes of a model, each text once."""
    seen = set()
    for file in sorted(file for suffix in _SUFFIXES for file in repository.rglob(suffix)):
        text = file.read_text(errors="replace") if file.is_file() else ""
        if _MODEL.search(text) and _STARTS.search(text) and text not in seen:
            seen.add(text)
            yield file


def documented(repository: Path) -> dict[str, list[tuple[str, ...]]]:
    """Arguments of scripts by file name, from the command lines of the repository's documents."""
    found: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for document in sorted(repository.rglob("*.md")):
        text = re.sub(r"\\\s*\n", " ", document.read_text(errors="replace"))
        for name, rest in re.findall(r"^\s*(?:ba)?sh\s+(\S+\.sh)((?:[ \t]+[^\s`<>|;&]+)+)[ \t]*$", text, re.MULTILINE):
            found[Path(name).name].append(tuple(rest.split()))
    return found


def read(file: Path, chip: str, lines: list[tuple[str, ...]]) -> Outcome:
    """Import a script, with help where it needs a vocabulary, devices or arguments from outside."""
    outcome = Outcome(file, "refused", "not read")
    tries: list[tuple[str, ...] | None] = [None, *lines]
    for arguments in tries:
        for helped in ((), ("vocabulary",), ("devices",), ("vocabulary", "devices")):
            options = ImportOptions(
                chip=chip,
                vocab_size=_VOCABULARY if "vocabulary" in helped else None,
                num_gpus=_DEVICES if "devices" in helped else None,
                gpus_per_node=8 if "devices" in helped else None,
                arguments=arguments,
            )
            outcome = _once(file, options, helped)
            if outcome.what in ("spec and plan", "no words", "out of scope"):
                return outcome
    return outcome


def _once(file: Path, options: ImportOptions, helped: tuple[str, ...]) -> Outcome:
    try:
        imported = import_source(str(file), options)
    except InputError as error:
        why = "; ".join(f"{trouble.where} {trouble.message}".strip() for trouble in error.troubles)
        scope = "out of scope" if isinstance(error, OutOfScopeError) else "refused"
        return Outcome(file, scope, why, helped, None, options.arguments)
    what = "spec and plan" if imported.strategy is not None else "no words"
    return Outcome(file, what, "; ".join(imported.refusals), helped, imported, options.arguments)


def report(name: str, outcomes: list[Outcome]) -> str:
    """A line of the tally."""
    tally = Counter(outcome.what for outcome in outcomes)
    inside = len(outcomes) - tally["out of scope"]
    share = tally["spec and plan"] / inside if inside else 0.0
    columns = (tally["spec and plan"], tally["no words"], tally["refused"], tally["out of scope"])
    return f"| {name} | {inside} | {' | '.join(map(str, columns))} | {share:.0%} |"


def reasons(outcomes: list[Outcome]) -> list[str]:
    """Why scripts are refused, most frequent first."""
    texts = [re.sub(r"\d+|\$\S+|'[^']*'", "#", outcome.why)[:160] for outcome in outcomes if outcome.what == "refused"]
    return [f"{count:4d}  {text}" for text, count in Counter(texts).most_common(15)]


def main() -> None:
    """Print the tally, why scripts are refused, and what bash says otherwise."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bash", action="store_true", help="compare with bash")
    parser.add_argument("--chip", default="h100")
    parser.add_argument("--list", action="store_true", help="a line for each script")
    options = parser.parse_args()
    print("| repository | in scope | spec and plan | no words | refused | out of scope | share |\n|---|---|---|---|---|---|---|")
    everything: list[Outcome] = []
    for repository in sorted(path for path in options.folder.iterdir() if path.is_dir()):
        lines = documented(repository)
        outcomes = [read(file, options.chip, lines.get(file.name, [])) for file in scripts(repository)]
        everything += outcomes
        print(report(repository.name, outcomes), flush=True)
    print(report("all", everything))
    print("\n".join(["", "refused:", *reasons(everything)]))
    if options.list:
        for outcome in everything:
            print(f"{outcome.what}\t{outcome.file.relative_to(options.folder)}\t{' '.join(outcome.helped)}\t{outcome.why[:300]}")
    if options.bash:
        print("\n".join(compared(everything, options.folder)))


if __name__ == "__main__":
    main()
