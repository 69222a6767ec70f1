"""The rows that meshes may have: degrees and flags by the sequences of a round and what all meshes of a plan share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cpsolver.cost.shard import Bools, Candidates, Floats, Ints, column_type
from cpsolver.plans.dimensions import ROW
from cpsolver.plans.strategy import Mesh
from cpsolver.problem.problem import Problem
from cpsolver.profiles.judging import Part, allowed_rows
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.filters import FRAME_FILTERS, LAYOUT_FILTERS, VARIANT_FILTERS
from cpsolver.search.space import divisors, schedule_codes

_OF_DEGREES = ("heads", "kv_groups", "feed_forward", "tensor_nodes", "layer_offload", "context_parallel", "batch")
"""Rules on the degrees of one mesh; others on layouts look at all devices."""
_OF_FRAMEWORKS = ("launcher", "stack")
_SHARED = ("round", "flash_attention", "sequence", "states", "exchange", "experts")
"""What all meshes of a plan share, each a column beside those of rows: sequence parallelism where tp is more than 1,
sharded states where there are replicas, how cp exchanges as far as it goes, and whether experts are sharded at all."""
FLAGS = {"sequence_parallel": "sequence", "distributed_optimizer": "states", "cp_gather": "gather"}
"""Flags that a plan has where any of its meshes has them, and the column that says it has: a mesh alone may be too
small for them."""
_PP = 2
"""Stands for the stages of the whole pipeline, of which no mesh knows: only what tied embeddings cost depends on them,
and is least for few."""
_GLANCE = 4
"""Rows that are looked at before all others of a round."""
Columns = dict[str, Ints]


@dataclass(frozen=True)
class Round:
    """Rows that may stand in one plan: `rows` are indices into the table, `microbatches` those of a step."""

    microbatches: int
    rows: Ints


@dataclass(frozen=True)
class Rounds:
    """All rows that meshes may have, with their coefficients on every chip type; `sizes` (rows, degrees): what makes
    meshes equal, the fields of plans.strategy.Mesh."""

    table: Coefficients
    rounds: tuple[Round, ...]
    sizes: Ints


def rounds_of(problem: Problem) -> Rounds:
    """The rows of every round; none where the spec or the launcher leaves none."""
    columns = _with_flags(problem, _degrees(problem))
    rows = _rows(columns)
    keep = _legal(problem, columns)
    codes, rows = np.stack([columns[name][keep] for name in _SHARED]), rows.take(keep)
    first, back = rows.first_of_each((*ROW, "microbatches"))
    rows = rows.take(first)
    _, which = np.unique(codes, axis=1, return_inverse=True)
    order = np.argsort(which.ravel(), kind="stable")
    ends = np.cumsum(np.bincount(which.ravel()))[:-1]
    parts = {(kept := np.unique(back[part])).tobytes(): kept for part in np.split(order, ends) if len(part)}
    rounds = tuple(Round(int(rows.microbatches[part[0]]), part) for part in parts.values())
    sizes = np.stack([getattr(rows, name) for name in Mesh.__dataclass_fields__], axis=1)
    table = Coefficients(problem, rows)
    if problem.spec.search.diverse:
        rounds = _undominated(table, rounds, sizes, problem.model.embeds_at_both_ends)
    return Rounds(table, rounds, sizes)


def _undominated(
    table: Coefficients, rounds: tuple[Round, ...], sizes: Ints, embeds_at_both_ends: bool
) -> tuple[Round, ...]:
    """The rounds that no other of as many microbatches dominates: with the same degrees on every mesh, and no row
    slower, larger, with fewer ways to recompute or more conditions than its own. Plans of the same degrees are then
    never worse there, and with `search.diverse` one of each family is asked for."""
    parts = np.concatenate([_parts(table), _conditions(table.rows, embeds_at_both_ends)])
    parts = np.ascontiguousarray(parts.T)
    _, degrees = np.unique(sizes, axis=0, return_inverse=True)
    degrees, kept = degrees.ravel(), dict[int, list[Round]]()
    for round_ in sorted(rounds, key=lambda each: -len(each.rows)):
        ordered = replace(round_, rows=round_.rows[np.argsort(degrees[round_.rows])])
        alike = kept.setdefault(round_.microbatches, [])
        if not any(_dominates(parts, degrees, each.rows, ordered.rows) for each in alike):
            alike[:] = [each for each in alike if not _dominates(parts, degrees, ordered.rows, each.rows)]
            alike.append(ordered)
    return tuple(replace(each, rows=np.sort(each.rows)) for alike in kept.values() for each in alike)


def _dominates(parts: Floats, degrees: Ints, better: Ints, worse: Ints) -> bool:
    """Whether the first rows have all degrees of the others, and are no worse in any part; both in order of degrees."""
    if len(better) < len(worse):
        return False
    few = worse[:: max(1, len(worse) // _GLANCE)]  # tells most that do not
    return all(_better_there(parts, degrees, better, some) for some in (few, worse))


def _better_there(parts: Floats, degrees: Ints, better: Ints, worse: Ints) -> bool:
    at = np.minimum(np.searchsorted(degrees[better], degrees[worse]), len(better) - 1)
    if (degrees[better[at]] != degrees[worse]).any():
        return False
    return bool((parts[better[at]] <= parts[worse]).all())


def _conditions(rows: Candidates, embeds_at_both_ends: bool) -> Floats:
    """What rows ask of the other meshes of a plan, (conditions, rows), 1 where they do: the same tp without sequence
    parallelism; where both ends hold the embedding, that one dp divides the other if states are sharded."""
    same_tp = (rows.tp > 1) & ~rows.sequence_parallel
    same_dp = rows.distributed_optimizer & embeds_at_both_ends
    return np.stack([same_tp, same_dp]).astype(np.float64)


def _parts(table: Coefficients) -> Floats:
    """All that a row costs on any chip type, (parts, rows), such that less of every part is never worse: of what is
    sharded see bounds.dominance; of memory all that layers may be stored in."""
    time, memory, rows = table.time, table.memory, np.arange(len(table.rows))
    kept = memory.stored(((), *table.sets), rows)
    sync = time.sync_layer + time.update_layer
    seconds = [
        *(
            getattr(time, name)
            for name in ("layer", "recompute", "embedding", "head", "hop_near", "hop_far", "hop_waited", "chunk")
        ),
        *(sync, sync + time.sync_stage + time.update_stage),
        *(time.sync_first + time.update_first, time.sync_last + time.update_last),
        *np.moveaxis(time.kind_layer, 1, 0),
        *np.moveaxis(time.modules, 1, 0),
    ]
    of_memory = (
        "layer_states",
        "first_states",
        "first_stored",
        "last_states",
        "full",
        "checkpoint",
        "buffer",
        "last_buffer",
        "last_chunk",
    )
    bytes_needed = [
        np.stack([getattr(memory, name) for name in of_memory]),
        memory.kind_states + memory.layer_states,
        *(np.broadcast_to(part, kept.most.shape) for part in (kept.most, kept.mean, kept.beyond)),
        memory.replayed(table.sets, rows),
    ]
    return np.concatenate([np.concatenate(seconds), *bytes_needed])


def _times(columns: Columns, name: str, values: Iterable[int]) -> Columns:
    """Every row with every value of one more column."""
    chosen = np.array(list(values), dtype=np.int64)
    count = len(next(iter(columns.values())))
    repeated = {key: np.repeat(column, len(chosen)) for key, column in columns.items()}
    return repeated | {name: np.tile(chosen, count)}


def _where(columns: Columns, mask: Bools) -> Columns:
    return {name: column[mask] for name, column in columns.items()}


def _degrees(problem: Problem) -> Columns:
    """Degrees of one mesh that the model, the pins and the largest chip type allow."""
    model, most = problem.model, max(supply.limit for supply in problem.supplies)
    allows, moe = problem.spec.search.allows, model.moe

    def left(name: str, values: Iterable[int]) -> list[int]:
        return [value for value in values if allows(name, value)]

    columns = {"tp": np.array(left("tp", (n for n in divisors(model.heads) if n <= most)), dtype=np.int64)}
    for name, values in (("cp", divisors(problem.sequence)), ("dp", divisors(problem.batch))):
        columns = _times(columns, name, left(name, (n for n in values if n <= most)))
        columns = _where(columns, columns["tp"] * columns["cp"] * columns.get("dp", np.int64(1)) <= most)
    columns = _where(columns, _allowed(problem, columns, _OF_DEGREES))
    columns = _where(columns, _runs(problem, _rows(columns), ("layout", "mixture")))
    columns = _times(columns, "ep", left("ep", divisors(moe.experts) if moe else [1]))
    columns = _times(columns, "etp", left("etp", divisors(model.heads) if moe else [1]))
    return _where(columns, VARIANT_FILTERS["experts"](problem, _rows(columns)))


def _rows(columns: Columns) -> Candidates:
    """Columns as rows, those that are not there yet at their least."""
    count = len(columns["tp"])
    sizes = dict.fromkeys(("mbs", "vpp", "microbatches"), np.ones(count))
    flags = dict.fromkeys(("sequence_parallel", "distributed_optimizer", "flash_attention"), np.zeros(count))
    given: dict[str, Any] = {"pp": np.full(count, _PP), **sizes, **flags, **columns}
    names = (name for name in given if name in Candidates.__dataclass_fields__)
    typed: dict[str, Any] = {name: np.asarray(given[name]).astype(column_type(name)) for name in names}
    return Candidates(**typed)


def _allowed(problem: Problem, columns: Columns, names: Iterable[str]) -> Bools:
    rows, allowed = _rows(columns), np.ones(len(columns["tp"]), dtype=np.bool_)
    for name in names:
        allowed &= LAYOUT_FILTERS[name](problem, rows)
    return allowed


def _with_flags(problem: Problem, columns: Columns) -> Columns:
    """With all rounds and flags: every column of a row, and those of _SHARED."""
    columns["experts"] = (columns["ep"] > 1).astype(np.int64)
    columns = _times(columns, "round", divisors(problem.batch))
    columns = _where(columns, columns["round"] % columns["dp"] == 0)
    for flag in ("flash_attention", "sequence", "states"):
        columns = _times(columns, flag, (0, 1))
    rings = sorted({n for cp in set(columns["cp"].tolist()) for n in divisors(cp)} | {1})
    ways = np.array([(1, 1), *((n, 0) for n in rings)])
    columns = _times(columns, "exchange", range(len(ways)))
    columns["ulysses"] = np.minimum(ways[columns["exchange"], 0], columns["cp"])
    columns["gather"] = ways[columns["exchange"], 1]
    columns["cp_gather"] = columns["gather"] * (columns["cp"] > 1)
    columns = _where(columns, columns["cp"] % columns["ulysses"] == 0)
    columns["sequence_parallel"] = columns["sequence"] * (columns["tp"] > 1)
    columns["distributed_optimizer"] = columns["states"] * (columns["cp"] * columns["dp"] > 1)
    columns["mbs"] = columns["round"] // columns["dp"]
    columns["microbatches"] = problem.batch // columns["round"]
    rows = _rows(columns)
    return columns | {name: np.asarray(getattr(rows, name)) for name in ROW}


def _legal(problem: Problem, columns: Columns) -> Bools:
    """The rows that rules, launcher and stack allow in a plan on several chip types; pins bear on the plan's flags."""
    rows = _rows(columns)
    allowed = FRAME_FILTERS["pin"](problem, rows) & np.isin(rows.schedule, schedule_codes(problem))
    allowed &= VARIANT_FILTERS["pin"](problem, _rows({**columns, **{name: columns[of] for name, of in FLAGS.items()}}))
    for name, allows in VARIANT_FILTERS.items():
        if name not in ("pin", *_OF_FRAMEWORKS):
            allowed = allowed & allows(problem, rows)
    return np.asarray(allowed & _runs(problem, rows, ("layout", "variant", "frame", "mixture")))


def _runs(problem: Problem, rows: Candidates, parts: Iterable[Part]) -> Bools:
    """The rows of which launcher and stack run these parts."""
    allowed = np.ones(len(rows), dtype=np.bool_)
    for part in parts if problem.launcher is not None else ():
        allowed &= allowed_rows(problem.launcher, problem.model, rows, part)
    return allowed
