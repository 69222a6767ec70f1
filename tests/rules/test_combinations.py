"""docs/space.md says what is so: the seed's 812 combinations beside ours, what each launcher runs, every rule."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cpsolver.problem.load import load_problem
from cpsolver.profiles.framework import Framework, launcher_names, load_launcher
from cpsolver.profiles.stack import load_stack, stack_names
from cpsolver.rules import RULES
from cpsolver.search.space import Space, divisors, enumerate_rows
from cpsolver.spec.search import Decisions
from tests.support.checkout import ROOT
from tests.support.problems import chip_spec, model_spec, problem_of

PAGE = (ROOT / "docs" / "space.md").read_text(encoding="utf-8")
GPUS, LAYERS, BATCH = 32, 80, 512
Combination = tuple[int, int, int, bool, int, int]
"""pp, tp, dp, sp, vp, mbs."""


def of_rows(space: Space) -> set[Combination]:
    names = ("pp", "tp", "dp", "sequence_parallel", "vpp", "mbs")
    return set(zip(*(getattr(space.rows, name).tolist() for name in names), strict=True))


def seeds() -> set[Combination]:
    """As the seed may have counted: 812."""
    return {
        (pp, tp, GPUS // (pp * tp), sp, vp, mbs)
        for pp in (1, 2, 4, 8, 16)
        for tp in (1, 2, 4, 8)
        if GPUS % (pp * tp) == 0
        for sp in (False, True)
        for vp in (divisors(LAYERS // pp) if pp > 2 else [1])
        for mbs in divisors(BATCH * pp * tp // GPUS)
    }


def lines() -> list[tuple[str, int]]:
    """The difference, line by line; no combination is on two of them."""
    ours, theirs = of_rows(space()), seeds()
    lost, more = theirs - ours, ours - theirs
    no_sp = {one for one in lost if one[3] and one[1] == 1}
    groups = {one for one in lost - no_sp if one[4] > 1 and BATCH // one[2] // one[5] % one[0]}
    assert lost == no_sp | groups
    beside = {one for one in more if one[0] * one[1] * one[2] < GPUS}
    across = {one for one in more - beside if one[1] > 8}
    uneven = {one for one in more - beside - across if LAYERS % (one[0] * one[4])}
    rest = more - beside - across - uneven
    assert {one[0] for one in rest} == {2}
    assert all(one[4] > 1 for one in rest)
    return [
        ("MindSpeed's 812, by the convention above", len(theirs)),
        ("SP with tp 1: there is nothing to split (`sequence_parallel`)", -len(no_sp)),
        ("interleaving whose microbatches are no multiple of pp (`interleaving`)", -len(groups)),
        ("interleaving with pp 2, which Megatron's schedule has since p2p overlap", len(rest)),
        ("stages of unequal layers, embedding or head in the place of one: pp 32, other vp", len(uneven)),
        ("tp 16 and 32: beyond a node", len(across)),
        ("context parallelism beside: tp × pp × dp is 32 / cp", len(beside)),
        ("**ours**", len(ours)),
    ]


def space() -> Space:
    return enumerate_rows(load_problem(ROOT / "examples" / "llama-65b-ascend-32.yaml"))


def table() -> str:
    first, *middle, last = ((what, count) for what, count in lines())
    changes = [(what, f"{count:+,}".replace("-", "−")) for what, count in middle]
    rows = [("", "combinations"), ("---", "---"), (first[0], str(first[1])), *changes, (last[0], f"{last[1]:,}")]
    return (
        "\n".join(f"| {what} | {count} |" for what, count in rows)
        .replace("|  |", "| |")
        .replace("| --- | --- |", "|---|---|")
    )


def between(mark: str) -> str:
    found = re.search(rf"<!-- {mark} -->(.*?)<!-- /{mark} -->", PAGE, flags=re.DOTALL)
    assert found
    return found.group(1).strip()


def test_the_difference_to_812_is_accounted_for_and_stands_on_the_page() -> None:
    first, *middle, last = (count for _, count in lines())
    assert first == 812
    assert first + sum(middle) == last == space().combinations
    assert between("812") == table()
    assert f"reports **{last:,}**" in PAGE


@pytest.mark.parametrize(
    "given",
    [
        {"gpus": 8, "node": 4},
        {"gpus": 8, "node": 4, "pin": {"sequence_parallel": True}},
        {"gpus": 6, "node": 3, "batch": 6, "model": model_spec(layers=6, heads=6, kv_heads=3, hidden=768)},
        {"gpus": 8, "node": 4, "forbid": {"cp": 1}},
        {"gpus": 4, "node": 4, "pin": {"tp": 3}},
    ],
)
def test_combinations_are_the_distinct_ones_of_the_rows(given: dict[str, Any]) -> None:
    found = enumerate_rows(problem_of({"x": chip_spec()}, **given))
    assert found.combinations == len(of_rows(found))
    assert isinstance(found.combinations, int)
    assert np.all(found.rows_of >= 0)


# The page's other tables.


def zero(kinds: tuple[str, ...]) -> str:
    depth = ("optimizer", "gradients", "parameters")
    return ", ".join(str(1 + depth.index(kind)) for kind in kinds) or "–"


APART: dict[str, tuple[str, Callable[[Framework], object]]] = {
    "context_pipeline": ("cp > 1 with a pipeline", lambda one: one.pipeline),
    "plain_context": ("cp > 1 without the distributed optimizer", lambda one: one.context_parallel),
    "context_groups": ("a sharding group of one context-parallel group", lambda one: one.sharding_groups),
    "ulysses_tensor": ("all-to-all (`a2a`) with tp > 1", lambda one: "a2a" in one.context_parallel),
    "ulysses_groups": ("all-to-all with a sharding group", lambda one: one.sharding_groups),
    "mtp_parallel": ("multi-token prediction with pp > 1 or cp > 1", lambda one: True),
    "plain_beside": ("whole states on several replicas with pp > 1 or ep > 1", lambda one: True),
    "short_interleaving": ("vpp > 1 with pp 2, or below two microbatches for each stage", lambda one: one.interleaving),
    "experts_split_tensor": ("ep > 1 that is no multiple of tp", lambda one: one.expert_parallel),
    "few_microbatches": ("fewer microbatches than stages (vpp 1)", lambda one: one.pipeline),
    "recompute_by_stage_interleaving": ("recomputation by stage with vpp > 1", lambda one: one.recompute_per_chip),
    "recompute_by_stage_context": ("recomputation by stage with cp > 1", lambda one: one.recompute_per_chip),
    "recompute_by_stage_groups": ("recomputation by stage with a sharding group", lambda one: one.recompute_per_chip),
    "uneven_groups": ("any layers by stage with a sharding group", lambda one: one.uneven_layers == "any"),
    "uneven_mtp": ("any layers by stage with multi-token prediction", lambda one: one.uneven_layers == "any"),
    "uneven_interleaved": ("any layers by stage with vpp > 1", lambda one: one.uneven_layers == "any"),
    "uneven_context": ("any layers by stage with cp > 1", lambda one: one.uneven_layers == "any"),
    "mixed_chips_interleaving": ("mixed chips with vpp > 1", lambda one: one.interleaving and one.mixed_chips),
    "mixed_chips_context": ("mixed chips with cp > 1", lambda one: one.mixed_chips),
    "mixed_chips_groups": ("mixed chips with a sharding group", lambda one: one.mixed_chips),
}
"""What does not go together -> in words, and whose profiles that concerns."""
FLASH = {(False, True): "on or off", (False,): "off", (True,): "on"}


def apart() -> str:
    profiles = [load_launcher(name) for name in launcher_names()]
    lines = ["| not together | launchers |", "|---|---|"]
    for fact, (text, concerns) in APART.items():
        found = [f"`{one.name}`" for one in profiles if concerns(one) and getattr(one, fact) in (False, "first_last")]
        lines.append(f"| {text} | {', '.join(found)} |")
    return "\n".join(lines)


def row(one: Framework) -> str:
    layers = {"any": "any", "first_last": "first and last", "none": "equal"}[one.uneven_layers]
    experts = {"one": "ep", "without_bias": "ep, etp", "any": "ep, etp"}[one.expert_tensor_parallel]
    experts += ", overlap" * one.expert_overlap
    cells = (
        f"`{one.name}`",
        ("tp, sp" if one.sequence_parallel else "tp") if one.tensor_parallel else "–",
        ("pp, vpp" if one.interleaving else "pp") if one.pipeline else "–",
        layers if one.pipeline else "–",
        ", ".join(one.context_parallel) or "–",
        experts if one.expert_parallel else "–",
        zero(one.sharded) + (f" (groups: {zero(one.sharding_groups)})" if one.sharding_groups else ""),
        zero(one.sharded_pipeline) if one.pipeline else "–",
        ", ".join(one.recompute),
        "yes" if one.mixed_chips else "no",
    )
    return f"| {' | '.join(cells)} |"


HEADS = ("tensor", "pipeline", "layers", "context", "experts", "ZeRO, pp 1", "pp > 1", "recomputation", "mixed chips")


def launchers() -> str:
    told = [load_launcher(name) for name in launcher_names()]
    head = f"| {' | '.join(('launcher', *HEADS, 'flash', 'precision'))} |"
    more = [f" {FLASH[one.flash_attention]} | {', '.join(one.precisions)} |" for one in told]
    lines = [row(one) + cells for one, cells in zip(told, more, strict=True)]
    return "\n".join([head, "|" + "---|" * 12, *lines])


def stacks() -> str:
    told = [runs for name in stack_names() if (runs := load_stack(name).runs)]
    more = [f" {'yes' if runs.plain_weights else 'no'} | {FLASH[runs.flash_attention]} |" for runs in told]
    head = f"| {' | '.join(('stack', *HEADS, 'plain replicas', 'flash'))} |"
    lines = [row(runs) + cells for runs, cells in zip(told, more, strict=True)]
    return "\n".join([head, "|" + "---|" * 12, *lines])


def test_the_page_says_what_each_launcher_runs() -> None:
    assert between("launchers") == launchers()
    assert between("apart") == apart()
    assert all(line.endswith("` |") for line in apart().splitlines()[2:])


def test_the_page_says_what_each_stack_with_facts_runs() -> None:
    assert between("stacks") == stacks()


def test_the_page_names_every_rule_and_every_decision() -> None:
    assert [name for name in (*RULES, *Decisions.model_fields) if f"`{name}`" not in PAGE] == []
