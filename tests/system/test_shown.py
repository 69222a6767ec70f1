"""What README, tutorial and gallery show is what their commands print; the site has every document."""

from __future__ import annotations

import re

import pytest

from cpsolver.commands.main import main
from tests.support.checkout import ROOT
from tools.shown import PAGES, commands, excerpt, renewed
from tools.site.conf import NAVIGATION, linked, menu

INFEASIBLE = "--on a100:8"
"""In the one command of these pages that finds no plan, to show what is said then."""


@pytest.mark.full
@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_what_its_commands_print(page: str) -> None:
    text, ran = renewed(page)
    assert [(each.command, each.exit_code) for each in ran if each.exit_code != 3 * (INFEASIBLE in each.command)] == []
    assert ran
    assert text == (ROOT / page).read_text(encoding="utf-8"), "python -m tools.shown writes it"


def test_commands_of_pages_are_there() -> None:
    names = set(main.list_commands(None))  # type: ignore[arg-type]
    for page in (*PAGES, "docs/how-to.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        called = re.findall(r"(?:^|`|\$ )apss-cp ([a-z]+)", text, flags=re.MULTILINE)
        assert called, page
        assert set(called) <= names, page


def test_options_of_the_commands_by_task_are_there() -> None:
    text = (ROOT / "docs" / "how-to.md").read_text(encoding="utf-8")
    called = re.findall(r"`apss-cp ([a-z]+) ([^`]*)`", text)
    assert len(called) > 30
    for name, rest in called:
        command = main.get_command(None, name)  # type: ignore[arg-type]
        assert command is not None
        known = {option for each in command.params for option in each.opts}
        assert set(re.findall(r"(?<!\S)--?[a-z-]+", rest)) <= known, (name, rest)


def test_excerpts_keep_their_lines() -> None:
    printed = "one\ntwo  \nthree\n\n"
    assert excerpt(printed, "") == "one\ntwo\nthree\n"
    assert excerpt(printed, "was\n…\n") == "one\n…\n"
    assert excerpt(printed, "…\nwas\nwas\n") == "…\ntwo\nthree\n"


def test_commands_over_several_lines_are_one() -> None:
    assert list(commands("apss-cp a \\\n  --b 1\n# no\n\napss-cp c  # why\n")) == ["apss-cp a    --b 1", "apss-cp c"]


def test_the_menu_has_every_page_once() -> None:
    pages = [page for heading in NAVIGATION.values() for page in heading]
    roots = {"ARCHITECTURE", "CONTRIBUTING", "SECURITY", "CHANGELOG"}
    assert sorted(pages) == sorted(roots | {f"docs/{path.stem}" for path in (ROOT / "docs").glob("*.md")})
    assert menu().count("{toctree}") == len(NAVIGATION)


def test_named_pages_become_links_outside_code() -> None:
    text = "see docs/tune.md, docs/nothing.md, `docs/tune.md`, [x](docs/tune.md)\n```\ndocs/tune.md\n```\n(docs/cli.md)"
    found = linked(text, "README").splitlines()
    assert found[0] == "see [docs/tune.md](docs/tune.md), docs/nothing.md, `docs/tune.md`, [x](docs/tune.md)"
    assert found[2:] == ["docs/tune.md", "```", "([docs/cli.md](docs/cli.md))"]
    assert linked("docs/cli.md is", "docs/space") == "[docs/cli.md](cli.md) is"
