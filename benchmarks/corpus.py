"""Reads every training script of a folder of repositories, and says how many become a spec and a plan.

    python -m benchmarks.corpus FOLDER [--bash] [--rules] [--round-trip] [--list]

FOLDER holds a folder for each repository. A script counts where it starts a program with a model's sizes or name; what
trains no decoder is out of scope. Scripts with arguments of their own are read with those of the command lines in the
repository's documents. With --bash each script is run by bash with programs that only note their words, in a temporary
folder without the network's programs, and what was read is compared with them. With --rules each plan is evaluated,
and every refusal is told; with --round-trip each is exported and imported again.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.corpus_bash import compared
from benchmarks.corpus_plans import judged, round_trips
from cpsolver.doors.importing.chips import asked_of_slurm
from cpsolver.doors.importing.imported import Imported, ImportOptions, import_source
from cpsolver.doors.importing.scope import OutOfScopeError
from cpsolver.inputs.errors import InputError

_SUFFIXES = ("*.sh", "*.slurm", "*.sbatch", "*.bash")
_MODEL = re.compile(
    r"--(num[-_]layers|hidden[-_]size|num[-_]attention[-_]heads|model-name|config-file)\b|\bmegatron (sft|pt)\b"
)
_STARTS = re.compile(r"\b(torchrun|deepspeed|srun|msrun|mpirun|torch\.distributed|python3?|megatron)\b")
_VOCABULARY = 50_304
"""Given where a script leaves the vocabulary to a tokenizer's file."""
_DEVICES = (8, 16, 64, 128, 512, 1, 2, 4, 32, 256, 1024)
"""Given one after the other where a script leaves the devices to a cluster."""
_DEVICE_TROUBLE = re.compile("devices|--global-batch-size .* multiple|--expert-model-parallel-size etp|interleaving: ")
_PRODUCT = re.compile(r"devices are not a multiple of [^;=]*= (\d{1,6})")
"""How many would do, where none of these does."""
_CHIPS = (("ascend_910b", "ascend_950dt"), ("h100", "b200"))
_NEWEST = re.compile("(^|_)A5(_|\\.)")
"""Names of scripts for the newest Ascend (Atlas A5: 950)."""
_A3 = re.compile("(^|_)A3(_|\\.)")
"""Names of scripts for the Ascend before it (Atlas A3: dies of 910C)."""
_KUNLUN = re.compile("BKCL_|XPU_VISIBLE")
"""Variables of Kunlun's libraries."""
_ALPS = re.compile("/capstor/")
"""The file system of CSCS's Alps, whose nodes are of GH200."""
_COMMAND = r"\s*(?:\([.\w]+\) )?(?:\$ |time )?(?:ba)?sh\s+(\S+\.sh)((?:[ \t]+[^\s`<>|;&]+)+)[ \t]*$"
_USAGE = {".md": rf"^{_COMMAND}", ".sh": rf"^#[ \t]*(?:[Uu]sage:?)?{_COMMAND}"}
"""Command lines of scripts, in documents and in comments."""
_SHOWN = re.compile(r"[Uu]sage: *(?:(?:ba)?sh +)?(?:\$\{?0\}?|\S*\.sh)((?: +(?:--?[\w-]+|<[^<>\n]+>))+)")
"""What a script prints of its own arguments: `Usage: $0 --output_dir <output_dir>`."""
_ASCEND = re.compile("hccl|npus_per_node|ascend|mindspeed|torch_npu", re.IGNORECASE)
_USUAL = {
    "ENV": "dsw",
    "BATCH_SIZE": "1",
    "MICRO_BATCH_SIZE": "1",
    "GLOBAL_BATCH_SIZE": "64",
    "MBS": "1",
    "GBS": "64",
    "LR": "1e-5",
    "MIN_LR": "1e-6",
}
_USUAL |= {"SEQ_LEN": "2048", "PAD_LEN": "2048", "EXTRA_VOCAB_SIZE": "0", "PR": "bf16", "AC": "none", "DO": "true"}
_USUAL |= {"FL": "true", "SP": "true", "TE": "true", "DATASET_PATH": "/data", "PRETRAIN_CHECKPOINT_PATH": "none"}
"""What made-up arguments of a script are, by the names that it gives them; 1 where it has another."""


@dataclass(frozen=True)
class Outcome:
    """What became of a script: `spec and plan`, `no words`, `refused` or `out of scope`; why, and how it was read."""

    file: Path
    what: str
    options: ImportOptions
    why: str = ""
    helped: tuple[str, ...] = ()
    imported: Imported | None = None


def scripts(repository: Path) -> Iterator[Path]:
    """Files that start a program with sizes of a model, each text once."""
    seen = set()
    for file in sorted(file for suffix in _SUFFIXES for file in repository.rglob(suffix)):
        text = file.read_text(errors="replace") if file.is_file() else ""
        if _MODEL.search(text) and _STARTS.search(text) and text not in seen:
            seen.add(text)
            yield file


def is_shell(file: Path) -> bool:
    """Whether bash takes the file for a script at all (templates with <placeholders> are none)."""
    return subprocess.run(["bash", "-n", str(file)], capture_output=True, check=False).returncode == 0


def documented(repository: Path) -> dict[str, list[tuple[str, ...]]]:
    """Arguments of scripts by file name, from the command lines of the repository's documents, and of comments."""
    found: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for document in (*sorted(repository.rglob("*.md")), *sorted(repository.rglob("*.sh"))):
        text = re.sub(r"\\\s*\n", " ", document.read_text(errors="replace")) if document.is_file() else ""
        for name, rest in re.findall(_USAGE[document.suffix], text, re.MULTILINE):
            found[Path(name).name].append(tuple(rest.split()))
    return found


