"""The documents say what is true: commands, examples, specs."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import cpsolver
from cpsolver.commands.main import main
from cpsolver.doors.batch.cases import make_cases
from cpsolver.doors.batch.sweep import load_sweep
from cpsolver.inputs.document import parse_yaml
from cpsolver.problem.resolve import resolve
from cpsolver.rules import RULES
from cpsolver.spec.spec import load_spec, parse_spec
from tests.support.checkout import ROOT
from tests.support.selection import full
from tools.cli_reference import reference
from tools.support_matrix import page as support

README = (ROOT / "README.md").read_text(encoding="utf-8")
SPECS = (ROOT / "docs" / "specs.md").read_text(encoding="utf-8")
HOW_TO = (ROOT / "docs" / "how-to.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
PAGES = sorted((*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")))


def fenced(language: str, page: str = README) -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    return [text for kind, text in blocks if kind == language]


def test_the_first_two_commands_are_make_targets() -> None:
    commands = [block.strip() for block in fenced("")][:2]
    assert commands == ["make plan", "make test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(f"\n{command.split()[1]}:" in makefile for command in commands)
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert all(command in ci for command in commands)


def test_every_command_stands_under_how_to() -> None:
    for name in main.list_commands(None):  # type: ignore[arg-type]
        assert f"apss-cp {name}" in HOW_TO, name


def test_the_readme_is_short() -> None:
    assert len(README.split()) < 1100


def test_the_reference_of_the_commands_is_what_the_commands_say() -> None:
    assert (ROOT / "docs/cli.md").read_text(encoding="utf-8") == reference(), "python -m tools.cli_reference writes it"


def test_the_page_of_who_runs_what_is_what_the_catalogues_and_profiles_say() -> None:
    assert (ROOT / "docs/support.md").read_text("utf-8") == support(), "python -m tools.support_matrix writes it"


def test_the_steering_of_the_page_on_specs_is_valid() -> None:
    whole, steering, *others = fenced("yaml", SPECS)
    assert len(others) == 4
    data = parse_yaml(whole).data
    resolve(parse_spec({**data, "search": parse_yaml(steering).data["search"]}))


@pytest.mark.parametrize("at", [2, 3, full(0), full(4), full(5)])
def test_the_specs_of_the_page_on_specs_have_plans(at: int) -> None:
    result = CliRunner().invoke(main, ["solve", "-", "--json"], input=fenced("yaml", SPECS)[at])
    assert result.exit_code == 0, result.output


def test_the_documents_name_every_example_of_a_model_of_its_own() -> None:
    for path in (ROOT / "examples").glob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        assert path.name in SPECS + HOW_TO or "llama2-70b" in text or "seed" in path.stem, path


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_resolves(path: Path) -> None:
    if "strategy" in path.stem:
        arguments = ["evaluate", str(path).replace("-strategy", ""), "--strategy", str(path)]
        assert CliRunner().invoke(main, arguments).exit_code == 0
    elif path.stem == "sweep":
        assert not any(case.error for case in make_cases(load_sweep(path)))
    else:
        resolve(load_spec(path))


def test_the_architecture_page_is_one_page_and_names_every_room() -> None:
    rooms = {f"{path.parent.name}/" for path in (ROOT / "cpsolver").rglob("__init__.py")} - {"cpsolver/", "html/"}
    assert {room for room in rooms | {"hw_specs/", "models_zoo/"} if room not in ARCHITECTURE} == set()
    assert ARCHITECTURE.count("\n") <= 90


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    """Addresses from the root of the checkout in backticks, and links; those with a placeholder name none."""
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`((?:cpsolver|hw_specs|models_zoo|tests|tools|benchmarks|examples|docs)/[\w./-]+)`", text)
    linked = [str((page.parent / link).resolve()) for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", text)]
    assert [name for name in [*named, *linked] if not (ROOT / name).exists() and not re.search("toy|NAME", name)] == []


def test_the_index_lists_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES if page.parent.name == "docs" and f"({page.name})" not in index] == [
        "README.md"
    ]


def test_every_room_says_what_it_may_import() -> None:
    for package in ("cpsolver", "hw_specs", "models_zoo"):
        for path in (ROOT / package).rglob("__init__.py"):
            text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            assert "mport" in text or path.parent.name == "cpsolver", path


def test_make_has_every_target_that_documents_and_workflows_call() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    for path in (*PAGES, *(ROOT / ".github" / "workflows").glob("*.yml")):
        called = set(re.findall(r"(?:`|run: |^)make ([a-z-]+)", path.read_text(encoding="utf-8"), flags=re.MULTILINE))
        assert called <= targets, path


def test_one_version_everywhere() -> None:
    stated = {
        "pyproject.toml": r'^version = "(.+)"',
        "CITATION.cff": r"^version: (.+)",
        "CHANGELOG.md": r"^## \[(\d.*)\]",
    }
    for name, pattern in stated.items():
        found = re.search(pattern, (ROOT / name).read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert found is not None
        assert found[1] == cpsolver.__version__, name


def test_the_readme_has_a_place_for_the_measured_accuracy_and_says_where_the_rest_is() -> None:
    start, end = README.index("<!-- accuracy -->"), README.index("<!-- /accuracy -->")
    assert start < end
    assert README.index("## How sure") < start < README.index("## How fast")
    for place in ("`apss-cp validate`", "`apss-cp stacks`", "docs/accuracy.md"):
        assert place in README[README.index("## How sure") : start]


def test_every_rule_says_what_it_asks_for() -> None:
    assert all(rule.words.strip() for rule in RULES.values())
