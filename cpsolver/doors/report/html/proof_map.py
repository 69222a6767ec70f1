"""The map of the proof: a cell for every tp and pp, coloured by how its candidates ended, with its bound in it."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, isinf

from cpsolver.doors.report.goals import dollars, worse_word
from cpsolver.doors.report.html.elements import Html, join, scrolling, tag
from cpsolver.inputs.language import later, say
from cpsolver.inputs.text import about, count, plural, seconds, unit
from cpsolver.problem.problem import Problem
from cpsolver.rules import RULES
from cpsolver.search.proof_map import Ending, MapCell, ProofMap
from cpsolver.search.result import Result

ENDINGS: dict[Ending, str] = {
    "plan": later("a plan of the answer"),
    "open": later("still open"),
    "solved": later("solved exactly"),
    "bounded": later("cut by a lower bound"),
    "memory": later("no room in memory"),
    "refused": later("ruled out by a rule"),
}
"""What the colours mean."""
_FAR = 1.5
"""A bound so many times the best plan's score is far from it: its cell is paler."""
_SHORT = 9
"""Characters of a rule's name in a cell."""


class _Words:
    """How scores are written: seconds of a step, or dollars per million tokens."""

    def __init__(self, found: ProofMap) -> None:
        self.times = found.unit == "s"
        bounds = [cell.bound for cell in found.cells if 0 < cell.bound < inf]
        self.least = min(bounds, default=1.0)

    def briefly(self, score: float) -> str:
        """Without its unit, to some three digits."""
        return about(score, max(score, self.least)) if self.times else f"{score:.3g}"

    def whole(self, score: float) -> str:
        """With its unit."""
        return seconds(score) if self.times else say("{score} per million tokens", score=dollars(score))

    @property
    def unit(self) -> str:
        """That of `briefly`."""
        return unit(self.least) if self.times else say("$ per million tokens")


def map_figure(problem: Problem, result: Result, found: ProofMap) -> Html:
    """The map with its legend, what is told of a cell, and all cells as a table."""
    words = _Words(found)
    used = {ending: name for ending, name in ENDINGS.items() if any(cell.ending == ending for cell in found.cells)}
    entries = (tag("li", tag("i", class_=f"swatch e-{ending}"), say(name)) for ending, name in used.items())
    complete = result.proof.complete
    means = say("A number is a bound in {unit}: no plan there is better.", unit=words.unit) + (
        "" if complete else say(" Not all is settled.")
    )
    notes = say("Candidates are split by tp (down) and pp (across). ") + means + _more(problem)
    hint = say("Point at a cell, or go through them with the arrow keys.")
    return tag(
        "figure",
        tag("ul", *entries, class_="legend"),
        scrolling(say("Candidates by tp and pp"), _grid(problem, result, found, words)),
        tag("p", hint, id="map-told", class_="live", aria_live="polite", hidden="hidden"),
        tag("figcaption", notes),
        tag("details", tag("summary", say("Every cell as a table")), _table(found, words)),
    )


def _more(problem: Problem) -> str:
    told = ""
    if problem.mixed:
        told += say(" Bounds are on the closed form, which charges several chip types too much.")
    if problem.may_idle:
        told += say(" Of the numbers of GPUs that were searched.")
    if problem.degrees_by_chip:
        told += say(" Plans whose chip types have degrees of their own are in no cell.")
    return told


def _grid(problem: Problem, result: Result, found: ProofMap, words: _Words) -> Html:
    by_place = {(cell.tp, cell.pp): cell for cell in found.cells}
    across = _worth(found, "pp")
    head = tag("tr", tag("th", "tp \\ pp", scope="col"), *(tag("th", str(pp), scope="col") for pp in across))
    rows = []
    for tp in _worth(found, "tp"):
        cells = (_cell(problem, result, by_place.get((tp, pp)), words) for pp in across)
        rows.append(tag("tr", tag("th", str(tp), scope="row"), *cells))
    caption = tag("caption", say("Pipeline stages across, tensor parallelism down"))
    return tag("table", caption, tag("thead", head), tag("tbody", *rows), class_="map")


