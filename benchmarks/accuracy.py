"""Writes docs/accuracy.md, and the figures between the accuracy marks of README.md: the published runs predicted and
scored, and what the constants behind that are.

python -m benchmarks.accuracy
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import exp
from pathlib import Path
from statistics import fmean, median

from benchmarks import fit_residuals
from benchmarks.fit import FELT, FEWEST_ROWS, load_left_out
from benchmarks.fit_model import BEND, NOISE, Free, load_free
from cpsolver.evidence.runs.score import DIMENSIONS as GROUPS
from cpsolver.evidence.runs.score import Scored, TimeScore, worst
from cpsolver.evidence.runs.table import PUBLISHED, read_runs
from cpsolver.evidence.runs.validation import Validation, predict, validate
from cpsolver.profiles.constants import ALL, Calibration, Fitted, load_calibration

HERE = Path(__file__).parent
OUTPUT = HERE.parent / "docs" / "accuracy.md"
README = HERE.parent / "README.md"
MARKS = "<!-- accuracy -->", "<!-- /accuracy -->"
PROSE = HERE / "accuracy_prose.md"
"""What is said around the tables, by hand: sections separated by lines `## name`."""
DIMENSIONS = {
    "source": "By source",
    "stack": "By software stack",
    "chip": "By chip",
    "precision": "By precision",
    "framework_year": "By year of the framework",
    "parallel_kind": "By parallel kind",
}


def main() -> None:
    """Predict, score, write."""
    found = read_runs(PUBLISHED)
    validation = validate(found.runs, predict, troubles=found.troubles)
    calibration = load_calibration()
    OUTPUT.write_text("\n".join(_document(validation, calibration)) + "\n", encoding="utf-8")
    _fill_readme(_in_short(validation, load_left_out("source")))
    print(f"wrote {OUTPUT.relative_to(HERE.parent)} and the figures in {README.name}")


def _in_short(validation: Validation, left_out: dict[str, float]) -> str:
    time, rank, kinds = validation.time, validation.rank, validation.memory_by_kind
    assert time is not None
    assert rank.kendall_tau is not None
    assert rank.regret is not None
    fresh = [abs(exp(left_out[one.run.id]) - 1) for one in validation.scored]
    unseen = load_left_out("publisher")
    held = fmean(holds(one, unseen[one.run.id]) for one in validation.scored)
    best, worst_one = _extremes(validation)
    chips = "A100, A800, H100, H800, H200, B200, GB200, GB300, Ascend 910B"
    lines = [
        f"On {time.runs} published runs ({chips}; 2021 to 2026):",
        "",
        f"- step time off by {_percent(time.mean)} on average, {_percent(time.median)} in the median, "
        f"bias {_percent(time.bias, True)};",
        f"- by source from {best} to {worst_one};",
        f"- with its source left out of the fit {_percent(fmean(fresh))}, median {_percent(median(fresh))};",
        f"- {time.inside * 100:.0f} % of the measured times lie inside the 80 % interval, {held * 100:.0f} % where "
        "the fit had not seen their publisher;",
        f"- layouts are put in order with a mean Kendall tau of {rank.kendall_tau:.2f}; the one predicted fastest is "
        f"{_percent(rank.regret)} slower than the fastest on average;",
        f"- memory off by {_percent(kinds['allocated'].mean)} against the framework's own count, "
        f"{_percent(kinds['device'].mean)} against the driver's meter.",
    ]
    return "\n".join(lines)


def _extremes(validation: Validation) -> tuple[str, str]:
    """The best and the worst source of at least eight runs, with their mean errors."""
    scores = sorted((score.mean, name) for name, score in validation.time_by["source"].items() if score.runs >= 8)
    told = [f"{_percent(mean)} ({name.partition(' (')[0]})" for mean, name in scores]
    return told[0], told[-1]


def _fill_readme(text: str) -> None:
    before, _, rest = README.read_text(encoding="utf-8").partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    README.write_text(f"{before}{MARKS[0]}\n{text}\n{MARKS[1]}{after}", encoding="utf-8")


def _document(validation: Validation, calibration: Calibration) -> Iterator[str]:
    prose = _prose()
    left_out = load_left_out("source")
    yield from ("# Accuracy", "", prose["top"], "", "## Step time", "")
    yield from _headline(validation, left_out)
    for key in validation.time_by:
        yield from ("", f"### {DIMENSIONS.get(key, f'By {key}')}", "")
        yield from _groups(validation, key, left_out)
    yield from ("", "## Intervals", "", prose["intervals"], "", *_residuals(calibration))
    yield from ("", "## Which layout is faster", "", prose["rank"], "", *_ranks(validation))
    yield from ("", "## Memory", "", prose["memory"], "", *_memory(validation))
    yield from ("", "## Constants", "", prose["constants"], "", *_constants(calibration))
    yield from ("", "## The rows furthest off", "", *_worst(validation))
    yield from ("", "## Runs that the rules refuse", "", *_refused(validation), "", prose["refused"])
    yield from ("", "## Rows without a prediction", "", *_skipped(validation))
    yield from ("", "## What is weak", "", prose["weak"])


def _prose() -> dict[str, str]:
    sections: dict[str, list[str]] = {}
    for line in PROSE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            sections[line[3:]] = []
        elif sections:
            sections[list(sections)[-1]].append(line)
    figures = {
        "noise": f"{NOISE:.0%}",
        "bend": f"{BEND}",
        "felt": f"{FELT:.1%}",
        "fewest": str(FEWEST_ROWS),
        "smallest": str(fit_residuals.FEWEST),
    }
    return {name: "\n".join(lines).strip().format(**figures) for name, lines in sections.items()}


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table in Markdown."""
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def _percent(share: float, signed: bool = False) -> str:
    return f"{share * 100:+z.1f} %" if signed else f"{share * 100:.1f} %"


