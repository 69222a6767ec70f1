"""Writes docs/verify.md: what `solve --verify` looks at, and what it came to on twenty everyday specs.

python -m benchmarks.verify
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import cpsolver
from benchmarks.everyday import SPECS, everyday
from cpsolver import Problem

OUTPUT = Path(__file__).parent.parent / "docs" / "verify.md"
LIMIT_S = 300.0
MORE: dict[str, tuple[str, dict[str, int], int, int]] = {
    "qwen3-32b on 32 h100": ("qwen3-32b", {"h100": 32}, 256, 8192),
    "gpt3-175b on 1,024 a100": ("gpt3-175b", {"a100": 1024}, 1536, 2048),
    "llama3.1-8b on 16 h100, 128k": ("llama3.1-8b", {"h100": 16}, 32, 131_072),
    "llama2-70b on 1,024 h100": ("llama2-70b", {"h100": 1024}, 1024, 4096),
    "qwen2.5-7b on 16 910b": ("qwen2.5-7b", {"910b": 16}, 128, 4096),
    "mixtral-8x22b on 128 h800": ("mixtral-8x22b", {"h800": 128}, 512, 4096),
    "llama2-13b on 32 a800 and 32 h800": ("llama2-13b", {"a800": 32, "h800": 32}, 256, 4096),
    "qwen3-next-80b-a3b on 64 h100": ("qwen3-next-80b-a3b", {"h100": 64}, 256, 4096),
}
"""Title -> model, chips, global batch, sequence: those that `everyday` has not."""
HEAD = f"""# A second opinion

Written by `python -m benchmarks.verify`.

`apss-cp solve SPEC --verify` looks at its own answer once more, another way; in Python, `cpsolver.verify(problem,
result)`. The search solves plans one by one, best bound first. The second opinion

- makes every plan anew whose bound is up to 1 % beyond the K-th best (256 at most), and puts them into **one CP-SAT
  model**: degrees, flags, chips of stages, layers and recomputation are its variables. It is solved without a bound or
  hint of the search, for plans no slower than the answer's first, and has to find that one; solved again without
  the answer's plans (or their layout families), it may hold nothing better than the last of them. Where it takes more
  than two seconds, and a tenth of one for each of its plans, these are solved in models of their own;
- draws 48 candidates from all there are, half of them beside the answer, and solves each by itself: none may be faster
  than its bound, nor better than the answer.

It shares the rows' definition, the cost tables and the bounds that say what is close with the search; not the order of
work, what is remembered between plans, warm starts and limits. `verification` in `--json`: the verdict, how many plans,
variables and constraints, how many candidates, and what was not looked at. `--verify-time` (60 s) is kept to; what it
does not reach is told, never passed over. Not verified: where devices may idle, another objective than throughput over
several chip types, a search that was stopped. On one chip type the model knows what a step takes as chains of passes;
the plan that it finds is run event by event, and it is asked again with the chains that hold that plan up until it has
all of these. Over several chip types it checks that no plan, run event by event, is faster than the answer's first.
Plans after the first are only put in order among those of the answer, which is not checked: the last column of the
table then says *the order after the first plan*. Plans whose chip types have degrees of their own are not in the model.
Exit code 70: the answer is contradicted, which is a bug.

Twenty everyday specs, each with up to {LIMIT_S:g} s; CPU seconds of the search and of the second opinion:

| spec | search | opinion | verdict | plans | variables | constraints | candidates | with a plan | not looked at |
|---|---|---|---|---|---|---|---|---|---|
"""


def problems() -> Iterator[tuple[str, Problem]]:
    """The twenty, with their titles."""
    for title in SPECS:
        yield title, everyday(title)
    for title, (model, chips, batch, sequence) in MORE.items():
        training = {"global_batch_size": batch, "sequence_length": sequence}
        cluster = {"num_gpus": sum(chips.values()), "chips": chips}
        yield title, cpsolver.make_problem({"model": model, "cluster": cluster, "training": training})


def row(title: str, problem: Problem) -> str:
    """The row of a spec."""
    began = time.process_time()
    result = cpsolver.solve(problem)
    searched = time.process_time()
    told = cpsolver.verify(problem, result, time_limit_s=LIMIT_S).verification
    assert told is not None
    cells = [title, f"{searched - began:.1f}", f"{time.process_time() - searched:.1f}", told.verdict]
    counts = (told.plans, told.variables, told.constraints, told.sampled, told.solved)
    cells += [f"{count:,}" for count in counts]
    return f"| {' | '.join([*cells, '; '.join([*told.findings, *told.left_out])])} |"


def main() -> None:
    """Solve them all and write the page."""
    rows = []
    for title, problem in problems():
        rows.append(row(title, problem))
        print(rows[-1], flush=True)
    OUTPUT.write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
