"""Which test files to run after a change of a module: the nearest ones that know it.

    python -m tools.tests_of FILE ...

Nearest are the tests that import it; where none does, those that import what imports it, and so on; where nothing does
(commands are loaded by their names), all tests of its room. Of those, the ones in the module's own room, if any, and in
any case the one that is named after it.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tools.structure import imports, modules

ROOT = Path(__file__).parents[1]


def tests() -> dict[str, Path]:
    """Dotted name -> file of every test and helper, without those that need frameworks."""
    files = [file for file in sorted((ROOT / "tests").rglob("*.py")) if "real" not in file.parts]
    return {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in files}


@cache
def users() -> Mapping[str, frozenset[str]]:
    """Module -> what imports it, of the product and of the tests."""
    sources = modules(ROOT) | tests()
    found: dict[str, set[str]] = defaultdict(set)
    for name in sources:
        for used in imports(name, sources):
            found[used].add(name)
    return {name: frozenset(found[name]) for name in sources}


def room_of(module: str) -> str:
    """The folder of tests that belongs to a module: ``tests/doors/report`` for cpsolver.doors.report.html.bars."""
    first, *rest = module.split(".")
    if first in ("hw_specs", "models_zoo"):
        return "tests/catalogues"
    rooms = [room for depth in (2, 1) if (ROOT / (room := "/".join(("tests", *rest[:depth])))).is_dir()]
    return rooms[0] if rest and rooms else "tests/commands"


def nearest_tests(module: str) -> list[str]:
    """The nearest test files, as paths from the root."""
    known, ring, room = set[str](), {module}, room_of(module)
    own = f"{room}/test_{module.rpartition('.')[2]}.py"
    named = {own} if (ROOT / own).is_file() else set[str]()
    while ring := {user for name in ring for user in users()[name]} - known:
        known |= ring
        found = {f"{name.replace('.', '/')}.py" for name in ring if name.rpartition(".")[2].startswith("test_")}
        if found:
            return sorted({path for path in found if path.startswith(f"{room}/")} | named or found)
    return [str(path.relative_to(ROOT)) for path in sorted((ROOT / room).glob("test_*.py"))]


def main() -> None:
    """Print the test files of all modules named, each once."""
    names = {file.resolve(): name for name, file in modules(ROOT).items()}
    asked = [names[Path(path).resolve()] for path in sys.argv[1:]]
    print("\n".join(sorted({path for module in asked for path in nearest_tests(module)})))


if __name__ == "__main__":
    main()
