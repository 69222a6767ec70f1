"""Counts the places that list a plan's decisions by name; run it from a checkout: python -m tools.decision_lists.

A list of decisions is a tuple, list, set or dict that holds four or more of their names as text; one inside another
counts once. Each is a place to edit when a decision is added, unless it derives from plans/dimensions.py.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.structure import tree

ROOT = Path(__file__).resolve().parents[1]
LEAST = 4
"""So many names make a list."""
PROBE = "sharding_group"
"""A decision that few modules have a reason to know: the files that name it show how far one decision spreads."""


def texts(node: ast.AST) -> Iterator[str]:
    """The text entries of a literal (the keys of a dict), those of literals unpacked in it too."""
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            yield from texts(value if key is None else key)
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        for entry in node.elts:
            yield from texts(entry.value if isinstance(entry, ast.Starred) else entry)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def lists_in(node: ast.AST, names: frozenset[str]) -> Iterator[tuple[int, list[str]]]:
    """(line, decisions) of each outermost list of decisions under a node."""
    held = [text for text in texts(node) if text in names] if not isinstance(node, ast.Constant) else []
    if len(set(held)) >= LEAST:
        yield node.lineno, held  # type: ignore[attr-defined]
        return
    for child in ast.iter_child_nodes(node):
        yield from lists_in(child, names)


def decision_lists(root: Path, names: frozenset[str]) -> dict[str, list[str]]:
    """The decisions of every list in the product: "file:line" -> names."""
    found = {}
    for file in sorted((root / "cpsolver").rglob("*.py")):
        for line, held in lists_in(tree(file), names):
            found[f"{file.relative_to(root)}:{line}"] = held
    return found


def files_naming(root: Path, name: str) -> list[str]:
    """The modules of the product in which a word occurs."""
    word = re.compile(rf"\b{name}\b")
    files = sorted((root / "cpsolver").rglob("*.py"))
    return [str(file.relative_to(root)) for file in files if word.search(file.read_text(encoding="utf-8"))]


def main() -> None:
    """Print both counts with their places; an argument is the root of another checkout to count in."""
    from cpsolver.plans.dimensions import DIMENSIONS

    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    lists, naming = decision_lists(root, frozenset(DIMENSIONS)), files_naming(root, PROBE)
    for place, held in lists.items():
        print(f"{place}  {' '.join(held)}")
    print(f"{len(lists)} lists of decisions in {len({place.split(':')[0] for place in lists})} files")
    print("\n".join(naming))
    print(f"{len(naming)} files name {PROBE}")


if __name__ == "__main__":
    main()
