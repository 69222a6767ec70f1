"""The oldest releases that pyproject.toml admits, as a constraints file for pip.

    python tools/oldest.py > constraints-oldest.txt

What a package needs to run, and what extras need that its tests use (scipy, a web server); the tools of development may
be of today.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

EXTRAS = ("calibrate", "serve", "tune")


def oldest(requirements: Iterable[str]) -> Iterator[str]:
    """`name==version` for every requirement with a lower bound: "numpy>=1.26" -> "numpy==1.26.*"."""
    for requirement in requirements:
        bound = re.match(r"([\w.-]+)\s*>=\s*([\w.]+)", requirement)
        if bound is None:
            raise ValueError(f"no lower bound: {requirement}")
        yield f"{bound[1]}=={bound[2]}.*"


def constraints(pyproject: Path) -> list[str]:
    """The lines of the file, sorted, each once."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    extras = [line for extra in EXTRAS for line in project["optional-dependencies"][extra]]
    return sorted(set(oldest([*project["dependencies"], *extras])))


if __name__ == "__main__":
    print("\n".join(constraints(Path(__file__).parents[1] / "pyproject.toml")))
