"""Writes docs/experts-layouts.md: experts' published layouts beside the plans that the search finds for the same work.

python -m benchmarks.experts_layouts
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from cpsolver.cost.modules import module_sets
from cpsolver.doors.export.judge import launch_of
from cpsolver.doors.report.interval import interval_of
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evaluation.evaluation import PARTS, Evaluation
from cpsolver.evidence.runs.plan import placed_plan
from cpsolver.evidence.runs.run import MeasuredRun
from cpsolver.evidence.runs.table import PUBLISHED, read_runs
from cpsolver.evidence.runs.validation import rules_broken
from cpsolver.plans.strategy import StageGroup, Strategy
from cpsolver.problem.problem import Problem
from cpsolver.profiles.constants import load_calibration
from cpsolver.profiles.framework import load_launcher
from cpsolver.rules import violations
from cpsolver.search.search import search

OUTPUT = Path(__file__).parent.parent / "docs" / "experts-layouts.md"
LAUNCHER = "megatron-bridge"
TIME_LIMIT_S = 60.0
FELT = 0.01
"""Share of a step from which a part's difference is named."""
CASES = (
    ("mbridge_002", "DeepSeek-V3, 256 GB200"),
    ("mbridge_016", "DeepSeek-V3, 256 GB300"),
    ("mbridge_039", "DeepSeek-V3, 256 B200"),
    ("mbridge_054", "Qwen3-235B, 256 H100"),
    ("mbridge_008", "Qwen3-235B, 256 GB200"),
    ("mbridge_007", "Qwen3-235B, 256 GB300"),
    ("mbridge_020", "Qwen3-30B, 16 H100"),
    ("mbridge_006", "Qwen3-30B, 8 GB200"),
    ("mbridge_021", "Kimi-K2, 256 GB300"),
    ("mbridge_003", "gpt-oss-120b, 64 GB300"),
    ("mbridge_012", "Llama 3.1 405B, 256 GB200"),
    ("mbridge_015", "Llama 3.1 405B, 1,024 H100"),
    ("mbridge_028", "Llama 3 70B, 64 H100"),
    ("mbridge_023", "Llama 3 70B, 64 GB300"),
)
"""Run and title: NVIDIA's own layouts, by the newest of its tables that has them."""
AUTHORS = "dsv3_paper_h800"
AUTHORS_MODULES = ("layernorm", "mla_up_proj", "moe_act")
"""The row leaves out SwiGLU's outputs, which are recomputed as well (arXiv:2412.19437, 3.3.3)."""
HEAD = """# Experts' layouts and ours

Written by `python -m benchmarks.experts_layouts`. Each case is a published run: what it measured, what is predicted
for its layout, and what is predicted for the best plan that the search finds for the same model, devices, batch,
precision, software stack and switches (CUDA graphs, dispatcher). **Gains are predicted, not measured**: ratios of two
predictions. Nobody has run our plans. Where the 80 % intervals of the two predictions have a time in common, the gain
is a tie within what is known; most of an error is common to both plans, so that the order is a best guess all the
same.

NVIDIA's layouts are compared with what the launcher `megatron-bridge` runs, and every plan of ours is exported with
it: a note that an overlap is assumed which the launch does not have would stand here. A search stopped after a minute
is marked ≥: its plan is the best so far.
"""


@dataclass(frozen=True)
class Case:
    """A published run beside our plan; `stopped`: the search ran out of time."""

    title: str
    run: MeasuredRun
    problem: Problem
    expert: Strategy
    told: Evaluation
    ours: Strategy
    ours_told: Evaluation
    stopped: bool

    @property
    def gain(self) -> float:
        """By how much our plan is predicted faster than the expert's."""
        return self.told.step_time_s / self.ours_told.step_time_s - 1

    @property
    def tie(self) -> bool:
        """The two intervals have a time in common."""
        pairs = ((self.expert, self.told), (self.ours, self.ours_told))
        one, other = (interval_of(self.problem, plan, told.step_time_s) for plan, told in pairs)
        return one.overlaps(other)


