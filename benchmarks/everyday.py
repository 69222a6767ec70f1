"""Writes docs/recommendations.md: what is recommended for specs of everyday sizes, beside the fastest plans.

python -m benchmarks.everyday
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cpsolver
from cpsolver import Plan, Problem, Result
from cpsolver.evidence.chances import out_of_memory_probability
from cpsolver.evidence.nearest import unmeasured
from cpsolver.plans.dimensions import family_name
from cpsolver.search.result import Recommendation

OUTPUT = Path(__file__).parent.parent / "docs" / "recommendations.md"
TOP = 5
SPECS: dict[str, tuple[str, dict[str, int], int, int, dict[str, Any]]] = {
    "llama3.1-8b on 8 h100": ("llama3.1-8b", {"h100": 8}, 128, 8192, {}),
    "llama2-13b on 64 a100": ("llama2-13b", {"a100": 64}, 512, 4096, {}),
    "llama2-70b on 256 a800": ("llama2-70b", {"a800": 256}, 1024, 4096, {}),
    "llama2-7b on 32 910b": ("llama2-7b", {"910b": 32}, 256, 4096, {"launcher": "mindspeed-llm"}),
    "mixtral-8x7b on 64 h100": ("mixtral-8x7b", {"h100": 64}, 256, 4096, {}),
    "llama3.1-70b on 64 h100": ("llama3.1-70b", {"h100": 64}, 256, 8192, {}),
    "llama3.1-70b on 512 h100": ("llama3.1-70b", {"h100": 512}, 1024, 8192, {}),
    "llama3.1-405b on 1,024 h100": ("llama3.1-405b", {"h100": 1024}, 1024, 8192, {}),
    "qwen3-30b-a3b on 32 h100": ("qwen3-30b-a3b", {"h100": 32}, 512, 4096, {}),
    "deepseek-v3 on 512 b200, fp8": ("deepseek-v3", {"b200": 512}, 4096, 4096, {"precision": "fp8"}),
    "llama2-70b on 128 a800 and 128 h800": ("llama2-70b", {"a800": 128, "h800": 128}, 1024, 4096, {}),
    "qwen2.5-72b on 256 910b": ("qwen2.5-72b", {"910b": 256}, 1024, 4096, {"launcher": "mindspeed-llm"}),
}
"""Title -> model, chips, global batch, sequence, what else the spec says."""
ROLES = {"run_this": "run this", "fastest": "fastest", "safest": "safest", "simplest": "simplest"}
HEAD = """# What to run

Written by `python -m benchmarks.everyday`.

`apss-cp solve` and `plan` name up to four plans (`recommendation` in `--json`: places in `plans`, from 0, or null):

- **fastest**: the best in the objective, proven. `search.diverse` (on) makes the K best plans those of K layout
  families (tp, cp, pp, dp, ep, ZeRO-3), each the best of its own; off, they are mostly near-twins.
- **run this**: the best on average, of the plans whose chance of running out of memory is below `search.risk` (5 %).
  Each thing that no published run has had (cp 2 at 4,096 tokens, say) costs it what the error of an unmeasured layout
  costs on average, {loss:.1%} of the step; what all plans have alike, such as the chips, costs nothing. Where memory
  runs out after all, the safest plan would have to do.
- **safest**: the best of those with less than a fifth of that risk that stay where runs were measured.
- **simplest**: the best of those below the risk that leave every optional decision but recomputation at its default (no
  interleaving, no context parallelism), with layers split evenly.

Each is the best there is within its limits: a search of its own, with a margin of memory that keeps the chance below
the risk, and without degrees that no run has had. The safest and the simplest are named where they are no more than
25 % worse than the fastest. A plan that is named and not among the K best follows them, with `added: true`.
Where the time limit ended the search, no more than safer plans of the fastest families are looked for, in a twentieth
of the limit more (1 s at least). `search.risk: 1` looks for none of this. What the chances rest on:
[chances.md](chances.md).

{specs} specs of everyday sizes, and how much slower what is recommended is than the fastest (all of it is predicted):
"""


def everyday(title: str) -> Problem:
    """The problem of a title."""
    model, chips, batch, sequence, more = SPECS[title]
    training = {"global_batch_size": batch, "sequence_length": sequence}
    training |= {name: value for name, value in more.items() if name == "precision"}
    rest = {name: value for name, value in more.items() if name != "precision"}
    cluster = {"num_gpus": sum(chips.values()), "chips": chips}
    return cpsolver.make_problem(
        {"model": model, "cluster": cluster, "training": training, "search": {"top": TOP}, **rest}
    )


def rows(title: str, problem: Problem, result: Result) -> Iterator[str]:
    """A row of the table for each plan that has a role."""
    told = result.recommendation
    assert isinstance(told, Recommendation)
    for index, plan in enumerate(result.plans):
        names = [words for role, words in ROLES.items() if getattr(told, role) == index]
        if names:
            yield f"| {title} | {', '.join(names)} | {figures(problem, plan, result.plans[0])} |"
            title = ""


def figures(problem: Problem, plan: Plan, fastest: Plan) -> str:
    """The plan's cells: layout, step, loss, chance of running out of memory, what is unmeasured."""
    step, best = plan.evaluation.step_time_s, fastest.evaluation.step_time_s
    risk = out_of_memory_probability(problem, plan.strategy, plan.evaluation)
    more = f", vpp {plan.strategy.vpp}" if plan.strategy.vpp > 1 else ""
    layout = f"{family_name(plan.strategy)}{more}, mbs {plan.strategy.mbs}"
    beyond = "; ".join(unmeasured(problem, plan.strategy))
    return f"{layout} | {step:.4g} s | {step / best - 1:+.1%} | {risk:.1%} | {beyond}"


def main() -> None:
    """Solve every spec and write the document."""
    from cpsolver.evidence.chances import loss_if_unmeasured

    lines = [HEAD.format(loss=loss_if_unmeasured(), specs=len(SPECS))]
    lines += [
        "| spec | | plan | step | slower by | P(out of memory) | no run has had |",
        "|---|---|---|---|---|---|---|",
    ]
    for title in SPECS:
        problem = everyday(title)
        lines += rows(title, problem, cpsolver.solve(problem))
    OUTPUT.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