HEADS = (
    "runs",
    "mean error",
    "median",
    "90th percentile",
    "bias",
    "inside interval",
    "left out: mean",
    "left out: bias",
)


def _cells(score: TimeScore, scored: Sequence[Scored], left_out: dict[str, float]) -> list[str]:
    off = [exp(left_out[one.run.id]) - 1 for one in scored if one.run.id in left_out]
    return [
        str(score.runs),
        _percent(score.mean),
        _percent(score.median),
        _percent(score.p90),
        _percent(score.bias, signed=True),
        f"{score.inside * 100:.0f} %",
        _percent(fmean(map(abs, off))) if off else "",
        _percent(fmean(off), signed=True) if off else "",
    ]


def _headline(validation: Validation, left_out: dict[str, float]) -> Iterator[str]:
    assert validation.time is not None
    yield from table(("", *HEADS), [["all", *_cells(validation.time, validation.scored, left_out)]])
    yield ""
    yield "Runs that the fit had not seen, by what was left out of it together (layouts: an eighth at a time):"
    yield ""
    rows = []
    for whose in ("layout", "source", "publisher", "model"):
        errors = load_left_out(whose)
        for kind, members in _by_kind(validation.scored).items():
            off = [abs(exp(errors[one.run.id]) - 1) for one in members]
            inside = fmean(holds(one, errors[one.run.id]) for one in members)
            rows.append(
                [whose, kind, str(len(off)), _percent(fmean(off)), _percent(median(off)), f"{inside * 100:.0f} %"]
            )
    yield from table(("left out", "models", "runs", "mean error", "median", "inside interval"), rows)


def _by_kind(scored: Sequence[Scored]) -> dict[str, list[Scored]]:
    """All, dense models, models with experts, and narrow precisions."""
    return {
        "all": list(scored),
        "dense": [one for one in scored if not one.run.moe_experts],
        "with experts": [one for one in scored if one.run.moe_experts],
        "fp8, nvfp4": [one for one in scored if one.run.precision in ("fp8", "nvfp4")],
    }


def holds(one: Scored, log_error: float) -> bool:
    """Whether the interval, moved to a prediction that is off by that much, holds the measured time."""
    predicted = one.prediction.step_time_s
    return one.prediction.low_s / predicted <= exp(-log_error) <= one.prediction.high_s / predicted


def _groups(validation: Validation, dimension: str, left_out: dict[str, float]) -> Iterator[str]:
    rows = []
    for name, score in validation.time_by[dimension].items():
        members = [one for one in validation.scored if GROUPS[dimension](one) == name]
        rows.append([name, *_cells(score, members, left_out)])
    yield from table((dimension, *HEADS), rows)


def _residuals(calibration: Calibration) -> Iterator[str]:
    rows = [
        [key, str(group.rows), _percent(exp(group.low) - 1, signed=True), _percent(exp(group.high) - 1, signed=True)]
        for key, group in sorted(calibration.residuals.items())
    ]
    yield from table(("runs of (stack / architecture / kind / scale)", "runs", "from", "to"), rows)