def made_up(text: str) -> tuple[str, ...] | None:
    """Arguments as a user might give them, of a script that names them (`NAME=$1`) and compares them with words."""
    names = {
        int(place): name for name, place in re.findall(r"^\s*(\w+)=\"?\$\{?(\d+)\}?\"?\s*(?:#.*)?$", text, re.MULTILINE)
    }
    if not names:
        return None
    values = []
    for place in range(1, max(names) + 1):
        name = names.get(place, "")
        compared_with = re.findall(rf"\$\{{?{name}\}}?\"?\s*(?:={{1,2}}|-eq)\s*\"?([\w.]+)", text) if name else []
        values.append(_USUAL.get(name) or next(iter(compared_with), "1"))
    return tuple(values)


def chips_of(file: Path) -> tuple[str, ...]:
    """Chips that a script may train on, the likeliest first: what it asks Slurm for, else those of its maker, by its
    words and its name."""
    text = file.read_text(errors="replace")
    if (asked := asked_of_slurm(text)) is not None:
        return (asked,)
    if _ALPS.search(text):
        return ("gh200",)
    if _KUNLUN.search(text):
        return ("kunlun3",)
    if not _ASCEND.search(text) and "ascend" not in str(file).lower():
        return _CHIPS[1]
    if _A3.search(file.name):
        return ("ascend_910c_die", _CHIPS[0][1])
    return tuple(reversed(_CHIPS[0])) if _NEWEST.search(file.name) else _CHIPS[0]


def _invented(text: str) -> list[tuple[str, ...]]:
    """Made-up arguments, and the same with every switch off: some scripts refuse one that is on."""
    shown = [tuple(re.findall(r"[^\s<>]+", words)) for words in _SHOWN.findall(text)]
    values = made_up(text)
    if values is None:
        return shown
    return [*shown, values, tuple("false" if value == "true" else value for value in values)]


def unset(error: InputError) -> dict[str, str]:
    """Values as a user might give them for the variables that the script needs and does not set."""
    names = [re.match(r"needs (\w+), which is not set in the script", trouble.message) for trouble in error.troubles]
    return {match[1]: _USUAL.get(match[1], "1") for match in names if match}


def read(file: Path, chips: tuple[str, ...], lines: list[tuple[str, ...]]) -> Outcome:
    """Import a script, with help where it needs a vocabulary, devices or arguments from outside."""
    text = file.read_text(errors="replace")
    first: Outcome | None = None
    for arguments in (None, *lines, *(invented := _invented(text)), ()):
        for vocabulary in (None, _VOCABULARY):
            counts = [None, *_DEVICES]
            for devices in counts:
                for chip in chips:
                    given = {"vocabulary": vocabulary, "devices": devices, "arguments": arguments in invented}
                    helped = tuple(name for name, help_given in given.items() if help_given)
                    node = min(8, devices) if devices else None
                    options = ImportOptions(chip, devices, node, vocabulary, arguments=arguments)
                    outcome = _once(file, options, helped)
                    first = first or outcome
                    if outcome.what != "refused":
                        return outcome
                    if "cannot be planned for" not in outcome.why:
                        break
                if not _DEVICE_TROUBLE.search(outcome.why):
                    break
                counts += [int(count) for count in _PRODUCT.findall(outcome.why) if int(count) not in counts]
            if "--vocab-size" not in outcome.why:
                break
    return first or outcome


def _once(file: Path, options: ImportOptions, helped: tuple[str, ...]) -> Outcome:
    try:
        imported = import_source(str(file), options)
    except InputError as error:
        given = unset(error)
        if given and not given.keys() <= options.given.keys():
            more = replace(options, given={**options.given, **given})
            return _once(file, more, (*helped, *(name for name in ("variables",) if name not in helped)))
        why = "; ".join(f"{trouble.where} {trouble.message}".strip() for trouble in error.troubles)
        scope = "out of scope" if isinstance(error, OutOfScopeError) else "refused"
        return Outcome(file, scope, options, why, helped)
    what = "spec and plan" if imported.strategy is not None else "no words"
    return Outcome(file, what, options, "; ".join(imported.refusals), helped, imported)


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
    parser.add_argument("--rules", action="store_true", help="which plans break a rule")
    parser.add_argument("--round-trip", action="store_true", help="export each plan and import it again")
    parser.add_argument("--list", action="store_true", help="a line for each script")
    options = parser.parse_args()
    print("| repository | in scope | spec and plan | no words | refused | out of scope | share |")
    print("|---|---|---|---|---|---|---|")
    everything: list[Outcome] = []
    for repository in sorted(path for path in options.folder.iterdir() if path.is_dir()):
        lines = documented(repository)
        outcomes = [
            read(file, chips_of(file), lines.get(file.name, [])) for file in scripts(repository) if is_shell(file)
        ]
        everything += outcomes
        print(report(repository.name, outcomes), flush=True)
    print(report("all", everything))
    print("\n".join(["", "refused:", *reasons(everything)]))
    if options.list:
        for outcome in everything:
            file = outcome.file.relative_to(options.folder)
            print("\t".join((outcome.what, str(file), " ".join(outcome.helped), outcome.why[:300])))
    if options.bash:
        print("\n".join(compared(everything, options.folder)))
    if options.rules:
        print("\n".join(judged(everything, options.folder)))
    if options.round_trip:
        print("\n".join(round_trips(everything, options.folder)))


if __name__ == "__main__":
    main()
