"""The structure of the product in figures: rooms, floors, doubled names, small modules, lines.

    python tools/structure.py [CHECKOUT]

A room is a package, or a module that stands loose in cpsolver/. A room stands one floor above the highest room that it
imports; rooms that import each other in a circle count as one.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

PRODUCT = ("cpsolver", "hw_specs", "models_zoo")
SMALL = 60


def modules(root: Path) -> dict[str, Path]:
    """Dotted name -> file of every module of the product."""
    files = [file for name in PRODUCT for file in sorted((root / name).rglob("*.py"))] + [root / "cli.py"]
    return {".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


@cache
def tree(file: Path) -> ast.Module:
    """A file's syntax."""
    return ast.parse(file.read_text(encoding="utf-8"))


def imports(name: str, sources: Mapping[str, Path]) -> Iterator[str]:
    """Modules of the product that a module names, also inside functions."""
    for node in ast.walk(tree(sources[name])):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in sources)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                target = whole if whole in sources else node.module
                if target in sources:
                    yield target


def room(name: str, sources: Mapping[str, Path]) -> str:
    """The package that a module stands in; its own name where it stands in cpsolver/ itself or in no package."""
    package = name if sources[name].name == "__init__.py" else name.rpartition(".")[0]
    return name if package in ("", "cpsolver") else package


def room_graph(sources: Mapping[str, Path]) -> dict[str, set[str]]:
    """Room -> the other rooms that it imports from. Packages' faces, which only say what they are, draw nothing."""
    graph: dict[str, set[str]] = {room(name, sources): set() for name in sources if name != "cpsolver"}
    for name in sources:
        if name != "cpsolver":
            graph[room(name, sources)] |= {room(used, sources) for used in imports(name, sources) if used != "cpsolver"}
    return {name: used - {name} for name, used in graph.items()}


def reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """All rooms that one reaches."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        fresh = graph[waiting.pop()] - seen
        seen |= fresh
        waiting += fresh
    return seen


def floors(graph: Mapping[str, set[str]]) -> int:
    """Floors of the graph, circles taken as one room."""
    reach = {name: reachable(graph, name) for name in graph}
    circle = {name: frozenset({name} | {other for other in reach[name] if name in reach[other]}) for name in graph}
    below = {group: {circle[used] for name in group for used in graph[name]} - {group} for group in circle.values()}
    height: dict[frozenset[str], int] = {}
    while len(height) < len(below):
        for group, used in below.items():
            if group not in height and used <= height.keys():
                height[group] = 1 + max((height[other] for other in used), default=0)
    return max(height.values())


def figures(root: Path) -> dict[str, int]:
    """What -> how many."""
    sources = modules(root)
    graph = room_graph(sources)
    classes = Counter(
        node.name for file in sources.values() for node in ast.walk(tree(file)) if isinstance(node, ast.ClassDef)
    )
    lines = {name: file.read_text(encoding="utf-8").count("\n") for name, file in sources.items()}
    real = {name: count for name, count in lines.items() if sources[name].name != "__init__.py"}
    return {
        "modules": len(sources),
        "loose modules in cpsolver": sum(
            name.count(".") == 1 and file.parent == root / "cpsolver" for name, file in sources.items()
        ),
        "rooms": len(graph),
        "floors": floors(graph),
        "arrows between rooms": sum(map(len, graph.values())),
        "rooms in circles": sum(any(name in reachable(graph, used) for used in graph[name]) for name in graph),
        "class names used twice or more": sum(count > 1 for count in classes.values()),
        f"modules under {SMALL} lines": sum(count < SMALL for count in real.values()),
        "longest module": max(real.values()),
        "lines of product code": sum(lines.values()),
    }


def main() -> None:
    """Print the figures."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]
    for what, count in figures(root).items():
        print(f"{count:7,}  {what}")


if __name__ == "__main__":
    main()
