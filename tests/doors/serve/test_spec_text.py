"""A spec of the page: its limits, its files, and what is wrong with it in the words of the commands."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cpsolver.doors.serve.spec_text import PageLimits, problem_of, trouble_for_page
from cpsolver.inputs.errors import InputError, Trouble
from tests.support.command import in_tmp as in_tmp
from tests.support.problems import chip_spec, model_spec
from tests.support.served import SPEC

LIMITS = PageLimits(60.0)


def troubles(text: str, limits: PageLimits = LIMITS) -> tuple[Trouble, ...]:
    with pytest.raises(InputError) as caught:
        problem_of(text, limits)
    return caught.value.troubles


@pytest.mark.parametrize(("given", "taken"), [("", 60), (", time_limit_s: 5", 5), (", time_limit_s: 600", 60)])
def test_no_search_is_longer_than_the_server_allows(given: str, taken: float) -> None:
    problem = problem_of(SPEC.replace("{top: 2", "{top: 2" + given), LIMITS)
    assert (problem.spec.search.time_limit_s, problem.spec.search.top) == (taken, 2)


@pytest.mark.parametrize("given", ["soon", "-1", "true", "[1]", ".inf", ".nan"])
def test_a_limit_that_is_none_is_told(given: str) -> None:
    text = SPEC.replace("{top: 2", "{top: 2, time_limit_s: " + given)
    if given == ".inf":
        assert problem_of(text, LIMITS).spec.search.time_limit_s == 60
    else:
        assert [trouble.where for trouble in troubles(text)] == ["search.time_limit_s"]


def test_a_spec_without_a_search_has_the_limit_too() -> None:
    text = "".join(SPEC.splitlines(keepends=True)[:3])
    assert problem_of(text, LIMITS).spec.search.time_limit_s == 60
    assert [one.where for one in troubles(text + "search: soon\n")] == ["search"]


def test_all_that_is_wrong_comes_at_once_with_places() -> None:
    found = troubles(SPEC.replace("num_gpus: 8", "num_gpus: 7").replace("llama2-7b", "llama9-7b").replace("2,", "two,"))
    assert [(one.line, one.where) for one in found] == [(1, "model"), (2, "cluster.num_gpus"), (4, "search.top")]
    told = [trouble_for_page(one) for one in found]
    assert told[1]["line"] == 2
    assert told[1]["column"] == SPEC.splitlines()[1].index("num_gpus") + 1
    assert told[1]["text"].startswith("cluster.num_gpus = 7: is not a multiple")


@pytest.mark.parametrize(
    "text", ["", "[", "a: *b", "- 1", "&a [*a]", "{" * 300, "a: 1\na: 2\n", "\x00", "!!python/name:os.x y"]
)
def test_what_is_no_spec_is_bad_input(text: str) -> None:
    assert all(str(trouble) for trouble in troubles(text))


OUTSIDE = "is outside the folder"


def chip(file: str) -> str:
    return SPEC.replace("chips: a800", f"chips: {{x: {{max: 8, file: {json.dumps(file)}}}}}")


def test_without_a_folder_no_file_is_read() -> None:
    Path("m.yaml").write_text(json.dumps(model_spec()), encoding="utf-8")
    for text in (SPEC.replace("llama2-7b", "m.yaml"), SPEC.replace("llama2-7b", "/etc/M.JSON"), chip("/etc/passwd")):
        (found,) = troubles(text)
        assert "names a file" in found.message
        assert found.line in (1, 2)


def test_files_of_the_folder_are_read() -> None:
    Path("in").mkdir()
    Path("in/m.yaml").write_text(json.dumps(model_spec(name="mine")), encoding="utf-8")
    Path("in/x.yaml").write_text(json.dumps(chip_spec()), encoding="utf-8")
    limits = PageLimits(60.0, Path("in"))
    assert problem_of(SPEC.replace("llama2-7b", "m.yaml"), limits).model.name == "mine"
    assert problem_of(chip("x.yaml"), limits).supply("x").chip.name
    (missing,) = troubles(chip("y.yaml"), limits)
    assert trouble_for_page(missing)["line"] is None or "no such file" in missing.message


def test_other_files_are_not_even_looked_at() -> None:
    """Links and .. count as what they lead to; what is wrong besides is told with them."""
    Path("in").mkdir()
    Path("secret.yaml").write_text("top secret: [", encoding="utf-8")
    Path("in/link.yaml").symlink_to(Path("secret.yaml").resolve())
    Path("in/away").symlink_to(Path.cwd())
    Path("in/loop.yaml").symlink_to("loop.yaml")
    limits = PageLimits(60.0, Path("in"))
    names = [
        "../secret.yaml",
        str(Path("secret.yaml").resolve()),
        "link.yaml",
        "away/secret.yaml",
        "a/../../secret.yaml",
    ]
    for name in [
        *names,
        "loop.yaml",
        "~/../secret.yaml/../../secret.yaml",
        "/proc/self/environ.yaml",
        "x\0.yaml",
        "n" * 5000 + ".yaml",
    ]:
        (found,) = troubles(chip(name), limits)
        assert "secret" not in found.message
        assert OUTSIDE in found.message or "cannot be read" in found.message or "no such file" in found.message
    for name in names:
        first, second = troubles(
            SPEC.replace("llama2-7b", json.dumps(name)).replace("num_gpus: 8", "num_gpus: 7"), limits
        )
        assert OUTSIDE in first.message
        assert second.where == "cluster.num_gpus"
    (found,) = troubles(chip("passwd"), limits)
    assert "is no file for a page to read" in found.message


def test_nobody_is_waited_for_at_a_named_pipe() -> None:
    os.mkfifo("pipe.yaml")
    with pytest.raises(InputError, match=r"model = 'pipe.yaml': is no file for a page to read"):
        problem_of(SPEC.replace("llama2-7b", "pipe.yaml"), PageLimits(60, Path()))


def test_places_in_other_files_are_not_the_editors() -> None:
    Path("x.yaml").write_text("\na: [", encoding="utf-8")
    (found,) = troubles(chip("x.yaml"), PageLimits(60.0, Path()))
    assert found.line == 2
    told = trouble_for_page(found)
    assert (told["line"], told["column"]) == (None, None)
    assert told["text"].startswith("x.yaml:2")


def test_a_calibration_is_for_every_plan() -> None:
    (found,) = troubles(SPEC, PageLimits(60.0, None, "none.yaml"))
    assert found.file == "none.yaml"
