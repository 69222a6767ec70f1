"""The answer for people, in rich's terms: headline, plans side by side, time, memory, proof, and what it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from cpsolver.doors.report.breakdown import MemoryByStage, TimeBreakdown, stage_times
from cpsolver.doors.report.cluster import changed_mark
from cpsolver.doors.report.columns import ShownPlan, shown_plan, shown_result, to_run
from cpsolver.doors.report.evidence import TITLE as EVIDENCE
from cpsolver.doors.report.evidence import evidence
from cpsolver.doors.report.finetuning import long_tail_words, task_words
from cpsolver.doors.report.goals import (
    best_word,
    better_word,
    bound_words,
    by_events_line,
    chance,
    cost_and_devices,
    counts_line,
    fewest_line,
    meshes_line,
    objective_line,
    sizes_line,
    verification_line,
    worse_word,
)
from cpsolver.doors.report.interval import Interval, in_words, provenance
from cpsolver.doors.report.layout import section
from cpsolver.doors.report.open_switches import TITLE, open_line, open_of_plan, switches_table
from cpsolver.doors.report.operators import matrices_notes, operators_table, operators_title
from cpsolver.doors.report.outlook import outlook_words
from cpsolver.doors.report.plan_table import PlanTable
from cpsolver.doors.report.terminal_timeline import timeline_section
from cpsolver.doors.report.text import assumptions
from cpsolver.evaluation.evaluation import Evaluation
from cpsolver.evaluation.operators import compute_by_operator
from cpsolver.evaluation.timeline import simulated_step_s
from cpsolver.evidence.nearest import unmeasured as unmeasured_parts
from cpsolver.explanation.open_switches import OpenSwitches, open_switches
from cpsolver.inputs.language import later, say
from cpsolver.inputs.text import about, count, elapsed, percent, plural, seconds, signed_percent, unit
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.profiles.default_stack import NAMED, foreign_kernels
from cpsolver.rules import RULES, Violation
from cpsolver.search.result import Result
from hw_specs.units import bytes_to_gib

_NEARLY_FULL = 0.97  # of the usable memory: from here on a report warns
STOPS = {"time_limit": later("the time limit"), "interrupted": later("the interruption"), "complete": later("the end")}


def result_report(problem: Problem, result: Result) -> RenderableType:
    """The report of a search: all plans, and the one to run in detail."""
    columns = shown_result(problem, result)
    parts: list[RenderableType] = [task(problem), "", *verdict(problem, result, columns), *foreign(problem)]
    if columns:
        run = columns[to_run(result)]
        if run is not columns[0]:
            parts.append(headline(problem, say("Run this, {title}", title=run.title), run))
        left_open = open_switches(problem, run.strategy, run.evaluation, searched=True)
        parts += [*tight(problem, run.evaluation), *unmeasured(problem, run.strategy), *open_line(left_open)]
        parts += section(say("Plans"), PlanTable(problem, columns), *chance_lines(problem, columns))
        whose = say(" of {title}", title=run.title) if len(columns) > 1 else ""
        parts += _details(problem, run.strategy, run.evaluation, whose, left_open)
    parts += section(say("Proof"), proof_account(problem, result))
    used = list(dict.fromkeys(chip for plan in result.plans for chip in plan.strategy.stage_chips))
    parts += section(say("What this is"), *disclaimer(problem, columns[0].interval if columns else None, used))
    return Group(*parts)


def evaluation_report(
    problem: Problem, strategy: Strategy, evaluation: Evaluation, violations: Sequence[Violation]
) -> RenderableType:
    """The report of a given plan: its numbers, and every rule that it breaks."""
    column = shown_plan(problem, "", strategy, evaluation)
    parts: list[RenderableType] = [task(problem), "", headline(problem, say("The plan"), column)]
    parts += [*whole_training(problem, column), legality(violations)]
    left_open = open_of_plan(problem, strategy, evaluation)
    parts += [*foreign(problem), *tight(problem, evaluation), *unmeasured(problem, strategy), *open_line(left_open)]
    if violations:
        parts += section(say("Broken rules"), *(Text(str(found), style="red") for found in violations))
    parts += section(say("Plan"), PlanTable(problem, [column]))
    parts += _details(problem, strategy, evaluation, "", left_open)
    used = list(dict.fromkeys(strategy.stage_chips))
    parts += section(say("What this is"), *disclaimer(problem, column.interval, used))
    return Group(*parts)


def chance_lines(problem: Problem, columns: Sequence[ShownPlan]) -> Iterator[RenderableType]:
    """How likely the first plan is truly the best of those shown; nothing of a plan alone."""
    if len(columns) > 1:
        best = best_word(problem)
        what = say(
            "Chance that plan 1 is truly the {best} of these: {fastest}", best=best, fastest=chance(columns[0].fastest)
        )
        likeliest = max(columns, key=lambda column: column.fastest)
        other = (
            ""
            if likeliest is columns[0]
            else say("; {title} has {fastest}", title=likeliest.title, fastest=chance(likeliest.fastest))
        )
        why = say("What is uncertain of all of them alike is left out; their order rests on the rest.")
        yield Text("\n" + say("{what}{other}. {why}", what=what, other=other, why=why), style="yellow")


def task(problem: Problem) -> Group:
    """What is to be planned: the model on its cluster, then the batch and what else was asked for."""
    chips = []
    for supply in problem.supplies:
        limit = supply.limit
        name = supply.name + changed_mark(problem, supply)
        chips.append(name if limit >= problem.num_gpus else say("{name} (up to {limit:,})", name=name, limit=limit))
    training = problem.spec.training
    batch = say(
        "global batch {batch:,} × {sequence:,} tokens, {precision}, {name}",
        batch=problem.batch,
        sequence=problem.sequence,
        precision=training.precision,
        name=problem.stack.name,
    )
    batch += say(", launcher {name}", name=problem.named_launcher.name) if problem.named_launcher else ""
    most = say("up to ") if problem.may_idle else ""
    nodes = say(
        "{most}{num_gpus} in nodes of {node}: {chips}",
        most=most,
        num_gpus=plural(problem.num_gpus, "GPU"),
        node=problem.node,
        chips=", ".join(chips),
    )
    nodes += say(", network {name}", name=problem.network.name) if problem.network else ""
    batch = "\n".join(filter(None, (batch, task_words(problem), objective_line(problem))))
    return Group(Text.assemble((problem.model.name, "bold"), say(" on {nodes}", nodes=nodes)), Text(batch, style="dim"))


def headline(problem: Problem, subject: str, column: ShownPlan) -> Text:
    """What a plan gives, in a sentence."""
    evaluation = column.evaluation
    step = evaluation.step_time_s
    return Text.assemble(
        (f"{subject}: ", "bold"),
        (say("{step} {unit} per step", step=about(step), unit=unit(step)), "bold green"),
        say(
            " (80 % interval {in_words}), {tokens_per_s} tokens/s ",
            in_words=in_words(column.interval, step),
            tokens_per_s=count(evaluation.tokens_per_s),
        ),
        say(
            "({tokens_per_s_per_gpu:,.1f} per GPU), MFU {mfu}",
            tokens_per_s_per_gpu=evaluation.tokens_per_s_per_gpu,
            mfu=percent(evaluation.mfu),
        ),
        cost_and_devices(problem, column.strategy, evaluation),
    )


def whole_training(problem: Problem, column: ShownPlan) -> Iterator[Text]:
    """Days and dollars of the whole training, where its tokens are known; what waits for long sequences."""
    if said := outlook_words(problem, column.outlook):
        yield Text(said, style="bold")
    for said in long_tail_words(problem, column.strategy, column.evaluation):
        yield Text(said)


def foreign(problem: Problem) -> Iterator[RenderableType]:
    """A word of warning where the stack's kernels are of another vendor than a chip."""
    told = foreign_kernels(problem.stack, (supply.chip for supply in problem.supplies))
    if told is not None:
        yield Text(told, style="yellow")


