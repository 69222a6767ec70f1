"""The pages of sweeps and comparisons as documents: what they show, that they stand alone, names as text."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest

from cpsolver.doors.batch.cases import make_cases
from cpsolver.doors.batch.compare import Answer, Comparison, comparison
from cpsolver.doors.batch.comparison_page import comparison_page
from cpsolver.doors.batch.decision import comparison_document
from cpsolver.doors.batch.files import document, sweep_csv
from cpsolver.doors.batch.page import sweep_page
from cpsolver.doors.batch.rows import figures, new_row
from cpsolver.doors.batch.run import SweepAnswer
from cpsolver.doors.report.document import result_document
from cpsolver.doors.report.html.choices import choices_page
from cpsolver.problem.resolve import resolve
from cpsolver.search.search import search
from cpsolver.spec.spec import parse_spec
from tests.support.batch_sweeps import BASE, answer, sweep_of
from tests.support.command import in_tmp
from tests.support.html_page import (
    Element,
    assert_accessible,
    assert_stands_alone,
    numbers,
    parse,
    unpacked,
    walk,
)
from tests.support.problems import chip_spec, model_spec

__all__ = ["in_tmp"]

EVIL = "</script><img src=x onerror=alert(1)>\"'&amp;\x1b"
CELLS = """
list:
  - {label: small, cluster.num_gpus: 16}
  - {label: large, cluster.num_gpus: 32}
  - {label: none, cluster.num_gpus: 64}
  - {label: wrong, model: nothing-known}
