"""The documents say what is true: commands, examples, specs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli import main
from cpsolver.doors.batch.cases import make_cases
from cpsolver.doors.batch.sweep import load_sweep
from cpsolver.inputs.document import parse_yaml
from cpsolver.problem.resolve import resolve
from cpsolver.rules import RULES
from cpsolver.spec.spec import load_spec, parse_spec
from tests.support.checkout import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def fenced(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_first_two_commands_are_make_targets() -> None:
    commands = [block.strip() for block in fenced("")][:2]
    assert commands == ["make plan", "make test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(f"\n{command.split()[1]}:" in makefile for command in commands)
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert all(command in ci for command in commands)


def test_every_command_stands_in_the_readme() -> None:
    for name in main.list_commands(None):  # type: ignore[arg-type]
        assert f"apss-cp {name}" in README, name


def test_the_readme_s_specs_have_plans_and_its_steering_is_valid() -> None:
    whole, steering, *others = fenced("yaml")
    data = parse_yaml(whole).data
    search = parse_yaml(steering).data["search"]
    resolve(parse_spec({**data, "search": search}))
    assert len(others) == 3
    for text in (whole, *others):
        result = CliRunner().invoke(main, ["solve", "-", "--json"], input=text)
        assert result.exit_code == 0, result.output


def test_the_readme_names_every_example_of_a_model_of_its_own() -> None:
    for path in (ROOT / "examples").glob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        assert path.name in README or "llama2-70b" in text or "seed" in path.stem, path


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_resolves(path: Path) -> None:
    if "strategy" in path.stem:
        arguments = ["evaluate", str(path).replace("-strategy", ""), "--strategy", str(path)]
        assert CliRunner().invoke(main, arguments).exit_code == 0
    elif path.stem == "sweep":
        assert not any(case.error for case in make_cases(load_sweep(path)))
    else:
        resolve(load_spec(path))


def test_the_architecture_page_names_every_module() -> None:
    for folder in ("cpsolver", "hw_specs", "models_zoo"):
        for path in (ROOT / folder).glob("*.py"):
            if path.stem != "__init__":
                assert path.name in ARCHITECTURE or f"{folder}/" in ARCHITECTURE, path
    for path in (ROOT / "cpsolver").iterdir():
        if path.is_dir() and (path / "__init__.py").exists():
            assert f"cpsolver/{path.name}/" in ARCHITECTURE, path
        elif path.suffix == ".py" and path.stem != "__init__":
            assert path.name in ARCHITECTURE, path


def test_the_readme_has_a_place_for_the_measured_accuracy_and_says_where_the_rest_is() -> None:
    start, end = README.index("<!-- accuracy -->"), README.index("<!-- /accuracy -->")
    assert start < end
    assert README.index("## How sure") < start < README.index("## How fast")
    for place in ("`apss-cp validate`", "`apss-cp stacks`", "docs/accuracy.md"):
        assert place in README[README.index("## How sure") : start]


def test_every_rule_says_what_it_asks_for() -> None:
    assert all((rule.__doc__ or "").strip() for rule in RULES.values())
