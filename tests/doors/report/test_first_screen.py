"""The first screen: short, narrow enough, and with the numbers of the document."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

import cpsolver
from cpsolver.commands.next_steps import Given, next_steps
from cpsolver.doors.report.answer import answer
from cpsolver.doors.report.columns import shown_result, to_run
from cpsolver.doors.report.compact_table import DOUBTFUL, GOOD, WRONG
from cpsolver.doors.report.document import result_document
from cpsolver.doors.report.first_screen import LINES, FirstScreen
from cpsolver.doors.report.goals import chance, dollars
from cpsolver.doors.report.outlook import days_text, total_dollars
from cpsolver.doors.report.plan_words import twin_words
from cpsolver.doors.report.step_bars import memory_lines, shares
from cpsolver.inputs.text import about, count, percent
from cpsolver.problem.problem import Problem
from cpsolver.search.result import Plan, Recommendation, Result
from tests.support.selection import full

CHEAP = {"a800": 1.2, "h800": 2.1}
DENSE: dict[str, Any] = {
    "model": "llama2-7b",
    "cluster": {"num_gpus": 16, "chips": "a800"},
    "training": {"global_batch_size": 64, "sequence_length": 4096},
}
PRICED: dict[str, Any] = {
    "model": "llama2-13b",
    "cluster": {"num_gpus": 64, "chips": {"a800": 32, "h800": 32}, "prices": CHEAP, "idle": True},
    "training": {"global_batch_size": 256, "sequence_length": 4096},
}
IN_TIME = {"tokens": 5e10, "days": 4}
SPECS: dict[str, dict[str, Any]] = {
    "dense": DENSE,
    "mixed": {
        **DENSE,
        "model": "llama2-13b",
        "cluster": {"num_gpus": 32, "chips": {"a800": 16, "h800": 24}},
    },
    "experts": {
        "model": "mixtral-8x7b",
        "cluster": {"num_gpus": 32, "chips": "h100"},
        "training": {"global_batch_size": 128, "sequence_length": 4096},
        "launcher": "megatron-lm",
    },
    "fewest": {**PRICED, "search": {"objective": "fewest_chips", "deadline": IN_TIME}},
    "cost": {**PRICED, "search": {"objective": "cost", "deadline": IN_TIME}},
    "foreign": {**DENSE, "cluster": {"num_gpus": 16, "chips": "ascend_910b"}, "stack": "megatron-core"},
    "many": {**DENSE, "search": {"top": 30, "diverse": False}},
    "one": {**DENSE, "search": {"top": 1, "risk": 1}},
    "too big": {**DENSE, "model": "llama2-70b", "cluster": {"num_gpus": 8, "chips": "a800"}},
}
WITH_PLANS = [name for name in SPECS if name != "too big"]
WIDTHS = [80, 100, 140]


def slow_ones_later(names: Iterable[str]) -> list[Any]:
    """The names; those whose search takes long are for `make test-all`."""
    return [full(name) if name in ("cost", "experts", "many", "mixed", "too big") else name for name in names]


@cache
def solved(name: str) -> tuple[Problem, Result]:
    problem = cpsolver.make_problem(SPECS[name])
    return problem, cpsolver.solve(problem)


@cache
def document(name: str) -> dict[str, Any]:
    return result_document(*solved(name))


def screen(problem: Problem, result: Result, width: int, encoding: str = "utf-8") -> list[str]:
    steps = next_steps(problem, result, Given("examples/a-spec-of-mine.yaml"))
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict", newline="")
    Console(file=file, width=width, highlight=False).print(FirstScreen(problem, result, steps))
    file.flush()
    return file.buffer.getvalue().decode(encoding).splitlines()


def flat(lines: list[str]) -> str:
    """The text without the ends of its lines."""
    return " ".join(" ".join(lines).split())


@pytest.mark.parametrize("width", [*WIDTHS, 200])
@pytest.mark.parametrize("name", slow_ones_later(SPECS))
def test_it_is_short_and_narrow(name: str, width: int) -> None:
    lines = screen(*solved(name), width)
    assert len(lines) <= LINES == 24
    assert max(map(cell_len, lines)) <= width
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", slow_ones_later(WITH_PLANS))
def test_its_numbers_are_the_documents(name: str, width: int) -> None:
    problem, result = solved(name)
    text, told = flat(screen(problem, result, width)), document(name)
    place = told["recommendation"]["run_this"]
    plan = told["plans"][place]
    step = plan["step_time_s"]
    low, high = about(plan["step_time_low_s"], step), about(plan["step_time_high_s"], step)
    assert f"{about(step)} s a step ({low}–{high}, 80 % sure)" in text
    assert f"{count(plan['throughput_tokens_per_s_per_gpu'])} tokens/s/GPU · MFU {percent(plan['mfu'])}" in text
    fullest = max(plan["memory_gib"], key=lambda chip: plan["memory_gib"][chip] / plan["capacity_gib"][chip])
    assert f"{plan['memory_gib'][fullest]:.0f} of {plan['capacity_gib'][fullest]:.0f} GiB usable" in text
    assert f"{chance(plan['out_of_memory_probability'])} likely to run out" in text
    assert f"none of {count(told['proof']['considered'])} plans" in text or name == "fewest"
    sizes = plan["strategy"]
    assert f"tp {sizes['tp']} ·" in text
    assert f"· dp {sizes['dp']} ·" in text
    if len(told["plans"]) > 1:
        assert f"Run this plan {place + 1}" in text
    assert f"--plan-rank {place + 1} -o launch" in text


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", slow_ones_later(["dense", "mixed", "experts", "cost"]))
def test_every_plan_has_a_line_with_its_numbers(name: str, width: int) -> None:
    problem, result = solved(name)
    told = document(name)
    lines = screen(problem, result, width)
    table = lines[next(number for number, line in enumerate(lines) if line.split()[:1] == ["#"]) :]
    first_s = told["plans"][0]["step_time_s"]
    for number, plan in enumerate(told["plans"], 1):
        line = table[number]
        assert line.split()[0].lstrip("▸") == str(number)
        assert ("▸" in line) is (number - 1 == told["recommendation"]["run_this"])
        assert f" {about(plan['step_time_s'], first_s)} s " in line
        assert chance(plan["out_of_memory_probability"]) in line


@pytest.mark.full
def test_only_decisions_that_differ_have_a_column() -> None:
    for name in ("dense", "mixed", "experts"):
        problem, result = solved(name)
        lines = screen(problem, result, 140)
        heads = next(line for line in lines if line.split()[:1] == ["#"]).split()
        for size in ("tp", "cp", "pp", "dp", "ep", "mbs", "vpp"):
            values = {getattr(plan.strategy, size) for plan in result.plans}
            assert (size in heads) is (len(values) > 1), (name, size)


def test_roles_of_one_plan_are_told_together() -> None:
    problem, result = solved("dense")
    for named, said in (
        (Recommendation(0, 0, 0, 0), "plan 1, also the fastest, the safest and the simplest"),
        (Recommendation(0, 0, 1, None), "plan 1, also the fastest"),
        (Recommendation(1, 0, 1, None), "plan 2, also the safest: "),
    ):
        text = flat(screen(problem, replace(result, recommendation=named), 140))
        assert f"Run this {said}" in text
        assert ("than the fastest (plan 1)" in text) is (named.run_this != 0)


@pytest.mark.full
def test_what_is_given_up_is_a_number() -> None:
    problem, result = solved("cost")
    told = document("cost")
    place = told["recommendation"]["run_this"]
    first, run = told["plans"][0], told["plans"][place]
    assert place != 0
    lag = run["dollars_per_million_tokens"] / first["dollars_per_million_tokens"] - 1
    text = flat(screen(problem, result, 100))
    risk = chance(first["out_of_memory_probability"])
    assert f"{percent(lag)} dearer than the cheapest (plan 1), which is {risk} likely to run out of memory" in text
    assert f"is more than {percent(lag)} cheaper" in text


@pytest.mark.full
def test_days_dollars_and_the_chance_of_being_in_time() -> None:
    for name in ("cost", "fewest"):
        problem, result = solved(name)
        text = flat(screen(problem, result, 80))
        plan = document(name)["plans"][document(name)["recommendation"]["run_this"]]
        days = plan["days"]
        assert f"{days_text(days['mean'])} days expected" in text
        assert f"{days_text(days['low'])} to {days_text(days['high'])}" in text
        assert total_dollars(plan["dollars"]["mean"]) in text
        assert f"{chance(plan['deadline_probability'])} likely within 4 days" in text
        assert f"{dollars(plan['dollars_per_million_tokens'])} per million tokens" in text


@pytest.mark.full
def test_doubts_are_told() -> None:
    assert "has kernels for nvidia chips" in flat(screen(*solved("foreign"), 80))
    assert "none of the published runs we have had: a pipeline over several chip types" in flat(
        screen(*solved("mixed"), 100)
    )
    problem, result = solved("experts")
    unmeasured = document("experts")["plans"][to_run(result)]["unmeasured"]
    assert ("no published run has had" in flat(screen(problem, result, 100))) is bool(unmeasured)


def test_a_plan_behind_by_next_to_nothing_is_not_called_the_fastest() -> None:
    """2 plans, the second 0.01 % slower and to be run: one is faster, by less than is shown."""
    problem, result = solved("dense")
    first = result.plans[0]
    hair = replace(first, evaluation=replace(first.evaluation, step_time_s=first.evaluation.step_time_s * 1.0001))
    for place, said in ((1, "is more than 0.1 % faster"), (0, "is faster")):
        named = Recommendation(run_this=place, fastest=0, safest=None, simplest=None)
        text = flat(screen(problem, replace(result, plans=(first, hair), recommendation=named), 140))
        assert f"none of {count(result.proof.considered)} plans {said}" in text


def test_the_plan_on_the_fewest_devices_is_not_called_the_fastest() -> None:
    """Another plan of the answer is, on more of them; nor are chances of being the fastest told as of being best."""
    problem, result = solved("fewest")
    text = flat(screen(problem, result, 140))
    assert "the smallest" in text
    assert "the fastest and" not in text
    assert "P(best)" not in text
    assert "fastest" not in [role for plan in shown_result(problem, result) for role in plan.roles]


def test_what_sets_twins_apart_is_said_once() -> None:
    """How to recompute, how many layers and which modules are one thing to a reader."""
    plan = solved("dense")[1].plans[0].strategy
    (group,) = plan.groups
    other = replace(plan, groups=(replace(group, recompute="selective", modules=("core_attn",)),))
    assert twin_words(plan, other) == "recomputation"
    assert twin_words(plan, replace(other, schedule="zb1p")) == "schedule, recomputation"


def test_a_launcher_without_a_stack_of_its_own_says_whose_figures_are_shown() -> None:
    said = "figures of stack deepspeed, as deepspeed has none of its own"
    for more, told in (({}, True), ({"stack": "deepspeed"}, False)):
        problem = cpsolver.make_problem({**DENSE, "launcher": "deepspeed", **more})
        assert problem.launcher is not None
        without = replace(problem, launcher=problem.launcher.model_copy(update={"stack": None}))
        result = cpsolver.solve(problem)
        assert (said in flat(screen(without, result, 140))) is told
        assert said not in flat(screen(problem, result, 140))


@pytest.mark.parametrize("width", WIDTHS)
def test_a_stopped_search_says_what_is_left(width: int) -> None:
    problem, result = solved("dense")
    for stop, said in (("time_limit", "the time limit"), ("interrupted", "the interruption")):
        proof = replace(result.proof, stop=stop, open=1234)  # type: ignore[arg-type]
        plans = tuple(replace(plan, gap=0.123) for plan in result.plans)
        lines = screen(problem, replace(result, status="feasible", plans=plans, proof=proof), width)
        open_still = f"1,234 of {count(proof.considered)} plans were open at {said}"
        assert f"not proven: another plan may be 12.3 % faster than plan 1; {open_still}" in flat(lines)
        assert len(lines) <= LINES
        assert "proven: none" not in flat(lines)
        unbounded = tuple(replace(plan, gap=1.0) for plan in result.plans)
        lines = screen(problem, replace(result, status="feasible", plans=unbounded, proof=proof), width)
        assert f"not proven: how much faster another plan may be is not known yet; {open_still}" in flat(lines)


@pytest.mark.parametrize("width", WIDTHS)
def test_without_a_plan_it_says_why(width: int) -> None:
    problem, result = solved("too big")
    text = flat(screen(problem, result, width))
    assert "Answer There is no plan: proven for all of" in text
    assert "Why - Too little memory: llama2-70b" in text
    assert "apss-cp explain examples/a-spec-of-mine.yaml" in text
    assert "export" not in text
    reasons = tuple(f"reason {number} " + "with many words " * 20 for number in range(20))
    lines = screen(problem, replace(result, reasons=reasons), width)
    assert len(lines) <= LINES
    assert "- reason 0 with" in flat(lines)
    assert "explain" in flat(lines)


def test_without_a_plan_in_time_a_longer_time_is_next() -> None:
    problem, result = solved("too big")
    proof = replace(result.proof, stop="time_limit", open=3)
    lines = screen(problem.with_(search={"time_limit_s": 2.0}), Result("unknown", (), proof), 80)
    assert "No plan found by the time limit; 3 candidates of" in flat(lines)
    assert "apss-cp solve examples/a-spec-of-mine.yaml --time-limit 20" in flat(lines)


@pytest.mark.full
def test_many_plans_are_counted_and_those_with_a_role_stay() -> None:
    problem, result = solved("many")
    lines = screen(problem, result, 80)
    table = lines[next(number for number, line in enumerate(lines) if line.split()[:1] == ["#"]) :]
    more = next(line for line in table if "more: --full" in line)
    rows = table[1 : table.index(more)]
    assert f"… {len(result.plans) - len(rows)} more: --full" in more
    shown = {int(row.split()[0].lstrip("▸")) for row in rows}
    assert {place + 1 for place, plan in enumerate(shown_result(problem, result)) if plan.roles} <= shown


@pytest.mark.parametrize("name", slow_ones_later(SPECS))
def test_a_terminal_without_utf_8_gets_signs_that_it_has(name: str) -> None:
    lines = screen(*solved(name), 80, "ascii")  # anything else is an error
    assert len(lines) <= LINES
    assert not (name != "too big" and "#" not in flat(lines))


@pytest.mark.parametrize("name", slow_ones_later(WITH_PLANS))
def test_the_parts_of_the_bar_are_the_step(name: str) -> None:
    _, result = solved(name)
    for plan in result.plans:
        assert sum(shares(plan.evaluation).values()) == pytest.approx(1.0)


def coloured(problem: Problem, plan: Plan) -> list[str]:
    (shown,) = shown_result(problem, Result("optimal", (plan,), solved("dense")[1].proof))
    lines = memory_lines(problem, shown, 70, True, 0.05)
    return [str(line.spans[0].style) for line in lines]


def test_colours_say_how_good_it_is() -> None:
    problem, result = solved("dense")
    plan = result.plans[0]
    assert coloured(problem, plan) == [GOOD]
    first, *others = plan.evaluation.stages
    for share, colour in ((0.999, DOUBTFUL), (1.01, WRONG)):
        more = share * first.capacity_bytes - first.memory.total
        memory = replace(first.memory, activations=first.memory.activations + more)
        full = replace(plan.evaluation, stages=(replace(first, memory=memory), *others))
        assert coloured(problem, replace(plan, evaluation=full)) == [colour]


def rendered(problem: Problem, result: Result, *parts: Any, width: int = 100) -> str:
    text = io.StringIO()
    Console(file=text, width=width, highlight=False).print(answer(problem, result, parts))
    return text.getvalue()


SECTIONS: dict[str, tuple[str, ...]] = {
    "time": ("Where the time goes", "Where compute goes", "The pipeline over time"),
    "memory": ("Where the memory goes",),
    "proof": ("Proof",),
    "evidence": ("Evidence: the published runs nearest to it", "What this is"),
    "legend": ("What the words mean",),
}


@pytest.mark.parametrize("asked", [(), *((name,) for name in SECTIONS), ("proof", "time"), tuple(SECTIONS)])
def test_each_flag_adds_its_sections_and_no_other(asked: tuple[str, ...]) -> None:
    text = rendered(*solved("mixed"), *asked)
    assert text.startswith(rendered(*solved("mixed")).rstrip("\n"))
    for name, titles in SECTIONS.items():
        for title in titles:
            assert (f"\n{title}" in text) is (name in asked), title


def test_sections_are_of_the_plan_to_run() -> None:
    problem, result = solved("mixed")
    other = replace(result, recommendation=Recommendation(1, 0, None, None))
    assert "Where the memory goes: GiB per GPU of plan 2" in rendered(problem, other, "memory")
    whole = rendered(problem, other, "full")
    assert "Run this, plan 2: " in whole
    assert "Where the time goes: a step of plan 2" in whole


def test_the_whole_report_has_every_section_and_who_is_recommended_as_what() -> None:
    text = rendered(*solved("mixed"), "full", width=140)
    for title in ("Plans", *(title for name, titles in SECTIONS.items() if name != "legend" for title in titles)):
        assert f"\n{title}" in text
    assert "recommended as" in text
    assert "run this, fastest" in text


def test_the_legend_has_the_words_that_are_on_the_screen() -> None:
    dense, experts = (rendered(*solved(name), "legend") for name in ("dense", "experts"))
    for text, there in ((dense, False), (experts, True)):
        words = text.partition("What the words mean")[2]
        assert ("expert parallel size" in words) is there
        assert "tensor parallel size: ranks that split every layer's matrices" in words
        assert "P(OOM)" in words


def test_a_plan_that_is_added_counts_neither_as_one_of_the_best_nor_in_the_proof() -> None:
    problem, result = solved("mixed")
    best = sum(not plan.added for plan in result.plans)
    assert best < len(result.plans)
    text = flat(rendered(problem, result, "full").splitlines())
    assert f"Proven: the {best} fastest of" in text
    assert f"slower than plan {best}" in text
