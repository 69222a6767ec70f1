"""Do the tests notice a broken line? Each mutation of tests/mutations.yaml is made alone, and its test file run.

    python -m tools.mutate [--all] [NUMBER ...]

A mutation is caught when a test fails, and survives when none does. Mutations are made in a copy of the checkout, never
in the checkout itself.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
MUTATIONS = ROOT / "tests" / "mutations.yaml"
LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", ".*_cache", "__pycache__", "cache", "build", "dist", "*.egg-info")
QUICK = ("-m", "not full and not night")
"""What `make test` runs of a file."""
EVERYWHERE = (*QUICK, "-n", "auto", "--dist", "loadfile")
Verdict = Literal["caught", "SURVIVED"]


class CannotApply(Exception):
    """A mutation does not fit the code as it is, or its test does not run."""


@dataclass(frozen=True)
class Mutation:
    """One line of the product that says something else: `old`, which stands in `file` once, is replaced by `new`."""

    what: str
    file: str
    old: str
    new: str
    test: str
    """The closest test file, which should notice."""
    equivalent: str = ""
    """Why no test can notice, where none can: such a mutation is kept to be known, and not made."""


def load() -> list[Mutation]:
    """All mutations, in the order of the file."""
    return [Mutation(**entry) for entry in YAML(typ="safe").load(MUTATIONS.read_text(encoding="utf-8"))]


def mutated(mutation: Mutation, root: Path) -> str:
    """The text of the mutation's file with it made; raises CannotApply where `old` is not there exactly once."""
    file = root / mutation.file
    if not file.is_file():
        raise CannotApply(f"there is no {mutation.file}")
    text = file.read_text(encoding="utf-8")
    if text.count(mutation.old) != 1:
        raise CannotApply(f"{mutation.file} has its old text {text.count(mutation.old)} times: {mutation.old!r}")
    return text.replace(mutation.old, mutation.new)


def passes(what: Sequence[str], root: Path) -> bool:
    """Whether tests pass there; raises CannotApply where they do not run at all."""
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *what]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise CannotApply(
            f"pytest {' '.join(what)} ends with {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}"
        )
    return done.returncode == 0


def verdict(mutation: Mutation, root: Path, tests: Sequence[str]) -> Verdict:
    """What the tests say while the mutation is made in a copy of the checkout; the copy is as before afterwards."""
    broken, file = mutated(mutation, root), root / mutation.file
    text = file.read_text(encoding="utf-8")
    try:
        file.write_text(broken, encoding="utf-8")
        return "SURVIVED" if passes(tests, root) else "caught"
    finally:
        file.write_text(text, encoding="utf-8")


def verdicts(chosen: dict[int, Mutation], everything: bool) -> Iterator[tuple[int, str]]:
    """Number and verdict, or what went wrong, of each mutation, as they come."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "checkout"
        shutil.copytree(ROOT, root, ignore=LEFT_OUT)
        sound = cache(lambda test: passes([*QUICK, test], root))
        for number, mutation in chosen.items():
            tests = EVERYWHERE if everything else (*QUICK, mutation.test)
            try:
                if not sound(mutation.test):
                    raise CannotApply(f"{mutation.test} fails without it")
                yield number, verdict(mutation, root, tests)
            except CannotApply as trouble:
                yield number, f"CANNOT BE MADE: {trouble}"


def main() -> int:
    """Exit code 0 where every mutation was caught."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("numbers", nargs="*", type=int, help="only these, counted from 1")
    parser.add_argument("--all", action="store_true", help="run what `make test` runs, not the closest test file alone")
    asked = parser.parse_args()
    every = dict(enumerate(load(), 1))
    chosen = {number: every[number] for number in asked.numbers or every if not every[number].equivalent}
    caught = 0
    for number, said in verdicts(chosen, asked.all):
        caught += said == "caught"
        print(f"{number:3} {every[number].what} ({every[number].test}): {said}", flush=True)
    print(f"{caught} of {len(chosen)} caught")
    return int(caught < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
