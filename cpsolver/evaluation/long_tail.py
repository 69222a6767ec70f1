"""What packed windows with more attention than others cost: replicas wait for the one whose windows have most.

The prediction takes every window for the mean one. A replica takes k windows a step (its microbatches times mbs), each
of a kind drawn with its share, and attends for as long as their pairs of tokens take together. Replicas meet once a
step, when gradients are summed: where a step's attention takes A seconds in the mean, it is longer by

    A (E[max of dp sums of k windows] / E[sum of k windows] - 1),   E[max] = sum over x of 1 - F(x)^dp

with F the distribution of the sum, k windows' convolved. That is the mean exactly where windows are drawn independently
and there is no pipeline; with one it is the least, since stages wait for each other's long windows too. Sharded
gradients or parameters have replicas meet at every microbatch: then each waits for the longest of dp windows, k times.
"""

from __future__ import annotations

import numpy as np

from cpsolver.cost.compute import layer_operators
from cpsolver.cost.kinds import layer_kinds
from cpsolver.cost.selection import visible_share
from cpsolver.cost.shard import Candidates, Floats
from cpsolver.evaluation.evaluate import slowest_stage, stage_kinds
from cpsolver.evaluation.evaluation import Evaluation
from cpsolver.plans.folding import folded
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem

_STEPS = 1024
"""A window's pairs are told apart to so many parts of what a full window of one sequence has."""
_CORE = "attention"


def long_tail_s(problem: Problem, strategy: Strategy, evaluation: Evaluation) -> float | None:
    """Seconds that a step takes longer in the mean than predicted; None where sequences are not packed, or where chip
    types or microbatches differ."""
    plain = len(set(strategy.stage_chips)) == 1 and not strategy.dynamic
    if not problem.spec.training.packs or not plain:
        return None
    rounds = strategy.microbatches(problem.batch)
    attention = rounds * _attention_s(problem, strategy, evaluation)
    each_round = strategy.distributed_optimizer and strategy.sharded != "optimizer"
    windows = strategy.mbs * (1 if each_round else rounds)
    return attention * (slowest_of(pairs_of_windows(problem), windows, strategy.dp) - 1)


def _attention_s(problem: Problem, strategy: Strategy, evaluation: Evaluation) -> float:
    """Seconds of attention's core on the slowest stage, both passes of a microbatch."""
    stage = slowest_stage(problem, strategy, evaluation.stages, strategy.microbatches(problem.batch))
    row = Candidates.one(strategy.of(strategy.stage_meshes[stage]), problem.batch)
    chip = problem.supply(strategy.stage_chips[stage]).chip
    counts = stage_kinds(problem, folded(strategy))[:, stage] / (2 if strategy.both_ways else 1)
    seconds = 0.0
    for kind, count in zip(layer_kinds(problem.model), counts.tolist(), strict=True):
        parts = layer_operators(problem, chip, row.shard, kind)
        seconds += count * sum(float(np.sum(each.passes)) for each in parts if each.name == _CORE)
    return seconds


def pairs_of_windows(problem: Problem) -> list[tuple[float, float]]:
    """For each kind of window its share, and what layers compute in it of a full window's pairs in the mean."""
    model, causal, found = problem.model, problem.stack.causal_fraction, []
    kinds = [kind for kind in layer_kinds(model) if kind.attends]
    for share, held in problem.windows.kinds:
        pairs = sum(
            count * (tokens / problem.sequence) ** 2 * visible_share(model, kind, tokens, causal)
            for kind in kinds
            for tokens, count in held
        )
        found.append((share, pairs / (len(kinds) * causal)))
    return found


def slowest_of(kinds: list[tuple[float, float]], windows: int, replicas: int) -> float:
    """The expected largest of so many replicas' sums over so many windows each, relative to the expected sum.

    `kinds`: share and size, 0 to 1, of each kind of window. Sizes are put on a grid without changing their mean.
    """
    mean = windows * sum(share * size for share, size in kinds)
    if replicas == 1 or not mean:
        return 1.0
    chances = np.zeros(_STEPS + 2)
    for share, size in kinds:
        low, over = int(size * _STEPS), size * _STEPS - int(size * _STEPS)
        chances[low] += share * (1 - over)
        chances[low + 1] += share * over
    below = np.cumsum(_summed(chances, windows))
    return float(np.sum(1 - np.clip(below, 0.0, 1.0) ** replicas)) / _STEPS / mean


def _summed(chances: Floats, times: int) -> Floats:
    """The distribution of the sum of so many independent draws, each with these chances of 0, 1, 2, ..."""
    length = times * (len(chances) - 1) + 1
    return np.asarray(np.fft.irfft(np.fft.rfft(chances, length) ** times, length))
