"""Brute force: every strategy of a tiny problem, judged by rules and cost model; knows nothing of the solver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, permutations, product

from cpsolver.decisions import pinned_for
from cpsolver.evaluate import evaluate
from cpsolver.problem import Problem
from cpsolver.rules import RULES
from cpsolver.strategy import StageGroup, Strategy

SPLIT_RULES = ("layers", "layer_split", "recompute", "memory", "pin")  # these look at layers and recomputation


def legal(problem: Problem, s: Strategy, leave_out: tuple[str, ...] = ()) -> bool:
    return not any(True for name, rule in RULES.items() if name not in leave_out for _ in rule(problem, s))


def compositions(total: int, parts: int) -> list[tuple[int, ...]]:
    return [way for way in product(range(1, total + 1), repeat=parts) if sum(way) == total]


def rows(problem: Problem) -> Iterator[Strategy]:
    gpus, batch, layers = problem.num_gpus, problem.batch, problem.model.layers
    degrees = product(range(1, gpus + 1), range(1, layers + 1), range(1, gpus + 1), range(1, batch + 1))
    for tp, pp, dp, mbs in (d for d in degrees if d[0] * d[1] * d[2] == gpus and batch % (d[2] * d[3]) == 0):
        for vpp, used in product(range(1, layers // pp + 1), range(1, min(pp, len(problem.supplies)) + 1)):
            ways = product(permutations(problem.chip_names, used), compositions(pp, used), *[(False, True)] * 3)
            for order, counts, *flags in ways if layers % vpp == 0 else ():
                chips = [chip for chip, count in zip(order, counts, strict=True) for _ in range(count)]
                yield Strategy(tp, pp, dp, mbs, vpp, *flags, tuple(StageGroup(chip, (vpp,)) for chip in chips))


def splits(problem: Problem, row: Strategy) -> Iterator[Strategy]:
    """Every split of a row's layers, with every recomputation that is not pinned away."""
    search, chips, chunks = problem.spec.search, row.stage_chips, problem.model.layers // row.vpp
    sizes = {*range(1, chunks - row.pp + 2), *(pinned_for(search.pin.recompute_num_layers, chips[0]) or ())} - {0}
    options = [("none", 0), ("selective", 0), *product(("block", "uniform"), sorted(sizes))]
    keys = list(range(row.pp)) if search.recompute_scope == "stage" else [chips.index(chip) for chip in chips]
    wanted = {key: pinned_for(search.pin.recompute, chips[key]) for key in keys}
    left = [[o for o in options if o[0] in (wanted[key] or o)] for key in wanted]
    for split, chosen in product(compositions(chunks, row.pp), product(*left)):
        told = dict(zip(wanted, chosen, strict=True))
        stages = zip(chips, split, (told[key] for key in keys), strict=True)
        yield replace(row, groups=tuple(StageGroup(c, (row.vpp * n,), kind, (a,)) for c, n, (kind, a) in stages))


def strategies(problem: Problem) -> Iterator[Strategy]:
    return (s for row in rows(problem) if legal(problem, row, SPLIT_RULES) for s in splits(problem, row))


def brute_force(problem: Problem) -> dict[tuple[object, ...], float]:
    """The best step time of every legal plan key."""
    best: dict[tuple[object, ...], float] = {}
    for s in (s for s in strategies(problem) if legal(problem, s)):
        best[s.key()] = min(evaluate(problem, s).step_time_s, best.get(s.key(), float("inf")))
    return best


def small_enough(problem: Problem, most: int) -> bool:
    """Whether brute force has at most that many strategies to judge."""
    return sum(1 for _ in islice(strategies(problem), most + 1)) <= most