def _ranks(validation: Validation) -> Iterator[str]:
    rank = validation.rank
    tau = "" if rank.kendall_tau is None else f"{rank.kendall_tau:.2f}"
    regret = "" if rank.regret is None else _percent(rank.regret)
    yield f"{len(rank.groups)} groups; mean Kendall tau {tau}; mean regret {regret}."
    yield ""
    rows = [
        [
            each.ids[0],
            str(each.layouts),
            "" if each.kendall_tau is None else f"{each.kendall_tau:.2f}",
            _percent(each.regret),
        ]
        for each in rank.groups
    ]
    yield from table(("group of", "layouts", "Kendall tau", "regret"), rows)


def _memory(validation: Validation) -> Iterator[str]:
    heads = ("measured as", "runs", "mean error", "bias", "short by over 5 %", "… with the default margin added")
    scores = list(validation.memory_by_kind.items())
    if validation.memory is not None:
        scores.append(("all", validation.memory))
    rows = [
        [
            kind,
            str(score.runs),
            _percent(score.mean),
            _percent(score.bias, signed=True),
            _percent(score.short),
            _percent(score.short_with_margin),
        ]
        for kind, score in scores
    ]
    yield from table(heads, rows)
    short = [one for one in validation.scored if (one.memory_error or 0.0) < -0.05]
    yield from (
        "",
        "Short by more than 5 %: "
        + ", ".join(f"{one.run.id} ({_percent(one.memory_error or 0.0, True)})" for one in short)
        + ".",
    )


def _constants(calibration: Calibration) -> Iterator[str]:
    free = {(str(each.kind), each.group, each.name): each for each in load_free(HERE / "fit_constants.yaml")}
    count = {group: len(names) for kind in (calibration.chips, calibration.stacks) for group, names in kind.items()}
    shared = len(calibration.chips[ALL]) + len(calibration.stacks[ALL])
    each = ", ".join(f"{group} {number}" for group, number in count.items() if group != ALL)
    yield f"Fitted: {shared} for all chips and stacks, and {each}; {sum(count.values()) - count[ALL] + shared} in all."
    yield ""
    rows = []
    for kind, groups in (("chips", calibration.chips), ("stacks", calibration.stacks)):
        for group, names in groups.items():
            for name, entry in names.items():
                own, of_all = free.get((kind, group, name)), free.get((kind, ALL, name))
                reason = next((one.why for one in (own, of_all) if one and one.why), "readings of memory")
                rows.append([f"all {kind}" if group == ALL else group, name, *_fitted(entry, own), reason])
    yield from table(("of", "constant", "value", "error", "prior", "start", "pull", "runs", "what shows it"), rows)


def _fitted(entry: Fitted, free: Free | None) -> list[str]:
    """Value, error, prior, start, pull and runs of a constant; memory's have neither error nor prior."""
    if free is None:
        return [f"{entry.value:.4g}", "", "", f"{entry.start:.4g}", "", str(entry.rows)]
    pull = free.position(entry.value, entry.start)
    spreads = [f"± {entry.error * 100:.0f} %", f"± {free.spread * 100:.0f} %"]
    return [f"{entry.value:.4g}", *spreads, f"{entry.start:.4g}", f"{pull:+.1f}", str(entry.rows)]


def _worst(validation: Validation) -> Iterator[str]:
    rows = []
    for one in worst(validation.scored, 15):
        total = one.prediction.step_time_s
        parts = sorted(one.prediction.breakdown_s.items(), key=lambda item: -item[1])[:3]
        told = ", ".join(f"{name} {value / total:.0%}" for name, value in parts)
        rows.append([one.run.id, f"{one.measured_s:.4g} s", f"{total:.4g} s", _percent(one.error, signed=True), told])
    yield from table(("run", "measured", "predicted", "error", "largest parts"), rows)


def _refused(validation: Validation) -> Iterator[str]:
    """Every run that was published and that a rule would not let anybody plan."""
    rows = []
    for one in validation.scored:
        for rule, (first, *others) in one.prediction.rules_broken.items():
            more = f", and {len(others)} more" if others else ""
            rows.append([one.run.id, rule, first + more])
    runs, of = len({row[0] for row in rows}), len(validation.scored)
    yield from (f"{runs} of {of} ({runs / of:.1%}):", "")
    yield from table(("run", "rule", "what it says"), rows)


def _skipped(validation: Validation) -> Iterator[str]:
    kinds: dict[str, int] = {}
    for reason, ids in validation.skipped.items():
        kind = (
            "incomplete: the source does not say all that a prediction needs"
            if reason.startswith("incomplete")
            else reason
        )
        kinds[kind] = kinds.get(kind, 0) + len(ids)
    yield from table(("reason", "rows"), [[reason, str(number)] for reason, number in kinds.items()])
    yield from ("", "`apss-cp validate` names them.")


if __name__ == "__main__":
    main()