def main() -> None:
    """Predict, search, write."""
    runs = {run.id: run for run in read_runs(PUBLISHED).runs}
    cases = [authors(replace(runs[AUTHORS], framework="HAI-LLM", recompute_modules=AUTHORS_MODULES))]
    for name, title in CASES:
        cases.append(searched(title, runs[name]))
        print(title, f"{cases[-1].gain:+.1%}", flush=True)
    OUTPUT.write_text("\n".join(_document(cases)) + "\n", encoding="utf-8")
    print(f"wrote {OUTPUT.name}")


def authors(run: MeasuredRun) -> Case:
    """DeepSeek-V3 by its authors, and the best of DualPipe's layouts of a list, all of them evaluated."""
    placed = placed_plan(run)
    problem, expert = placed.problem.with_constants(load_calibration()), placed.strategy
    legal = (plan for plan in dualpipe_plans(problem, expert) if not violations(problem, plan))
    found = [(evaluate(problem, plan), plan) for plan in legal]
    told, ours = min(found, key=lambda each: each[0].step_time_s)
    title = "DeepSeek-V3, 2,048 H800 (its authors')"
    return Case(title, run, problem, expert, evaluate(problem, expert), ours, told, stopped=False)


def dualpipe_plans(problem: Problem, expert: Strategy) -> Iterator[Strategy]:
    """The expert's plan with other pipelines, experts' groups, micro batches and recomputation; all stages alike but
    the last, which has what is left."""
    layers, devices = problem.model.layers, expert.devices
    for pp in (2, 4, 8, 16, 20, 30):
        split = [-(-layers // pp)] * (pp - 1)
        if devices % pp or layers - sum(split) < 1:
            continue
        for mbs in (1, 2):
            for ep in (8, 16, 32, 64, 128, 256):
                for modules in module_sets(problem):
                    group = StageGroup(expert.groups[0].chip, (*split, layers - sum(split)), "selective", (), modules)
                    yield replace(expert, pp=pp, dp=devices // pp, mbs=mbs, ep=ep, groups=(group,))


def searched(title: str, run: MeasuredRun) -> Case:
    """A run of Megatron-Bridge beside the best plan that it runs."""
    placed = placed_plan(run)
    problem = placed.problem.with_constants(load_calibration())
    asked = problem.spec.search.model_copy(update={"top": 1, "time_limit_s": TIME_LIMIT_S, "recompute_scope": "chip"})
    spec = problem.spec.model_copy(update={"search": asked})
    result = search(replace(problem, spec=spec, launcher=load_launcher(LAUNCHER)))
    best, told = result.plans[0], evaluate(problem, placed.strategy)
    launch = launch_of(problem, best.strategy, LAUNCHER)
    absent = [note for note in launch.notes if "here nothing does" in note]
    assert not absent, absent
    return Case(title, run, problem, placed.strategy, told, best.strategy, best.evaluation, not best.proven)


def _document(cases: list[Case]) -> Iterator[str]:
    yield HEAD
    yield "| case | measured tokens/s/GPU | predicted for its layout | best plan's | predicted gain | what yields it |"
    yield "|---|---|---|---|---|---|"
    for case in cases:
        assert case.run.tokens_per_s_per_gpu is not None
        rate, mine = (each.tokens_per_s_per_gpu for each in (case.told, case.ours_told))
        off = f"{rate / case.run.tokens_per_s_per_gpu - 1:+.0%}"
        gain = f"{'≥ ' if case.stopped else ''}{case.gain:+.1%}{', a tie' if case.tie else ''}"
        columns = case.title, f"{case.run.tokens_per_s_per_gpu:,.0f}", f"{rate:,.0f} ({off})", f"{mine:,.0f}", gain
        yield f"| {' | '.join(columns)} | {mechanism(case)} |"
    yield "\nThe layouts:\n"
    yield "| case | the expert's | its memory by the rules | ours | memory of ours |"
    yield "|---|---|---|---|---|"
    for case in cases:
        verdict = "fits" if "memory" not in rules_broken(case.problem, case.expert) else "refused"
        own = f"{verdict}, {_fullest(case.told):.0%} of what is free"
        own_best = _layout(case.ours), f"{_fullest(case.ours_told):.0%}"
        yield f"| {' | '.join((case.title, _layout(case.expert), own, *own_best))} |"
    yield f"\n{REMARKS}"


REMARKS = """## What the gains rest on

- **The authors' own DeepSeek-V3** is judged with stack `deepseek`, none of whose constants is fitted to this run or
  any other of its authors. It runs DualPipe, and the plan beside it is the best of all DualPipe
  layouts with other pp, ep, micro batches and recomputed modules, not a proven optimum. Its measured rate
  includes stops.
- **Larger micro batches where the host is the limit** (Qwen3-235B and Qwen3-30B on H100: recipes without graphs, or
  with graphs of parts). The host takes as long for a layer whatever the micro batch, 3.5 ms a pass with experts by the
  fit, so that twice the tokens cost it nothing. The runs of the fit have pairs that differ in graphs alone, but few
  that differ in the micro batch alone. What NVIDIA did about it since is graphs of the whole iteration; with these
  (GB200, GB300) the gains are ties.
- **No pipeline** (Qwen3-235B on GB200 and GB300): no stage waits for the one with the head and its loss, where the
  recipe's stages have as many layers as the others. The states of all layers then stand on every device; memory is the
  model's count, within its margin.
- **One expert on a device** (DeepSeek-V3 on GB300, Qwen3-235B on GB200 and GB300): a dense product, where the recipes'
  grouped kernel for four to eight runs at 0.64 of that by the fit. Runs with one on each device bear it out (Grok-1,
  Mixtral 8x7B, Llama 4 Maverick: docs/accuracy.md).
- **Overlap of the experts' all-to-alls** where NVIDIA's recipe leaves it off (Kimi-K2 on GB300, Qwen3-30B on H100).
  Runs that differ in it alone gained 18 to 32 % (Qwen3-30B, 16 H100). An exchange hides under no more than another
  microbatch's compute; without that limit the best plan for B200 was one with ep 128 that hid 26 ms a layer under 13.
- Kimi-K2's recipe trains with Muon by `dist_muon`, which is not modelled: Adam's states stand for Muon's, and with them
  its layout fits too."""


def mechanism(case: Case) -> str:
    """The parts of a step in which the plans differ most, in shares of the expert's step; ours less the expert's."""
    parts = [*PARTS[:5], "bubble", "data_parallel", "optimizer"]
    one, other = case.told.breakdown_s, case.ours_told.breakdown_s
    apart = {name: (other[name] - one[name]) / case.told.step_time_s for name in parts}
    felt = sorted((name for name in parts if abs(apart[name]) >= FELT), key=lambda name: -abs(apart[name]))
    return (
        ", ".join(f"{_WORDS.get(name, name.replace('_', ' '))} {apart[name]:+.1%}" for name in felt) or "the same plan"
    )


_WORDS = {"tensor_parallel": "tp, ep communication", "pipeline_p2p": "transfers", "compute": "compute and host"}


def _fullest(told: Evaluation) -> float:
    return max(stage.memory.total / stage.capacity_bytes for stage in told.stages)


def _layout(plan: Strategy) -> str:
    """Degrees that are not 1, what overlaps, and what is recomputed."""
    sizes = {name: getattr(plan, name) for name in ("tp", "cp", "pp", "dp", "vpp", "ep", "mbs")}
    told = [f"{name} {size}" for name, size in sizes.items() if size > 1 or name in ("pp", "mbs")]
    told += [f"ZeRO-{plan.zero_stage}"] * (plan.zero_stage > 1) + ["overlap"] * plan.expert_overlap
    told += [plan.schedule] * (plan.schedule != "1f1b")
    modules = sorted({name for names in plan.recompute_modules for name in names})
    told += [f"recomputes {', '.join(modules)}"] * bool(modules)
    told += sorted({kind for kind in plan.recompute if kind in ("block", "uniform")})
    return " ".join(told)


if __name__ == "__main__":
    main()