def _worth(found: ProofMap, name: str) -> list[int]:
    """The sizes up to the first beyond the last one of which anything was not ruled out."""
    sizes = sorted({getattr(cell, name) for cell in found.cells})
    alive = max(
        (getattr(cell, name) for cell in found.cells if cell.ending != "refused"), default=max(sizes, default=1)
    )
    return sizes[: sizes.index(alive) + 2]


def _cell(problem: Problem, result: Result, cell: MapCell | None, words: _Words) -> Html:
    if cell is None:
        return tag("td", "", class_="e-none", tabindex="-1")
    ending, far = cell.ending, cell.ending == "bounded" and cell.bound > _FAR * words.least
    told = " ".join(_sentences(problem, result, cell, words))
    inside = join([_number(cell, words), tag("small", _word(cell))])
    return tag(
        "td", inside, class_=f"e-{ending} far" if far else f"e-{ending}", title=told, data_told=told, tabindex="-1"
    )


def _number(cell: MapCell, words: _Words) -> str:
    return words.briefly(cell.bound) if 0 < cell.bound < inf else "–"


def _word(cell: MapCell) -> str:
    if cell.plans:
        return (
            say("plan ") + ", ".join(map(str, cell.plans))
            if len(cell.plans) < 3
            else say("{plans} plans", plans=len(cell.plans))
        )
    if cell.ending == "refused" and cell.rule is not None:
        shown = cell.rule.replace("_", " ")
        return shown if len(shown) <= _SHORT else f"{shown[: _SHORT - 1]}…"
    names = {"memory": say("memory"), "solved": say("solved"), "open": say("open")}
    return names.get(cell.ending, say("bound"))


def _sentences(problem: Problem, result: Result, cell: MapCell, words: _Words) -> Iterator[str]:
    """All that is known of a cell, in sentences."""
    yield say(
        "tp {tp}, pp {pp}: {considered}.", tp=cell.tp, pp=cell.pp, considered=plural(cell.considered, "candidate")
    )
    if cell.plans:
        told = say("Here is plan {ranks}.") if len(cell.plans) == 1 else say("Here are plans {ranks}.")
        yield told.format(ranks=", ".join(map(str, cell.plans)))
    ways = [f"{count(number)} {name}" for name, number in _ways(cell) if number]
    if ways:
        yield f"{'; '.join(ways)}."
    for rule, number in sorted(cell.refused.items(), key=lambda item: -item[1]):
        yield say(
            "{number} ruled out by {rule} ({words}).", number=count(number), rule=rule, words=say(RULES[rule].words)
        )
    if 0 < cell.bound < inf:
        yield say("No plan here is better than {whole}.", whole=words.whole(cell.bound))
    elif cell.bound and result.proof.complete:
        yield say("There is no plan here.")
    if cell.bounded and not cell.plans and result.proof.complete and result.plans:
        yield say(
            "So all here are {worse_word} than the last of the answer's plans, or no better.",
            worse_word=worse_word(problem),
        )


def _ways(cell: MapCell) -> Iterator[tuple[str, int]]:
    yield say("solved exactly"), cell.solved
    yield say("still open"), cell.open
    yield say("cut by a lower bound"), cell.bounded
    yield say("do not fit in memory, however the layers are split"), cell.memory


def _table(found: ProofMap, words: _Words) -> Html:
    heads = (
        "tp",
        "pp",
        say("candidates"),
        say("ruled out"),
        say("no room"),
        say("bounded"),
        say("solved"),
        say("open"),
        say("bound, {unit}", unit=words.unit),
    )
    head = tag(
        "tr", *(tag("th", name, scope="col") for name in heads), tag("th", say("ended"), scope="col", class_="text")
    )
    rows = []
    for cell in found.cells:
        refused = sum(cell.refused.values())
        numbers = (cell.tp, cell.pp, cell.considered, refused, cell.memory, cell.bounded, cell.solved, cell.open)
        cells = [tag("td", count(number)) for number in numbers]
        bound = "" if isinf(cell.bound) else f"{cell.bound:.6g}"
        ended = say(ENDINGS[cell.ending]) + (f": {cell.rule}" if cell.ending == "refused" else "")
        cells += [tag("td", _number(cell, words), data_sort=bound), tag("td", ended, class_="text")]
        rows.append(tag("tr", *cells))
    table = tag("table", tag("thead", head), tag("tbody", *rows), class_="numbers sortable cells")
    return scrolling(say("Every cell of the map"), table)
