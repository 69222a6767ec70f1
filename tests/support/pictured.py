"""Plans to draw: every schedule, several chip types, recomputation, sizes of microbatches, one stage."""

from __future__ import annotations

from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evaluation.evaluation import Evaluation
from cpsolver.plans.strategy import StageGroup, Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.spec.spec import parse_spec

A800, H800 = StageGroup("a800", (8, 8)), StageGroup("h800", (8, 8))
AGAIN = StageGroup("h800", (8, 8), "block", (3, 3))
SIZES = (1, 2, 3, 4, *(5,) * 9, 4, 3, 2)

PLANS: dict[str, Strategy] = {
    "one stage": Strategy(8, 1, 4, 1, 1, True, True, True, (StageGroup("h800", (32,)),)),
    "1f1b": Strategy(2, 4, 4, 1, 1, True, True, True, (H800, A800)),
    "recomputed": Strategy(2, 4, 4, 1, 1, True, True, True, (AGAIN, A800)),
    "interleaved": Strategy(2, 4, 4, 1, 4, True, True, True, (AGAIN, A800)),
    "zero bubble": Strategy(2, 4, 4, 1, 1, True, True, True, (H800, A800), schedule="zb1p"),
    "breadth first": Strategy(2, 4, 4, 1, 4, True, True, True, (H800, A800), schedule="breadth_first"),
    "sizes": Strategy(2, 4, 4, 4, 1, True, True, True, (AGAIN, A800), micro_batches=SIZES),
}
"""Plans of llama2-7b on 32 devices, by what is special about them."""


def problem_for(strategy: Strategy, sequences: int = 16) -> Problem:
    """A problem that the plan solves with that many microbatches in each pipeline."""
    spec = {
        "model": "llama2-7b",
        "cluster": {"num_gpus": 32, "chips": {"a800": 32, "h800": 32}},
        "training": {"global_batch_size": sequences * strategy.dp * strategy.mbs, "sequence_length": 2048},
    }
    return resolve(parse_spec(spec))


def judged(name: str) -> tuple[Problem, Strategy, Evaluation]:
    """One of PLANS with its problem and its evaluation."""
    problem = problem_for(PLANS[name])
    return problem, PLANS[name], evaluate(problem, PLANS[name])