def borrowed_stack(problem: Problem) -> Iterator[str]:
    """That a launcher without a stack of its own is timed with another framework's, where the spec names none."""
    own = problem.named_launcher
    if own is not None and own.stack is None and problem.stack_why != NAMED:
        yield say(
            "figures of stack {name}, as {launcher} has none of its own (apss-cp stacks lists others)",
            name=problem.stack.name,
            launcher=own.name,
        )


def unmeasured(problem: Problem, strategy: Strategy) -> Iterator[RenderableType]:
    """A word of warning where no published run has had what a plan has."""
    if told := unmeasured_parts(problem, strategy):
        kind = say("models with experts") if problem.model.moe is not None else say("dense models")
        yield Text(
            say("Beyond every published run of {kind}: {told}.", kind=kind, told="; ".join(told)), style="yellow"
        )


def tight(problem: Problem, evaluation: Evaluation) -> Iterator[RenderableType]:
    """A word of warning where a stage leaves next to nothing free."""
    fullest = max(evaluation.stages, key=lambda stage: stage.memory.total / stage.capacity_bytes)
    share = fullest.memory.total / fullest.capacity_bytes
    if _NEARLY_FULL < share <= 1:
        margin = percent(problem.memory_margin)
        text = say(
            "Tight: {chip} is filled to {share:.0f} % of what is usable after a margin of {margin}; ",
            chip=fullest.chip,
            share=share * 100,
            margin=margin,
        )
        yield Text(say("{text}a larger cluster.memory_margin plans for a wider berth.", text=text), style="yellow")


