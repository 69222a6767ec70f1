"""A step's time in one bar, and how full the fullest device of each chip type is in another."""

from __future__ import annotations

from collections.abc import Mapping

from rich.cells import cell_len
from rich.text import Text

from cpsolver.doors.report.columns import ShownPlan
from cpsolver.doors.report.compact_table import DOUBTFUL, GOOD, WRONG
from cpsolver.doors.report.goals import chance
from cpsolver.evaluation.evaluation import Evaluation
from cpsolver.inputs.language import later, say
from cpsolver.inputs.text import bar
from cpsolver.problem.problem import Problem
from hw_specs.units import bytes_to_gib

_PARTS: Mapping[str, tuple[tuple[str, str], tuple[str, ...]]] = {
    later("compute"): (("█", "#"), ("compute", "optimizer")),
    later("recompute"): (("▓", "%"), ("recompute",)),
    later("transfers"): (("▒", "="), ("tensor_parallel", "sharding", "pipeline_p2p", "data_parallel")),
    later("idle"): (("░", "."), ("bubble",)),
}
"""What a newcomer tells apart: its name, its signs in UTF-8 and elsewhere, and the parts of a step that it holds."""
_SHOWN = 0.005
"""A smaller share of a step would be shown as 0 %."""
_LEAST_BAR, _WIDE_BAR, _MOST_BAR = 6, 20, 40


def shares(evaluation: Evaluation) -> dict[str, float]:
    """Each of them as a share of the step."""
    return {
        name: sum(evaluation.breakdown_s[part] for part in parts) / evaluation.step_time_s
        for name, (_, parts) in _PARTS.items()
    }


def time_line(evaluation: Evaluation, width: int, utf8: bool) -> Text:
    """A bar of those that are no rounding, then what its signs mean."""
    shown = {name: share for name, share in shares(evaluation).items() if share >= _SHOWN}
    signs = {name: _PARTS[name][0][not utf8] for name in shown}
    said = [f"{signs[name]} {say(name)} {share * 100:.0f} %" for name, share in shown.items()]
    keys = next(
        (keys for keys in ("  ".join(said), " ".join(said)) if cell_len(keys) + _WIDE_BAR < width), " ".join(said)
    )
    room = min(_MOST_BAR, width - cell_len(keys) - 2)
    if room < _LEAST_BAR:
        return Text(keys)
    ends, at = [], 0.0
    for share in shown.values():
        at += share / sum(shown.values())
        ends.append(round(at * room))
    starts = [0, *ends]
    drawn = "".join(signs[name] * (end - start) for name, start, end in zip(shown, starts, ends, strict=False))
    return Text.assemble((drawn, "cyan"), f"  {keys}")


def memory_lines(problem: Problem, plan: ShownPlan, width: int, utf8: bool, risk: float) -> tuple[Text, ...]:
    """The fullest device of each chip type, the fullest of all first; yellow from a chance of `risk` on of running out
    of memory, red where it does not fit.
    """
    used = plan.evaluation.memory_bytes_by_chip
    rooms = {name: problem.capacity_bytes(problem.supply(name).chip) for name in used}
    order = sorted(used, key=lambda name: -used[name] / rooms[name])
    said = {}
    for name in order:
        gib = say(
            "{used:.0f} of {rooms:.0f} GiB usable", used=bytes_to_gib(used[name]), rooms=bytes_to_gib(rooms[name])
        )
        said[name] = say("{gib} on {name}", gib=gib, name=name) if len(used) > 1 else gib
    said[order[0]] += say(", {out_of_memory} likely to run out", out_of_memory=chance(plan.out_of_memory))
    room = min(_MOST_BAR, width - max(map(cell_len, said.values())) - 2)
    lines = []
    for name, text in said.items():
        share = used[name] / rooms[name]
        doubtful = name == order[0] and plan.out_of_memory >= risk
        colour = WRONG if share > 1 else DOUBTFUL if doubtful else GOOD
        if room < _LEAST_BAR:
            lines.append(Text(text, style=colour))
            continue
        filled = bar(share, room, "utf-8" if utf8 else "ascii").ljust(room, "·" if utf8 else ".")
        lines.append(Text.assemble((filled, colour), f"  {text}"))
    return tuple(lines)