"""


def solved(told: str = "no room") -> SweepAnswer:
    """Two cells with plans of the search, one without a plan and one that is wrong."""
    sweep = sweep_of(BASE.replace("top: 1", "top: 2") + CELLS)
    cases = make_cases(sweep)
    rows = [new_row(case) for case in cases]
    for place in (0, 1):
        problem = cases[place].problem
        assert problem is not None
        rows[place] |= figures(result_document(problem, search(problem)))
    rows[2] |= {"status": "infeasible", "reasons": json.dumps([told])}
    rows[3] |= {"error": told}
    return SweepAnswer(sweep, tuple(cases), tuple(rows), "s.sqlite", 4, 1.0)


def sweep_html(answer: SweepAnswer) -> str:
    return choices_page(sweep_page(answer))


def comparison_html(found: Comparison) -> str:
    return choices_page(comparison_page(found))


def details(page: Element) -> list[Element]:
    """What is shown of each answer when it is picked."""
    found = unpacked(numbers(page)["packed"])["details"]
    return [parse(f"<!DOCTYPE html>\n<html lang='en'>{one}</html>") for one in found]


def table(page: Element) -> list[tuple[str, dict[str, tuple[str, str]]]]:
    """Every row of the table: its name, and of each column the words and the number."""
    of = page.one("section", id="pick").one("table")
    heads = [head.text for head in of.one("thead").all("th")]
    found = []
    for row in of.one("tbody").all("tr"):
        cells = [cell for cell in row.children if isinstance(cell, Element)]
        told = {
            head: (cell.text, cell.attributes.get("data-sort", "")) for head, cell in zip(heads, cells, strict=True)
        }
        found.append((cells[2].text, told))
    return found


def test_the_table_has_every_cell_and_its_figures_as_numbers() -> None:
    whole = solved()
    page = parse(sweep_html(whole))
    shown = table(page)
    assert [name for name, _ in shown] == ["small", "large", "none", "wrong"]
    for (_, cells), (_, row) in zip(shown, whole.done, strict=True):
        assert cells["status"][0] == row["status"]
        for head, name, scale in (("devices", "devices", 1), ("MFU", "mfu", 100), ("step time", "step_time_s", 1)):
            number = None if cells[head][1] == "" else float(cells[head][1])
            assert number == (None if row[name] is None else pytest.approx(row[name] * scale, rel=1e-8))
    assert "days" not in shown[0][1]  # no cell has any
    better = {head.text: head.attributes.get("data-better") for head in page.one("thead").all("th")}
    assert (better["tokens/s"], better["devices"], better["status"]) == ("higher", "lower", None)


def test_what_is_saved_is_what_the_command_prints() -> None:
    whole = solved()
    packed = unpacked(numbers(parse(sweep_html(whole)))["packed"])
    assert packed["document"] == json.loads(json.dumps(document(whole)))
    assert packed["csv"] == sweep_csv(whole)
    assert len(list(csv.DictReader(StringIO(packed["csv"])))) == 4


def test_details_have_the_plan_or_why_there_is_none() -> None:
    whole = solved()
    small, large, none, wrong = details(parse(sweep_html(whole)))
    for shown, (_, row) in zip((small, large), whole.done, strict=False):
        best, *_ = json.loads(row["plans"])
        assert f"{best['throughput_tokens_per_s_per_gpu']:,.1f} per GPU" in shown.one("dl").text
        assert [head.text for head in shown.all("h3")][:1] == ["Where the time of a step goes"]
    assert "no room" in none.text
    assert not none.all("h3")
    assert "no room" in wrong.text


def test_the_winner_is_marked_and_days_and_dollars_come_first() -> None:
    page = parse(sweep_html(answer((0.01, 0.49, 0.7, 0.8, 0.99))))
    (winner,) = page.one("section", id="pick").all("tr", class_="winner")
    assert winner.one("th").text == "64"
    assert numbers(page)["first"] == 3
    heads = [head.text for head in page.one("section", id="pick").one("thead").all("th")][3:]
    across, up = numbers(page)["axes"]
    assert (heads[across], heads[up]) == ("days", "$ in all")
    assert "Winner: 64" in page.one("section", id="picture").text
    assert len(page.all("svg", class_="plot")) == 4  # where no script runs, and on paper


# Comparisons.


def spec(name: str, chip: str, count: int) -> dict[str, Any]:
    return {
        "model": model_spec(name=name, layers=4),
        "cluster": {
            "num_gpus": count,
            "gpus_per_node": 2,
            "chips": {chip: {"spec": chip_spec()}},
            "prices": {chip: 2.0},
        },
        "training": {"global_batch_size": 16, "sequence_length": 1024, "tokens": 1e9},
        "search": {"top": 1, "pin": {"tp": 1, "cp": 1, "mbs": 1}},
    }


def weighed(name: str = "m", chip: str = "x", option: str = "four") -> Comparison:
    """Two options, the first with a node more; a third has no plan."""
    answers = []
    for title, count in ((option, 4), ("two", 2), ("+1 node", 6)):
        problem = resolve(parse_spec(spec(name, chip, count)))
        answers.append(Answer(title, problem, search(problem)))
    none = Answer(
        "none", answers[0].problem, replace(answers[0].result, status="infeasible", plans=(), reasons=(name,))
    )
    return comparison([answers[0], answers[1], none], [(answers[2],), (), ()])


def test_a_comparison_s_page_has_options_and_their_neighbours() -> None:
    found = weighed()
    page = parse(comparison_html(found))
    shown = table(page)
    assert [name for name, _ in shown] == ["four", "four, +1 node", "two", "none"]
    told = comparison_document(found)["options"]
    for (_, cells), option in ((shown[0], told[0]), (shown[2], told[1])):
        assert float(cells["dollars"][1]) == pytest.approx(option["dollars"]["mean"], rel=1e-8)
        assert float(cells["even at"][1]) == pytest.approx(option["break_even_dollars_per_device_hour"], rel=1e-8)
    (winner,) = page.one("section", id="pick").all("tr", class_="winner")
    assert found.winner is not None
    assert winner.one("th").text == found.options[found.winner].answer.name
    packed = unpacked(numbers(page)["packed"])
    assert packed["document"] == json.loads(json.dumps(comparison_document(found)))
    assert [row["name"] for row in csv.DictReader(StringIO(packed["csv"]))] == ["four", "two", "none"]
    assert [bool(shown.all("dl")) for shown in details(page)] == [True, True, True, False]


def test_a_comparison_without_any_plan_is_told() -> None:
    found = weighed()
    empty = [replace(option.answer, result=replace(option.answer.result, plans=())) for option in found.options]
    page = parse(comparison_html(comparison(empty, [()] * 3)))
    assert [cells["GPUs"] for _, cells in table(page)] == [("–", "")] * 3


# Both.


def pages(told: str) -> list[str]:
    whole = solved(told=told)
    cases = [replace(case, cell=replace(case.cell, labels={"cell": told})) for case in whole.cases]
    rows = tuple({**row, "model": told, "strategy": told} for _, row in whole.done)
    sweep = replace(whole.sweep, file=told)
    return [
        sweep_html(replace(whole, cases=tuple(cases), rows=rows, sweep=sweep)),
        comparison_html(weighed(told.replace("\x1b", ""), told.replace("\x1b", ""), told)),
    ]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("pages"))
        return {"plain": pages("plain"), "evil": pages(EVIL)}


@pytest.mark.parametrize("which", [0, 1], ids=["sweep", "comparison"])
def test_pages_stand_alone_and_are_accessible(made: dict[str, list[str]], which: int) -> None:
    text = made["plain"][which]
    assert_stands_alone(text)
    page = parse(text)
    assert_accessible(page)
    for one in details(page):
        assert all(cell.attributes.get("scope") for cell in one.all("th"))
        assert not [element for element in walk(one) if "id" in element.attributes]
        assert {head.name for head in walk(one) if head.name[0] == "h" and head.name[1:].isdigit()} <= {"h3"}


@pytest.mark.parametrize("which", [0, 1], ids=["sweep", "comparison"])
def test_markup_in_names_is_shown_as_text(made: dict[str, list[str]], which: int) -> None:
    plain, evil = (parse(made[kind][which]) for kind in ("plain", "evil"))

    def kinds(page: Element) -> list[tuple[str, tuple[str, ...]]]:
        """Every element and its attributes' names."""
        every = [one for tree in (page, *details(page)) for one in walk(tree)]
        return [(one.name, tuple(one.attributes)) for one in every]

    assert kinds(evil) == kinds(plain)
    assert "<img" not in made["evil"][which]
    assert "\x1b" not in made["evil"][which]
    assert EVIL.replace("\x1b", "") in evil.text.replace("\N{REPLACEMENT CHARACTER}", "")