def legality(violations: Sequence[Violation]) -> Text:
    """Whether a given plan keeps every rule."""
    if not violations:
        return Text(say("Legal: it keeps every rule and fits in memory."), style="green")
    return Text(say("Not legal: {violations}.", violations=plural(len(violations), "violation")), style="bold red")


def verdict(problem: Problem, result: Result, columns: Sequence[ShownPlan]) -> Iterator[RenderableType]:
    """The best plan, what is proven of it, and where there is none why."""
    if result.plans:
        yield headline(problem, say("Best plan"), columns[0])
        yield from whole_training(problem, columns[0])
        strategies, probability = [column.strategy for column in columns], columns[0].outlook.deadline_probability
        if said := fewest_line(problem, strategies, probability):
            yield Text(said, style="green")
    yield from _settled(problem, result)
    if result.reasons:
        table = Table.grid(padding=(0, 1, 0, 0))
        for reason in result.reasons:
            table.add_row("-", Text(reason))
        yield table


def _settled(problem: Problem, result: Result) -> Iterator[RenderableType]:
    """What is proven, and what was still open where the search stopped."""
    proof, considered = result.proof, plural(result.proof.considered, "candidate")
    if result.status == "optimal":
        best = best_word(problem)
        found = sum(not plan.added for plan in result.plans)
        what = say("the {best}", best=best) if found == 1 else say("the {found} {best}", found=found, best=best)
        yield Text(
            say(
                "Proven: {what} of {considered}, in {seconds}.",
                what=what,
                considered=considered,
                seconds=elapsed(proof.seconds),
            ),
            style="green",
        )
    elif result.status == "feasible":
        yield _unsettled(problem, result)
    elif result.status == "infeasible":
        counts = proof.device_counts
        numbers = (
            ""
            if counts is None
            else say(", on any of {considered} of GPUs", considered=plural(counts.considered, "number"))
        )
        every = say(" for all of {considered}", considered=considered) if proof.considered else ""
        yield Text(say("There is no plan: proven{every}{numbers}.", every=every, numbers=numbers), style="bold red")
    else:
        text = say(
            "No plan found by {stop}; {open} of {considered:,} ",
            stop=say(STOPS[proof.stop]),
            open=plural(proof.open, "candidate"),
            considered=proof.considered,
        )
        yield Text(say("{text}are open. A longer time limit may find one.", text=text), style="bold yellow")


def _unsettled(problem: Problem, result: Result) -> Text:
    """What a search that was stopped leaves open of its plans."""
    proof = result.proof
    open_still = say(
        "{open} of {considered:,} were open at {stop}",
        open=plural(proof.open, "candidate"),
        considered=proof.considered,
        stop=say(STOPS[proof.stop]),
    )
    gap = result.plans[0].gap
    better = better_word(problem)
    sure = say("Proven the {best_word}, but", best_word=best_word(problem)) if gap == 0 else None
    sure = sure or say("Another plan may be up to {gap} {better}:", gap=percent(gap), better=better)
    return Text(
        say(
            "{sure} {open_still}; more or {better} plans may follow it.",
            sure=sure,
            open_still=open_still,
            better=better,
        ),
        style="yellow",
    )


def _details(
    problem: Problem, strategy: Strategy, evaluation: Evaluation, whose: str, left_open: OpenSwitches | None
) -> list[RenderableType]:
    return [
        *time_sections(problem, strategy, evaluation, whose, left_open),
        *memory_section(problem, evaluation, whose),
        *section(say(EVIDENCE), *evidence(problem, strategy)),
    ]


def time_sections(
    problem: Problem, strategy: Strategy, evaluation: Evaluation, whose: str, left_open: OpenSwitches | None
) -> list[RenderableType]:
    """Where the time of a step goes: its parts, compute by operator, open switches, the pipeline over time.

    `whose`: what stands behind the titles, ` of plan 1` say.
    """
    said = say("a microbatch takes {stage_times}", stage_times=stage_times(evaluation.stages))
    simulated = simulated_step_s(strategy, evaluation, strategy.microbatches(problem.batch))
    if simulated is not None:
        off = simulated / evaluation.step_time_s - 1
        said += say(
            "\nthe schedule run event by event: {simulated} ({off})",
            simulated=seconds(simulated),
            off=signed_percent(off),
        )
    said += "".join(f"\n{line}" for line in matrices_notes(problem, strategy))
    times = Text(said, style="dim")
    operators = compute_by_operator(problem, strategy, evaluation)
    return [
        *section(say("Where the time goes: a step{whose}", whose=whose), TimeBreakdown(evaluation, strategy), times),
        *section(f"{operators_title(operators, strategy.pp)}{whose}", *operators_table(operators)),
        *(
            section(say("{title}: a step{whose}", title=say(TITLE), whose=whose), *switches_table(left_open))
            if left_open
            else ()
        ),
        *timeline_section(strategy, evaluation, strategy.microbatches(problem.batch), whose),
    ]


