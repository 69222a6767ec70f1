"""What is kept of a cell: its columns, with their meaning, and how an answer of the search becomes a row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cpsolver.doors.batch.axes import text_of
from cpsolver.doors.batch.cases import Case, product_version
from cpsolver.plans.dimensions import ALWAYS_SHOWN, DEGREES
from cpsolver.plans.strategy import SHARDED

Row = dict[str, Any]
"""A cell's values by column; JSON in those of that kind, None for what is not known or does not apply."""


@dataclass(frozen=True)
class Column:
    """A column of the database, the CSV and the Parquet file: `json` columns hold a JSON text."""

    name: str
    kind: Literal["text", "int", "real", "json"]
    meaning: str


COLUMNS = (
    Column("key", "text", "digest of the spec with all names looked up, and of the version"),
    Column("labels", "json", "the axes' labels, of the sweep that solved it"),
    Column("model", "text", "name of the model"),
    Column("chips", "text", "chip types and the most devices of each; -1: no limit"),
    Column("num_gpus", "int", "devices that the spec asks for"),
    Column("gpus_per_node", "int", "devices in a node"),
    Column("global_batch_size", "int", "sequences in a step"),
    Column("sequence_length", "int", "tokens in a sequence"),
    Column("stack", "text", "software-stack profile"),
    Column("objective", "text", "throughput, cost or fewest_chips"),
    Column("status", "text", "optimal, feasible, infeasible, unknown or error"),
    Column("error", "text", "what went wrong, for status error"),
    Column("reasons", "json", "why there is no plan, for status infeasible"),
    Column("seconds", "real", "seconds that it took"),
    Column("cpu_seconds", "real", "CPU seconds that it took"),
    Column("time_limit_s", "real", "the time limit that it had; empty: none"),
    Column("devices", "int", "devices that the best plan uses"),
    Column("step_time_s", "real", "predicted step time, seconds"),
    Column("step_time_low_s", "real", "lower end of its 80 % interval"),
    Column("step_time_high_s", "real", "upper end of its 80 % interval"),
    Column("tokens_per_s", "real", "tokens a second"),
    Column("tokens_per_s_per_gpu", "real", "tokens a second and device"),
    Column("mfu", "real", "model FLOPs utilisation, 0 to 1"),
    Column("dollars_per_million_tokens", "real", "dollars; empty without prices"),
    Column("dollars_per_hour", "real", "dollars an hour of the devices in use"),
    Column("memory_share", "real", "fullest device's memory over what a plan may fill, 0 to 1"),
    Column("strategy", "text", "the best plan in one line"),
    Column("plans", "json", "the plans, as in `solve --json`"),
    Column("proof", "json", "the proof, as in `solve --json`"),
    Column("version", "text", "product version and digest of the cost model's code"),
)
"""In the order of the files. The key figures are those of the best plan."""

EFFORT = ("seconds", "cpu_seconds", "proof", "time_limit_s", "reasons")
"""Columns that depend on how the answer was found: times, and reasons, whose helpful changes are looked for as long as
a time budget lasts. All others are the same whenever and wherever a cell is proven.
"""


def new_row(case: Case) -> Row:
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
    cluster, training = ({} if not isinstance(data.get(name), Mapping) else data[name] for name in _SECTIONS)
    sizes = {"num_gpus": cluster, "gpus_per_node": cluster, "global_batch_size": training, "sequence_length": training}
    return {
        "model": model if isinstance(model, str) else None,
        "chips": text_of(cluster["chips"]) if "chips" in cluster else None,
        "stack": stack if isinstance(stack, str) else None,
        **{name: part[name] for name, part in sizes.items() if type(part.get(name)) is int and part[name] < 2**63},
    }


_SECTIONS = ("cluster", "training")


def figures(document: Mapping[str, Any]) -> Row:
    """The columns that follow from the answer, a document of `solve --json`."""
    found: Row = {
        "status": document["status"],
        "reasons": json.dumps(document["reasons"]),
        "plans": json.dumps(document["plans"]),
        "proof": json.dumps(document["proof"]),
    }
    if not document["plans"]:
        return found
    best = document["plans"][0]
    memory, capacity, cost = best["memory_gib"], best["capacity_gib"], best["dollars_per_million_tokens"]
    speed = best["throughput_tokens_per_s"]
    names = ("devices", "step_time_s", "step_time_low_s", "step_time_high_s", "mfu", "dollars_per_million_tokens")
    return found | {
        **{name: best[name] for name in names},
        "tokens_per_s": speed,
        "tokens_per_s_per_gpu": best["throughput_tokens_per_s_per_gpu"],
        "dollars_per_hour": None if cost is None else cost * speed * 3600 / 1e6,
        "memory_share": max(memory[name] / capacity[name] for name in memory),
        "strategy": strategy_text(best["strategy"]),
    }


def per_dollar(row: Row) -> float | None:
    """Tokens a second for each dollar an hour; None without prices or without a plan."""
    dollars = row["dollars_per_hour"]
    return None if not dollars else float(row["tokens_per_s"]) / float(dollars)


def reasons_text(row: Row) -> str | None:
    """Why there is no plan, a line a reason; None where nothing is said."""
    return "\n".join(json.loads(row["reasons"])) or None if row["reasons"] else None


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
    return f"{group['chip']} {told} layers" + ("" if recompute == "none" else f" {recompute}")
