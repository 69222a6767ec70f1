"""What is kept of a cell: its columns, with their meaning, and how an answer of the search becomes a row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cpsolver.doors.batch.axes import text_of
from cpsolver.doors.batch.cases import SweepCase, product_version
from cpsolver.doors.report.columns import KEPT, SweepColumn
from cpsolver.inputs.language import ENGLISH, LANGUAGES, in_language, say, spoken
from cpsolver.plans.dimensions import ALWAYS_SHOWN, DEGREES
from cpsolver.plans.strategy import SHARDED

Row = dict[str, Any]
"""A cell's values by column; JSON in those of that kind, None for what is not known or does not apply."""


COLUMNS = (
    SweepColumn("key", "text", "digest of the spec with all names looked up, and of the version"),
    SweepColumn("labels", "json", "the axes' labels, of the sweep that solved it"),
    SweepColumn("model", "text", "name of the model"),
    SweepColumn("chips", "text", "chip types and the most devices of each; -1: no limit"),
    SweepColumn("num_gpus", "int", "devices that the spec asks for"),
    SweepColumn("gpus_per_node", "int", "devices in a node"),
    SweepColumn("global_batch_size", "int", "sequences in a step"),
    SweepColumn("sequence_length", "int", "tokens in a sequence"),
    SweepColumn("stack", "text", "software-stack profile"),
    SweepColumn("objective", "text", "throughput, cost or fewest_chips"),
    SweepColumn("status", "text", "optimal, feasible, infeasible, unknown or error"),
    SweepColumn("error", "text", "what went wrong, for status error"),
    SweepColumn("reasons", "json", "why there is no plan, for status infeasible"),
    SweepColumn("reasons_translated", "json", "these in the other languages, by language, for pages"),
    SweepColumn("seconds", "real", "seconds that it took"),
    SweepColumn("cpu_seconds", "real", "CPU seconds that it took"),
    SweepColumn("time_limit_s", "real", "the time limit that it had; empty: none"),
    SweepColumn("devices", "int", "devices that the best plan uses"),
    *KEPT,
    SweepColumn("strategy", "text", "the best plan in one line"),
    SweepColumn("plans", "json", "the plans, as in `solve --json`"),
    SweepColumn("proof", "json", "the proof, as in `solve --json`"),
    SweepColumn("version", "text", "product version and digest of the cost model's code"),
)
"""In the order of the files. The key figures, those of the report's table among them, are the best plan's."""

EFFORT = ("seconds", "cpu_seconds", "proof", "time_limit_s", "reasons", "reasons_translated")
"""Columns that depend on how the answer was found: times, and reasons, whose helpful changes are looked for as long as
a time budget lasts. All others are the same whenever and wherever a cell is proven.
"""


def new_row(case: SweepCase) -> Row:
    """A row with what a cell asks for; an unreadable spec is told as far as it goes."""
    row: Row = dict.fromkeys(column.name for column in COLUMNS)
    row |= {"key": case.key, "labels": json.dumps(dict(case.cell.labels)), "version": product_version()}
    if case.problem is None:
        return row | _as_written(case.data) | {"status": "error", "error": case.error}
    problem, spec = case.problem, case.problem.spec
    chips = {name: -1 if chip.max is None else chip.max for name, chip in spec.cluster.chips.items()}
    return row | {
        "model": problem.model.name,
        "chips": text_of(chips),
        "num_gpus": problem.num_gpus,
        "gpus_per_node": problem.node,
        "global_batch_size": problem.batch,
        "sequence_length": problem.sequence,
        "stack": problem.stack.name,
        "objective": spec.search.objective,
        "time_limit_s": spec.search.time_limit_s,
    }


def _as_written(data: Mapping[str, Any]) -> Row:
    """What can be told of a spec that is wrong: names as text, sizes where they are whole numbers."""
    model, stack = data.get("model"), data.get("stack")
    sections = (data.get(name) for name in ("cluster", "training"))
    cluster, training = (section if isinstance(section, Mapping) else {} for section in sections)
    sizes = {"num_gpus": cluster, "gpus_per_node": cluster, "global_batch_size": training, "sequence_length": training}
    return {
        "model": model if isinstance(model, str) else None,
        "chips": text_of(cluster["chips"]) if "chips" in cluster else None,
        "stack": stack if isinstance(stack, str) else None,
        **{name: part[name] for name, part in sizes.items() if type(part.get(name)) is int and part[name] < 2**63},
    }


def figures(document: Mapping[str, Any], reasons: Sequence[str] = ()) -> Row:
    """The columns that follow from the answer, that of `solve --json`; `reasons`: its own, `for_every_language`."""
    told = {language: in_language(language, reasons) for language in LANGUAGES if language != ENGLISH}
    found: Row = {
        "status": document["status"],
        "reasons": json.dumps(document["reasons"]),
        "reasons_translated": json.dumps(told, ensure_ascii=False) if reasons else None,
        "plans": json.dumps(document["plans"]),
        "proof": json.dumps(document["proof"]),
    }
    if not document["plans"]:
        return found
    best = document["plans"][0]
    kept = {column.name: column.value(best) for column in KEPT}
    return found | kept | {"devices": best["devices"], "strategy": strategy_text(best["strategy"])}


def per_dollar(row: Row) -> float | None:
    """Tokens a second for each dollar an hour; None without prices or without a plan."""
    dollars = row["dollars_per_hour"]
    return None if not dollars else float(row["tokens_per_s"]) / float(dollars)


def reasons_text(row: Row, language: str = ENGLISH) -> str | None:
    """Why there is no plan, a line a reason; None where nothing is said. Rows of older versions have it in English."""
    told = json.loads(row["reasons_translated"] or "{}").get(language) or json.loads(row["reasons"] or "[]")
    return "\n".join(told) or None


def plan_text(row: Row) -> str | None:
    """The best plan in one line, in the language spoken; the row itself has it in English."""
    if spoken() == ENGLISH or not row["strategy"] or not row["plans"]:
        return None if row["strategy"] is None else str(row["strategy"])
    return strategy_text(json.loads(row["plans"])[0]["strategy"])


def strategy_text(strategy: Mapping[str, Any]) -> str:
    """A plan's degrees and stages in one line: `tp 8 pp 2 dp 4 mbs 1 vpp 5 sp zero-1, a800 ×2: 40,40`.

    `strategy` is a plan's document (`strategy` in `solve --json`). Degrees of 1 other than tp, pp, dp are left out.
    """
    parts = [f"{name} {strategy[name]}" for name in ALWAYS_SHOWN]
    parts += [f"{name} {strategy[name]}" for name in DEGREES if name not in ALWAYS_SHOWN and strategy.get(name, 1) != 1]
    if strategy.get("sequence_parallel"):
        parts.append("sp")
    if strategy.get("distributed_optimizer"):
        parts.append(f"zero-{1 + SHARDED.index(strategy.get('sharded', 'optimizer'))}")
    return " ".join(parts) + ", " + "; ".join(_stages(group) for group in strategy["stages"])


def _stages(group: Mapping[str, Any]) -> str:
    layers = group["layers"]
    same = len(set(layers)) == 1
    told = f"{len(layers)} × {layers[0]}" if same else ",".join(map(str, layers))
    recompute = group.get("recompute", "none")
    return say("{chip} {told} layers", chip=group["chip"], told=told) + ("" if recompute == "none" else f" {recompute}")
