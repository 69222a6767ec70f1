"""What the records of `tune_simulated` say: regret by policy, coverage, as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any

AFTER = (1, 3, 5, 10)
CLOSE = 0.02
Record = Mapping[str, Any]


def regret(trials: Sequence[Sequence[Any]], best_s: float, count: int) -> float:
    """How much longer than at best a step truly takes with the plan that a policy settles for after so many trials.

    `trials`: (outcome, measured seconds, true seconds, true seconds of the plan that it would settle for then); inf
    while nothing was measured.
    """
    settled = trials[:count][-1][3] if trials else None
    return inf if settled is None else settled / best_s - 1.0


def best_known(records: Iterable[Record]) -> dict[tuple[bool, int], float]:
    """The fastest step known of every cluster: as searched, or of a plan that some policy tried.

    Raises ValueError where a plan was faster than the one proven to be the fastest.
    """
    found: dict[tuple[bool, int], float] = {}
    for record in records:
        key = (record["misfit"], record["seed"])
        tried = min((true for _, _, true, _ in record["trials"] if true is not None), default=inf)
        if not record["misfit"] and tried < record["best_s"] * (1 - 1e-9):
            raise ValueError(f"cluster {record['seed']}: {record['policy']} found {tried} s, less than the proven best")
        found[key] = min(found.get(key, inf), record["best_s"], tried)
    return found


def regrets(records: Sequence[Record], policy: str, count: int, best: Mapping[Any, float]) -> list[float]:
    """Of a policy on every cluster."""
    mine = [record for record in records if record["policy"] == policy]
    return [regret(record["trials"], best[record["misfit"], record["seed"]], count) for record in mine]


def regret_table(records: Sequence[Record]) -> str:
    """Mean, median and 90th percentile by policy and number of trials."""
    best, policies = best_known(records), list(dict.fromkeys(record["policy"] for record in records))
    every = {(policy, n): regrets(records, policy, n, best) for policy in policies for n in AFTER}
    worst = max(value for values in every.values() for value in values if value < inf)
    lines = [
        "| policy | clusters | " + " | ".join(f"after {n}: mean / median / 90th" for n in AFTER) + " |",
        "|---|---|" + "---|" * len(AFTER),
    ]
    for policy in policies:
        cells = []
        for n in AFTER:
            values = every[policy, n]
            nothing = values.count(inf)
            known = sorted(min(value, worst) for value in values)
            told = (
                f"{_percent(statistics.mean(known))} / {_percent(statistics.median(known))} / {_percent(_high(known))}"
            )
            cells.append(told + (f" ({nothing} without)" if nothing else ""))
        lines.append(f"| {policy} | {len(every[policy, 1])} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def share_table(records: Sequence[Record]) -> str:
    """Clusters on which the policy is close to the best, its trials and their cost, as means over clusters."""
    best, policies = best_known(records), list(dict.fromkeys(record["policy"] for record in records))
    lines = [
        f"| policy | {' | '.join(f'within {CLOSE:.0%} after {n}' for n in AFTER)} | trials | out of memory | CPU s |",
        "|---|" + "---|" * len(AFTER) + "---|---|---|",
    ]
    for policy in policies:
        mine = [record for record in records if record["policy"] == policy]
        shares = [_share(value <= CLOSE for value in regrets(records, policy, n, best)) for n in AFTER]
        full = _share(trial[0] == "oom" for record in mine for trial in record["trials"])
        cpu = statistics.mean(record["cpu_s"] for record in mine)
        count = statistics.mean(len(record["trials"]) for record in mine)
        lines.append(f"| {policy} | " + " | ".join(shares) + f" | {count:.1f} | {full} | {cpu:.1f} |")
    return "\n".join(lines)


def task_table(records: Sequence[Record], count: int) -> str:
    """Mean regret by task after so many trials."""
    best, policies = best_known(records), list(dict.fromkeys(record["policy"] for record in records))
    tasks = list(dict.fromkeys(record["task"] for record in records))
    lines = ["| task | " + " | ".join(policies) + " |", "|---|" + "---|" * len(policies)]
    for task in tasks:
        some = [record for record in records if record["task"] == task]
        found = [[value for value in regrets(some, policy, count, best) if value < inf] for policy in policies]
        lines.append(f"| {task} | " + " | ".join(_percent(statistics.mean(v)) if v else "none" for v in found) + " |")
    return "\n".join(lines)


def coverage_lines(records: Sequence[Record], trials: int) -> str:
    """How often the belief's 80 % intervals hold the truth."""
    told = [record["coverage"] for record in records if record["coverage"]]
    if not told:
        return ""

    def share(name: str) -> str:
        inside, every = (sum(each[name][i] for each in told) for i in (0, 1))
        return f"{inside / every:.0%} of {every:,}" if every else "none"

    def middle(name: str) -> str:
        return _percent(statistics.median(each[name] for each in told))

    widths = {name: statistics.median(each[name][2] for each in told) for name in ("times", "times_before")}
    return "\n".join(
        [
            f"Inside their central 80 % interval after {trials} trials:",
            "",
            f"- hidden constants: {share('constants')}; those of which the trials say something: {share('told')}",
            f"- true step times of plans never tried: {share('times')}, intervals {_percent(widths['times'])} wide, "
            f"median error {middle('error')}",
            f"- the same before any trial: {share('times_before')}, intervals {_percent(widths['times_before'])} wide, "
            f"median error {middle('error_before')}",
        ]
    )


def _share(told: Iterable[bool]) -> str:
    values = list(told)
    return f"{sum(values) / len(values):.0%}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _high(values: Sequence[float]) -> float:
    """The 90th percentile of sorted values: nine in ten are no greater."""
    return values[max(0, -(-9 * len(values) // 10) - 1)]
