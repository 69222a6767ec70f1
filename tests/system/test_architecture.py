"""Who may import whom, and how long things may grow."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.support.checkout import ROOT
from tools.mutate import load, mutated
from tools.structure import figures, tree
from tools.tests_of import nearest_tests

LAYERS = (
    "inputs",
    "plans",
    "profiles",
    "spec",
    "problem",
    "cost",
    "evaluation",
    "rules",
    "evidence",
    "search",
    "explanation",
    "doors",
    "cpsolver",
    "commands",
)
"""From the bottom up: a module imports only what stands in lines before its own, or in its own package.

`cpsolver` is cpsolver/__init__.py, the library, which imports inside its functions.
"""
CATALOGUES = ("hw_specs", "models_zoo")
LEVEL = {**dict.fromkeys(CATALOGUES, -1), **{name: level for level, name in enumerate(LAYERS)}, "cli": len(LAYERS)}
"""The catalogues lie under all rooms; cli.py, the entrance of a checkout, is above them."""
PRODUCT = ("cpsolver", *CATALOGUES, "cli")


@cache
def sources() -> dict[str, Path]:
    """Dotted name -> file of every module of the product."""
    files = [file for name in PRODUCT for file in sorted((ROOT / name).rglob("*.py"))] + [ROOT / "cli.py"]
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


def part(module: str) -> str:
    """The name by which LAYERS knows a module: its package, or its own name under cpsolver."""
    first, *rest = module.split(".")
    return rest[0] if first == "cpsolver" and rest else first


@cache
def imports(module: str) -> frozenset[str]:
    """Modules that it imports anywhere, in functions too."""
    found: set[str] = set()
    for node in ast.walk(tree(sources()[module])):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            known = names & set(sources())
            found |= known if len(known) == len(names) else {*known, str(node.module)}
    return frozenset(found)


def reaches(module: str) -> set[str]:
    """All that importing a module can import in the end."""
    seen, waiting = set[str](), [module]
    while waiting:
        for name in imports(waiting.pop()) - seen:
            seen.add(name)
            waiting += [name] if name in sources() else []
    return seen


def test_every_module_has_its_layer() -> None:
    assert {part(module) for module in sources()} == set(LEVEL)


def test_imports_point_down() -> None:
    wrong = [
        (module, name)
        for module in sources()
        for name in imports(module)
        if name in sources() and part(name) != part(module) and LEVEL[part(name)] >= LEVEL[part(module)]
    ]
    assert not wrong


def test_no_module_is_loose() -> None:
    """cpsolver/ holds rooms only: packages, and what says that it is a typed one."""
    assert [path.name for path in (ROOT / "cpsolver").glob("*.py")] == ["__init__.py"]


def test_imports_go_in_no_circle() -> None:
    waiting = {name: set(imports(name)) & set(sources()) - {name} for name in sources()}
    while free := {name for name, wanted in waiting.items() if not wanted}:
        waiting = {name: wanted - free for name, wanted in waiting.items() if name not in free}
    assert not waiting


@pytest.mark.parametrize(
    ("room", "unknown"), [("evidence", "search"), ("rules", "search"), ("report", "search.search")]
)
def test_what_judges_learns_or_renders_does_not_search(room: str, unknown: str) -> None:
    inside = [name for name in sources() if f".{room}." in f"{name}."]
    assert inside
    assert not [name for name in inside for used in imports(name) if f"cpsolver.{unknown}." in f"{used}."]


def test_doors_use_only_the_report_and_what_it_exports() -> None:
    """Beside the rooms before them doors import the report, tune also what it launches, python also what it sweeps."""
    allowed = {"report", "export"}
    doors = {name: set(imports(name)) for name in sources() if name.startswith("cpsolver.doors.")}
    across = {
        (name.split(".")[2], used.split(".")[2])
        for name, wanted in doors.items()
        for used in wanted
        if used.startswith("cpsolver.doors.") and used.split(".")[2] != name.split(".")[2]
    }
    assert {used for _, used in across - {("python", "batch")}} <= allowed
    assert not {door for door, _ in across} & {"report"}


def test_commands_use_the_library_and_the_doors() -> None:
    """What plans, judges and explains is the library's; learning from runs and starting a spec are commands alone."""
    library = {"cpsolver", "inputs", "doors", "spec", "evidence", "profiles"}
    deeper = {
        (module.rpartition(".")[2], name)
        for module in sources()
        for name in imports(module)
        if part(module) == "commands" and name in sources() and part(name) not in {*library, "commands"}
    }
    assert deeper == {
        ("export", "cpsolver.search.search"),  # among the plans that a target runs, without reasons where it runs none
        ("export", "cpsolver.problem.ranks"),
        ("one_line", "cpsolver.problem.flags"),  # troubles in the names of its flags
        ("planning", "cpsolver.problem.filled"),  # what was filled in is told
        ("completion", "models_zoo"),  # names of the catalogues, no more
        ("completion", "hw_specs"),
    }


@pytest.mark.parametrize("catalogue", CATALOGUES)
def test_catalogues_know_nothing_of_the_rest(catalogue: str) -> None:
    used = {part(name) for module in sources() if part(module) == catalogue for name in imports(module)}
    assert not used & (set(LEVEL) - {catalogue, "errors"})
    assert not any(name.startswith("cpsolver") for m in sources() if part(m) == catalogue for name in imports(m))


def test_only_compile_imports_the_solver() -> None:
    users = {part(module) for module in sources() if any(name.startswith("ortools") for name in imports(module))}
    assert users == {"search"}


@pytest.mark.parametrize("judge", ["cpsolver.evaluation.evaluate", "cpsolver.rules"])
def test_judges_do_not_know_the_search(judge: str) -> None:
    assert not {part(name) for name in reaches(judge)} & {"compile", "bounds", "coefficients", "search", "ortools"}


def test_importing_the_search_does_not_import_the_solver() -> None:
    script = "import cpsolver.search.search, cli, sys; sys.exit('ortools' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 0


def test_every_module_has_tests_to_run_after_a_change() -> None:
    """Those that tools/tests_of.py names: tests that import it, or what imports it, or those of its room."""
    modules = [name for name, file in sources().items() if file.name != "__init__.py"]
    assert [name for name in modules if not nearest_tests(name)] == []


def test_every_mutation_still_fits_the_code() -> None:
    assert [one.what for one in load() if mutated(one, ROOT) == (ROOT / one.file).read_text(encoding="utf-8")] == []


def test_files_and_functions_stay_short() -> None:
    files = [
        *sources().values(),
        *sorted((ROOT / "tests").rglob("*.py")),
        *sorted((ROOT / "benchmarks").glob("*.py")),
        *sorted((ROOT / "tools").glob("*.py")),
    ]
    long = {}
    for file in files:
        text = file.read_text(encoding="utf-8")
        if text.count("\n") > 500:
            long[file.name] = text.count("\n")
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= 52:
                long[f"{file.name}:{node.name}"] = (node.end_lineno or 0) - node.lineno + 1
    assert not long


def test_the_house_in_figures() -> None:
    """What a newcomer has to hold in mind stays small (tools/structure.py counts)."""
    house = figures(ROOT)
    assert house["floors"] <= 14
    assert house["class names used twice or more"] <= 5
    assert house["modules under 60 lines"] <= 15
    assert house["longest module"] <= 500
