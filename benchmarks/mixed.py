"""Writes docs/mixed-runs.md: the runs on several chip types predicted and scored, source by source. Takes a second.

python -m benchmarks.mixed
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from cpsolver.evidence.runs.ranking import kendall_tau, regret
from cpsolver.evidence.runs.score import Scored, time_score
from cpsolver.evidence.runs.table import MIXED, read_runs
from cpsolver.evidence.runs.validation import Validation, predict, validate
from cpsolver.inputs.text import percent

OUTPUT = Path(__file__).parents[1] / "docs" / "mixed-runs.md"
PROSE = Path(__file__).parent / "mixed_prose.md"
"""What is said around the tables, by hand: what comes before them, and after a line `---` what comes behind."""


def main() -> None:
    """Predict, score, write."""
    found = read_runs(MIXED)
    OUTPUT.write_text(document(validate(found.runs, predict, troubles=found.troubles)), encoding="utf-8")
    print(f"wrote {OUTPUT.name}")


def document(validation: Validation) -> str:
    """The page."""
    before, after = PROSE.read_text(encoding="utf-8").split("\n---\n")
    rows, skipped = validation.scored, sum(map(len, validation.skipped.values()))
    lines = [before.strip(), "", f"{len(rows)} of {len(rows) + skipped} rows are predicted.", ""]
    lines += [*_by_source(rows), "", "## Row by row", "", *_by_row(rows), "", after.strip()]
    return "\n".join(lines) + "\n"


def _by_source(rows: Sequence[Scored]) -> Iterator[str]:
    yield "| source | rows | off | median | bias | inside the 80 % interval | Kendall tau | picked is slower by |"
    yield "|---|---|---|---|---|---|---|---|"
    sources = list(dict.fromkeys(one.run.source for one in rows))
    for name in [*sources, "all"]:
        own = [one for one in rows if name in ("all", one.run.source)]
        score = time_score(own)
        assert score is not None
        errors = f"{percent(score.mean)} | {percent(score.median)} | {score.bias * 100:+.1f} %"
        inside = sum(one.inside for one in own)
        yield f"| {name} | {score.runs} | {errors} | {inside} of {score.runs} | {_order(own, name == 'all')} |"


def _order(own: Sequence[Scored], several: bool) -> str:
    """Rank agreement of step times, and how much slower the one predicted fastest was."""
    if several:
        return " | "
    measured, predicted = [one.measured_s for one in own], [one.prediction.step_time_s for one in own]
    tau = kendall_tau(measured, predicted)
    return f"{'-' if tau is None else format(tau, '.2f')} | {percent(regret(measured, predicted))}"


def _by_row(rows: Sequence[Scored]) -> Iterator[str]:
    yield "| row | chips | tp, pp, dp, micro batch | measured | predicted | 80 % interval | off | mostly |"
    yield "|---|---|---|---|---|---|---|---|"
    for one in rows:
        run, told = one.run, one.prediction
        layout = f"{run.tp}, {run.pp}, {run.dp}, {run.mbs}"
        times = f"{one.measured_s:.2f} s | {told.step_time_s:.2f} s | {told.low_s:.2f} to {told.high_s:.2f} s"
        largest = max(told.breakdown_s, key=lambda part: told.breakdown_s[part])
        share = told.breakdown_s[largest] / told.step_time_s
        mostly = f"{largest.replace('_', ' ')} {share * 100:.0f} %"
        yield f"| {run.id} | {run.chip.replace(',', ', ')} | {layout} | {times} | {one.error * 100:+.0f} % | {mostly} |"
    yield ""
    worst = max(rows, key=lambda one: one.log_error)
    others = fmean(abs(one.error) for one in rows if one is not worst)
    yield f"Furthest off: {worst.run.id}. Without it the others are off by {percent(others)} on average."


if __name__ == "__main__":
    main()