def memory_section(problem: Problem, evaluation: Evaluation, whose: str) -> list[RenderableType]:
    """Where the memory goes, stage by stage."""
    memory = MemoryByStage(evaluation.stages), Text("\n".join(memory_notes(problem, evaluation)), style="dim")
    return section(say("Where the memory goes: GiB per GPU{whose}", whose=whose), *memory)


def memory_notes(problem: Problem, evaluation: Evaluation) -> Iterator[str]:
    """What the memory's numbers leave out."""
    if problem.spec.cluster.memory_margin is None and problem.stack.constants.memory_margin.confidence == "fitted":
        yield (
            say(
                "{memory_margin} of device memory is kept free (cluster.memory_margin): published runs on "
                "{name} needed up to so much more than predicted.",
                memory_margin=percent(problem.memory_margin),
                name=problem.stack.name,
            )
        )
    fullest = max(evaluation.stages, key=lambda stage: stage.memory.device).memory
    most, held = bytes_to_gib(fullest.device), bytes_to_gib(fullest.cached)
    yield say(
        "The driver's meter may show {most:.1f} GiB: the framework holds {held:.1f} GiB that it can give back.",
        most=most,
        held=held,
    )


def proof_account(problem: Problem, result: Result) -> Group:
    """How every candidate ended: a table, then what else there is to say."""
    proof = result.proof
    table = Table.grid(Column(justify="right", no_wrap=True), Column(), padding=(0, 2, 0, 0))
    table.add_row(count(proof.considered), say("candidates: sizes, micro batch, chunks, flags, sharding"), style="bold")
    for rule, rows in sorted(proof.refused.items(), key=lambda item: -item[1]):
        table.add_row(
            count(rows), Text.assemble(say("cut by {rule}", rule=rule), (f": {say(RULES[rule].words)}", "dim"))
        )
    if proof.memory:
        table.add_row(count(proof.memory), say("do not fit in memory, however the layers are split"))
    if proof.bounded:
        found = sum(not plan.added for plan in result.plans)
        slowest = say(": {worse_word} than plan {found}", worse_word=worse_word(problem), found=found) if found else ""
        what = "cost" if problem.spec.search.objective == say("cost") else say("step time")
        table.add_row(
            count(proof.bounded), say("cut by a lower bound on their {what}{slowest}", what=what, slowest=slowest)
        )
    models = plural(proof.solver_calls, "CP-SAT model")
    table.add_row(count(proof.solved), say("solved exactly, by dynamic programming and {models}", models=models))
    if proof.open:
        none = say(
            "none {better_word} than {bound_words}",
            better_word=better_word(problem),
            bound_words=bound_words(problem, proof),
        )
        table.add_row(count(proof.open), say("still open, {none}", none=none), style="yellow")
    gap = max((plan.gap for plan in result.plans), default=None)
    told = (
        ""
        if gap is None
        else say("gap 0 %: proven; ")
        if proof.complete
        else say("gap {gap}, not all settled; ", gap=percent(gap))
    )
    line = say(
        "{told}{seconds} in all, {solver_seconds} of it in the solver",
        told=told,
        seconds=elapsed(proof.seconds),
        solver_seconds=elapsed(proof.solver_seconds),
    )
    known = say(
        "of pp, tp, dp, sp, vp and mbs alone: {combinations}",
        combinations=plural(proof.combinations, "legal combination"),
    )
    parts = counts_line(proof), meshes_line(problem, proof), sizes_line(problem, proof), by_events_line(proof)
    told = "\n".join(filter(None, (*parts, known, line)))
    told = "\n".join(filter(None, (told, verification_line(result.verification))))
    return Group(table, Text(told, style="dim"))


def disclaimer(problem: Problem, interval: Interval | None, chips: Sequence[str]) -> Iterator[RenderableType]:
    """What the numbers rest on, and what is only assumed."""
    for line in provenance(interval):
        yield Text(line)
    if problem.stack_why != NAMED:
        yield Text(say("Stack {name}: {stack_why}.", name=problem.stack.name, stack_why=problem.stack_why))
    for line in assumptions(problem, chips):
        yield Text(line, style="dim")
