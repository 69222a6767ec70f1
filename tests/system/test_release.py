"""What is released: the workflow and the container file agree with pyproject.toml, and name actions by commit."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import ruamel.yaml

from tests.support.checkout import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SYSTEMS = ["ubuntu-24.04", "ubuntu-24.04-arm", "macos-15", "macos-15-intel"]


def jobs(name: str) -> dict[str, Any]:
    text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8")
    found: dict[str, Any] = ruamel.yaml.YAML(typ="safe").load(text)["jobs"]
    return found


def claimed() -> list[str]:
    """The Python versions that a release says it runs on."""
    words = [entry.rpartition(" ")[2] for entry in PROJECT["project"]["classifiers"] if "Python :: 3." in entry]
    return sorted(words)


@pytest.mark.parametrize(("workflow", "job"), [("release", "try"), ("weekly", "wheel")])
def test_the_wheel_is_tried_on_all_that_it_claims(workflow: str, job: str) -> None:
    matrix = jobs(workflow)[job]["strategy"]["matrix"]
    assert (matrix["python"], matrix["system"]) == (claimed(), SYSTEMS)


def test_nothing_is_published_that_was_not_tried_and_signed() -> None:
    release = jobs("release")
    assert release["publish"]["needs"] == "attest"
    assert release["attest"]["needs"] == ["build", "try"]
    assert release["publish"]["permissions"] == {"id-token": "write"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_named_by_commit_and_rights_by_job(path: Any) -> None:
    text = path.read_text(encoding="utf-8")
    uses = re.findall(r"uses: (.*)", text)
    assert uses
    assert [use for use in uses if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", use)] == []
    assert "\npermissions: {}\n" in text
    assert all("permissions" in job for job in jobs(path.stem).values())


def test_every_extra_for_users_is_tried() -> None:
    tried = {each["extra"] for each in jobs("weekly")["extras"]["strategy"]["matrix"]["include"]}
    assert tried == set(PROJECT["project"]["optional-dependencies"]) - {"dev", "docs", "real"}


def test_the_image_has_every_package_and_is_not_root() -> None:
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    let_in = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for package in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]:
        name = package.rstrip("*")
        assert f"\nCOPY {name} /source/{name}\n" in text
        assert f"!{name}" in let_in
    assert text.rindex("\nUSER planner\n") < text.index('\nENTRYPOINT ["apss-cp"]\n')
