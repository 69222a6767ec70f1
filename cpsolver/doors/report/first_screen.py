"""The first screen of an answer: what to run, how fast, how full memory is, how sure, what next. At most 24 lines.

Everything else stands behind flags (answer.py). Colours: green is good, yellow tight or uncertain, red not to be had.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from cpsolver.doors.report.blocks import LABEL, Block, drawn, fitted, joined, paragraph, pieces
from cpsolver.doors.report.columns import ShownPlan, shown_result, to_run
from cpsolver.doors.report.compact_table import DOUBTFUL, GOOD, WRONG, plans_block
from cpsolver.doors.report.console import STOPS, borrowed_stack, foreign, verdict
from cpsolver.doors.report.finetuning import long_tail_words, task_words
from cpsolver.doors.report.goals import (
    best_word,
    better_word,
    chance,
    cost_figures,
    objective_line,
    score_rates,
    verification_line,
    worse_word,
)
from cpsolver.doors.report.open_switches import open_words
from cpsolver.doors.report.outlook import outlook_words
from cpsolver.doors.report.plan_words import layout_words, stage_words, twin_words
from cpsolver.doors.report.step_bars import memory_lines, time_line
from cpsolver.evidence.nearest import unmeasured
from cpsolver.explanation.open_switches import open_switches
from cpsolver.inputs.language import say
from cpsolver.inputs.text import about, count, percent, plural, unit
from cpsolver.problem.problem import Problem
from cpsolver.search.result import Result
from cpsolver.spec.search import Search

LINES = 24
"""Of a terminal of the usual size."""
_LIKELY = 0.8
"""From here on a chance of being in time is good: as much as the intervals promise."""
_SAME = 0.0005
"""A difference below this share would be shown as 0.0 %."""
_SHOWN = 0.001
"""The least share that is shown as more than nothing: 0.1 %."""


class FirstScreen:
    """The answer of a search; `next_steps` are commands to go on with, a list of words each."""

    def __init__(self, problem: Problem, result: Result, next_steps: Sequence[str] = ()) -> None:
        self._problem, self._result, self._next = problem, result, next_steps
        self._plans = shown_result(problem, result)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        utf8 = console.encoding.lower().startswith("utf")
        for line in self.lines(options.max_width, utf8):
            line.no_wrap, line.overflow = True, "fold"
            yield line

    def lines(self, width: int, utf8: bool = True) -> list[Text]:
        """The screen in that width."""
        problem, result = self._problem, self._result
        blocks = [*_task(problem, width)]
        if self._plans:
            blocks += _Answer(problem, result, self._plans).blocks(width, utf8)
        else:
            blocks += _no_plan(problem, result, width)
        blocks.append(_commands(self._next, width))
        return list(drawn(fitted(blocks, width, LINES), utf8))


def _task(problem: Problem, width: int) -> Iterator[Block]:
    """The model on its chips, the batch, and what else was asked for."""
    whole = [supply for supply in problem.supplies if supply.limit >= problem.num_gpus]
    chips = [
        say("{name} (up to {limit:,})", name=supply.name, limit=min(supply.limit, problem.num_gpus))
        for supply in problem.supplies
    ]
    most = say("up to ") if problem.may_idle else ""
    one = f"{problem.num_gpus:,} × {problem.supplies[0].name}"
    where = (
        one
        if len(problem.supplies) == len(whole) == 1
        else say("{num_gpus:,} GPUs: {chips}", num_gpus=problem.num_gpus, chips=", ".join(chips))
    )
    training = problem.spec.training
    said = say(
        "{name} on {most}{where}; {batch:,} × {sequence:,} tokens a step, ",
        name=problem.model.name,
        most=most,
        where=where,
        batch=problem.batch,
        sequence=problem.sequence,
    )
    said += f"{training.precision}, {problem.stack.name}"
    launcher = problem.named_launcher
    said += say(", launcher {name}", name=launcher.name) if launcher and launcher.name != problem.stack.name else ""
    said += f"; {words}" if (words := task_words(problem)) else ""
    yield Block("", paragraph(said, width, "bold"), yields=2, indent=0)
    yield Block("", paragraph(objective_line(problem), width, "dim"), yields=2, indent=0)


def _no_plan(problem: Problem, result: Result, width: int) -> Iterator[Block]:
    """That there is none, or none yet, and why."""
    told = [line.plain for line in verdict(problem, result, []) if isinstance(line, Text)]
    style = f"bold {WRONG if result.status == 'infeasible' else DOUBTFUL}"
    yield Block(say("Answer"), paragraph(" ".join(told), width - LABEL, style), apart=True)
    reasons = [paragraph(_hard(f"- {reason}"), width - LABEL, hanging="  ") for reason in result.reasons]
    yield Block(say("Why"), tuple(line for lines in reasons for line in lines), yields=3, least=3, apart=True)


def _commands(steps: Sequence[str], width: int) -> Block:
    """Commands that a shell takes as they stand: one that is too long goes on after a backslash."""
    rows = [row for step in steps for row in _rows(step, width)]
    label = say("Next")
    lines = [Text(row) for row in rows]
    if lines:
        lines[0] = Text.assemble((label, "bold"), rows[0][cell_len(label) :])
    return Block("", tuple(lines), apart=True, indent=0)


def _rows(command: str, width: int) -> Iterator[str]:
    """A command in rows: options stay beside their values; only what is wider than a row by itself is parted."""
    words: list[str] = []
    for word in map(shlex.quote, shlex.split(command)):
        if words and words[-1].startswith("-") and " " not in words[-1] and not word.startswith("-"):
            words[-1] += f" {word}"
        else:
            words.append(word)
    row = " " * LABEL
    for word in words:
        if row.strip() and len(row) + len(word) + len("  \\") > width:
            yield f"{row} \\"
            row = " " * (LABEL + 2)
        row += f" {word}" if row.strip() else word
        while len(row) > width:
            yield f"{row[: width - 1]}\\"
            row = row[width - 1 :]
    yield row


@dataclass(frozen=True)
class _Answer:
    """The blocks of an answer with plans."""

    problem: Problem
    result: Result
    plans: Sequence[ShownPlan]

    @property
    def place(self) -> int:
        """Of the plan to run."""
        return to_run(self.result)

    @property
    def risk(self) -> float:
        """The chance of running out of memory from which on a plan is doubtful: the spec's, or the usual one."""
        asked = self.problem.spec.search.risk
        return asked if asked < 1.0 else float(Search.model_fields["risk"].default)

    def blocks(self, width: int, utf8: bool) -> Iterator[Block]:
        """In their order."""
        problem, run, inside = self.problem, self.plans[self.place], width - LABEL
        yield from self._run(inside)
        yield from self._sure(inside)
        yield from self._doubts(inside)
        yield Block(say("Time"), (time_line(run.evaluation, inside, utf8),), yields=1, least=0)
        memory = memory_lines(problem, run, inside, utf8, self.risk)
        yield Block(say("Memory"), memory, yields=5)
        if len(self.plans) > 1:
            yield plans_block(problem, self.plans, self.place, width, self.risk)

    def _run(self, width: int) -> Iterator[Block]:
        """What to set, and what it gives."""
        problem, run = self.problem, self.plans[self.place]
        strategy, evaluation, step = run.strategy, run.evaluation, run.evaluation.step_time_s
        others = [role for role in run.roles if role != "run this"]
        names = [say("the {role}", role=say(role)) for role in others]
        also = say(", also {roles}", roles=_together(names)) if names else ""
        title = (
            say("plan {place}{also}", place=self.place + 1, also=also)
            if len(self.plans) > 1
            else say("the one plan that was asked for")
        )
        lines = paragraph(_hard(f"{title}{self._given_up()}"), width)
        yield Block(say("Run this"), lines, apart=True, style=f"bold {GOOD}", yields=2)
        yield Block("", pieces(layout_words(strategy), width, "bold"))
        yield Block("", paragraph(stage_words(strategy), width), yields=3)
        low, high = (about(end, step) for end in (run.interval.low_s, run.interval.high_s))
        figures = [
            say("{step} {unit} a step ({low}–{high}, 80 % sure)", step=about(step), unit=unit(step), low=low, high=high)
        ]
        figures += [f"{count(evaluation.tokens_per_s_per_gpu)} tokens/s/GPU", f"MFU {percent(evaluation.mfu)}"]
        figures += cost_figures(problem, strategy, evaluation)
        yield Block(say("Speed"), pieces(figures, width))
        probability = run.outlook.deadline_probability
        style = "" if probability is None else GOOD if probability >= _LIKELY else DOUBTFUL
        yield Block(say("Training"), paragraph(_hard(outlook_words(problem, run.outlook)), width, style), yields=2)
        for said in long_tail_words(problem, strategy, evaluation):
            yield Block(say("Long tail"), paragraph(_hard(said), width), yields=4)

    def _given_up(self) -> str:
        """By how much the plan to run falls behind the best one, and what speaks against that one."""
        best, run = self.plans[0], self.plans[self.place]
        if best is run:
            return ""
        known = unmeasured(self.problem, run.strategy)
        beyond = [words for words in unmeasured(self.problem, best.strategy) if words not in known]
        against = ""
        if best.out_of_memory > run.out_of_memory and best.out_of_memory >= self.risk:
            against = say(
                ", which is {out_of_memory} likely to run out of memory", out_of_memory=chance(best.out_of_memory)
            )
        elif beyond:
            against = say(", where no run has measured {beyond}", beyond=", ".join(beyond))
        if self.problem.spec.search.objective == "fewest_chips" and run.strategy.devices > best.strategy.devices:
            return say(
                ": {devices}, where plan 1 needs {needed:,}{against}",
                devices=plural(run.strategy.devices, "GPU"),
                needed=best.strategy.devices,
                against=against,
            )
        lag, other = self._behind(), twin_words(best.strategy, run.strategy)
        one = say("plan 1: the same but for its {other}", other=other) if other else say("plan 1")
        word = say("less than {share}", share=percent(_SHOWN)) if lag < _SAME else percent(lag)
        return say(
            ": {word} {worse_word} than the {best_word} ({one}){against}",
            word=word,
            worse_word=worse_word(self.problem),
            best_word=best_word(self.problem),
            one=one,
            against=against,
        )

    def _behind(self) -> float:
        """By what share the plan to run falls behind the first one in the objective."""
        pair = [self.plans[0], self.plans[self.place]]
        rates = score_rates(self.problem, [plan.strategy for plan in pair])
        first, own = (rate * plan.evaluation.step_time_s for rate, plan in zip(rates, pair, strict=True))
        return own / first - 1

    def _sure(self, width: int) -> Iterator[Block]:
        """What is proven, and how likely the plan is truly the best of those shown."""
        problem, proof = self.problem, self.result.proof
        considered, better = plural(proof.considered, "plan"), better_word(problem)
        if self.result.status == "optimal":
            lag = self._behind()
            most = say(" more than {lag}", lag=percent(max(lag, _SHOWN))) if lag > 0 else ""
            said = say(
                "proven, as predicted: none of {considered} is{most} {better}",
                considered=considered,
                most=most,
                better=better,
            )
            if problem.spec.search.objective == "fewest_chips":
                fewest = plural(self.plans[0].strategy.devices, "GPU")
                said = say("proven, as predicted: no plan on fewer than {fewest} is in time", fewest=fewest)
        else:
            said = say(
                "not proven: {more}; {open} of {considered} were open at {stop}",
                more=self._to_gain(better),
                open=count(proof.open),
                considered=considered,
                stop=say(STOPS[proof.stop]),
            )
        style = GOOD if self.result.status == "optimal" else DOUBTFUL
        yield Block(say("How sure"), paragraph(_hard(said), width, style), yields=2)
        second = self.result.verification
        if second is not None:
            style = {"confirmed": GOOD, "contradicted": WRONG}.get(second.verdict, DOUBTFUL)
            yield Block(say("Verified"), paragraph(_hard(verification_line(second)), width, style), least=0)

    def _to_gain(self, better: str) -> str:
        """By how much another plan may be better, where the search was stopped."""
        gap = self.result.plans[0].gap
        if not gap:
            return say("the first plan is")
        if gap == 1:
            return say("how much {better} another plan may be is not known yet", better=better)
        return say("another plan may be {gap} {better} than plan 1", gap=percent(gap), better=better)

    def _doubts(self, width: int) -> Iterator[Block]:
        """What the figures may be wrong for."""
        problem, run = self.problem, self.plans[self.place]
        beyond = unmeasured(problem, run.strategy)
        said = [say("none of the published runs we have had: {beyond}", beyond="; ".join(beyond))] if beyond else []
        if problem.overlay is not None and problem.overlay.doubts:
            said.append(
                say(
                    "the calibration was written in spite of doubts: {doubts}", doubts="; ".join(problem.overlay.doubts)
                )
            )
        said += [line.plain for line in foreign(problem) if isinstance(line, Text)]
        said += borrowed_stack(problem)
        switches = open_switches(problem, run.strategy, run.evaluation, searched=True)
        said += [say("the spec leaves open {words}", words=words) for words in [open_words(switches)] if words]
        label = say("Unsure")
        for text in said:
            yield Block(label, paragraph(_hard(text), width, DOUBTFUL), yields=6)
            label = ""


def _hard(text: str) -> str:
    """Numbers and their signs kept together."""
    return text.replace(" %", f"{joined(' ')}%")


def _together(words: Sequence[str]) -> str:
    """`the fastest, the safest and the simplest`."""
    return say(" and ").join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
