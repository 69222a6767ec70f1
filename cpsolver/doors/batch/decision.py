"""A comparison for people, as a decision table, and for machines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cpsolver.doors.batch.compare import Answer, Comparison, Option, size_name
from cpsolver.doors.batch.front import winner_line
from cpsolver.doors.report.document import versions
from cpsolver.doors.report.goals import chance, dollars
from cpsolver.doors.report.outlook import UNKNOWN, MeanRange, days_text, total_dollars
from cpsolver.inputs.language import later, say
from cpsolver.inputs.text import plural, signed_percent
from cpsolver.problem.strategy_file import strategy_to_dict

_HEADS = ("GPUs", later("$ an hour"), later("days"), later("dollars"), later("in time"), later("even at"))
_OTHER_MODELS = later(
    "Not the same training: {trained}. Days and dollars of different models do not say which to choose."
)


def comparison_report(found: Comparison) -> RenderableType:
    """The decision table, what it says, and why options have no plan."""
    return Group(Text(comparison_title(found), style="bold"), "", _table(found), "", *verdict(found), *_below(found))


def comparison_title(found: Comparison) -> str:
    """What is compared, and for which training."""
    problem = found.options[0].answer.problem
    deadline = problem.spec.deadline
    within = say(", within {days:g} days", days=deadline.days) if deadline else ""
    return say(
        "{options}: {model}, {tokens:.4g} tokens{within}",
        options=plural(len(found.options), "option"),
        model=say(", ").join(_models(found)),
        tokens=problem.spec.tokens,
        within=within,
    )


def _models(found: Comparison) -> tuple[str, ...]:
    """The models that the options train, each once."""
    return tuple(dict.fromkeys(option.answer.problem.model.name for option in found.options))


def _table(found: Comparison) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True, header_style="bold")
    table.add_column(say("option"), ratio=1, overflow="fold")
    for name in _HEADS:
        table.add_column(say(name), justify="right", no_wrap=True)
    for place, option in enumerate(found.options):
        answer, even = option.answer, option.break_even
        style = "green" if place == found.winner else None
        table.add_row(Text(answer.name), *_cells(answer), "–" if even is None else dollars(even), style=style)
        for other in option.resized:
            table.add_row(Text(f"  {size_name(other.name)}", style="dim"), *_cells(other, answer), "")
    return table


def _cells(answer: Answer, against: Answer | None = None) -> list[str]:
    """The figures of a best plan (`none`: proven that there is none, `?`: none found in time).

    Below days and dollars stands their interval, or the change `against` another answer.
    """
    plan, outlook, hourly = answer.plan, answer.outlook, answer.dollars_per_hour
    if plan is None:
        return [say("none") if answer.result.status == "infeasible" else "?", *("–" for _ in _HEADS[2:])]
    base = UNKNOWN if against is None else against.outlook
    probability = outlook.deadline_probability
    return [
        f"{plan.strategy.devices:,}",
        "–" if hourly is None else f"${hourly:,.0f}",
        _mean(outlook.days, base.days, days_text),
        _mean(outlook.dollars, base.dollars, total_dollars),
        "–" if probability is None else chance(probability),
    ]


def _mean(found: MeanRange | None, against: MeanRange | None, text: Any) -> str:
    if found is None:
        return "–"
    below = f"{text(found.low)}–{text(found.high)}"
    if against is not None:
        below = signed_percent(found.mean / against.mean - 1)
    return f"{text(found.mean)}\n{below}"


def verdict(found: Comparison) -> Iterator[Text]:
    """Which option wins and why, which are sooner, and what a break-even price means."""
    timed = any(option.answer.outlook.deadline_probability is not None for option in found.options)
    if len(_models(found)) > 1:
        trained = (f"{option.answer.name} {option.answer.problem.model.name}" for option in found.options)
        yield Text(say(_OTHER_MODELS, trained=say(", ").join(trained)), style="yellow")
    if found.winner is not None:
        yield Text(winner_line(found.options[found.winner].answer.name, timed), style="green")
        sooner = [found.options[place].answer.name for place in found.front if place != found.winner]
        if sooner:
            names = say("; ").join(sooner)
            yield Text(say("No other is both sooner and cheaper than: {names}.", names=names))
    elif any(option.answer.outlook.dollars for option in found.options):
        yield Text(say("Winner: none, for no option is as likely as not in time."), style="yellow")
    else:
        told = say("Without prices (cluster.prices, or --on CHIP:N@PRICE) there are no dollars.")
        yield Text(told, style="yellow")
    if any(option.break_even is not None for option in found.options):
        yield Text(say("Even at: dollars per GPU-hour with which it costs as much as the cheapest other one in time."))


def _below(found: Comparison) -> Iterator[Text]:
    told = say("Below days and dollars: the 80 % interval; of a node more or less, the change.")
    yield Text(told, style="dim")
    for option in found.options:
        for reason in option.answer.result.reasons:
            yield Text(say("{name}: {reason}", name=option.answer.name, reason=reason), style="red")


def comparison_records(found: Comparison) -> list[dict[str, Any]]:
    """A row for each option, its figures in plain values by the name of their column."""
    told = comparison_document(found)
    plain = ("name", "status", "model", "num_gpus", "devices", "dollars_per_hour", "step_time_s")
    records = []
    for place, option in enumerate(told["options"]):
        row = {name: option[name] for name in plain}
        for name in ("days", "dollars"):
            ends = option[name] or {}
            row |= {name: ends.get("mean"), f"{name}_low": ends.get("low"), f"{name}_high": ends.get("high")}
        row["deadline_probability"] = option["deadline_probability"]
        row["break_even"] = option["break_even_dollars_per_device_hour"]
        records.append({**row, "winner": place == told["winner"]})
    return records


def comparison_document(found: Comparison) -> dict[str, Any]:
    """What `compare --json` prints."""
    return {
        "status": "compared",
        "tokens": found.options[0].answer.problem.spec.tokens,
        "options": [_option(option) for option in found.options],
        "front": list(found.front),
        "winner": found.winner,
        "versions": versions(),
    }


def _option(option: Option) -> dict[str, Any]:
    return {
        **_answer(option.answer),
        "rival": option.rival,
        "break_even_dollars_per_device_hour": option.break_even,
        "nodes": [_answer(other) for other in option.resized],
    }


def _answer(answer: Answer) -> dict[str, Any]:
    plan = answer.plan
    return {
        "name": answer.name,
        "status": answer.result.status,
        "model": answer.problem.model.name,
        "num_gpus": answer.problem.num_gpus,
        "devices": plan and plan.strategy.devices,
        "dollars_per_hour": answer.dollars_per_hour,
        "step_time_s": plan and plan.evaluation.step_time_s,
        **answer.outlook.document(),
        "strategy": plan and strategy_to_dict(plan.strategy),
        "reasons": list(answer.result.reasons),
    }
