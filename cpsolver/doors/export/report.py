"""Launch material, refusals and rank maps for people and for machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from itertools import groupby, pairwise
from typing import Any

from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from cpsolver.doors.export.judge import Nearest, in_words
from cpsolver.doors.export.launch import Launch
from cpsolver.doors.export.script import grouped, shell_lines, span
from cpsolver.inputs.errors import one_line
from cpsolver.inputs.language import say
from cpsolver.inputs.text import percent, runs, seconds
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.ranks import (
    MEANINGS,
    Border,
    Ints,
    MeshMap,
    MeshRanks,
    NodeBlock,
    RankMap,
    levels_crossed,
    node_blocks,
)
from cpsolver.problem.strategy_file import strategy_to_dict

_FIRST, _MEMBERS, _LINE = 4, 8, 44
"""Groups of a kind that a table shows, ranks of a group, and the columns that all of these take."""


def launch_text(launch: Launch) -> str:
    """The whole launch material as text: arguments one a line, environment, notes, the other files."""
    parts = [f"# {launch.target}"]
    if launch.environment:
        parts += [f"# {say('environment')}", *(f"export {name}={value}" for name, value in launch.environment.items())]
    if not _in_files(launch):
        parts += [f"# {say('arguments')}", *_lines(launch)]
    parts += [f"# {say('notes')}", *(f"# - {one_line(note)}" for note in launch.notes)]
    for name, text in launch.files.items():
        parts += [f"# ---- {name}", text.rstrip()]
    return "\n".join(parts)


def _in_files(launch: Launch) -> bool:
    """A file has the arguments already, but for those that name a file beside it."""
    options = (option for option in grouped(launch.arguments) if launch.files.keys().isdisjoint(option))
    lines = set(shell_lines(options))
    return any(lines <= {line.strip() for line in text.splitlines()} for text in launch.files.values())


def _lines(launch: Launch) -> list[str]:
    options = list(shell_lines(grouped(launch.arguments)))
    if not any(line.startswith("--") for line in options):
        return list(shell_lines((token,) for token in launch.arguments))
    return [f"{line} \\" for line in options[:-1]] + options[-1:]


def launch_document(problem: Problem, strategy: Strategy, launch: Launch) -> dict[str, Any]:
    """What `export --json` prints."""
    return {
        "status": "exported",
        "target": launch.target,
        "arguments": list(launch.arguments),
        "environment": dict(launch.environment),
        "files": dict(launch.files),
        "main": launch.main,
        "notes": list(launch.notes),
        "nodes": [_block(block) for block in node_blocks(problem, strategy)],
        "strategy": strategy_to_dict(strategy),
    }


def refusal_document(target: str, strategy: Strategy, reasons: tuple[str, ...], near: Nearest | None) -> dict[str, Any]:
    """The same where the target cannot run the plan."""
    return {
        "status": "refused",
        "target": target,
        "reasons": list(reasons),
        "strategy": strategy_to_dict(strategy),
        "nearest": near
        and {
            "strategy": strategy_to_dict(near.strategy),
            "arguments": list(near.launch.arguments),
            "let_go": list(near.let_go),
            "changed": {name: list(pair) for name, pair in near.changed.items()},
            "step_time_s": near.step_time_s,
            "refused_step_time_s": near.refused_step_time_s,
            "slower": near.slower,
        },
    }


def refusal_text(target: str, reasons: tuple[str, ...], near: Nearest | None) -> str:
    """A refusal in words, with the nearest plan that the target runs."""
    lines = [say("{target} cannot run this plan:", target=target), *(f"  - {say(reason)}" for reason in reasons)]
    if near is None:
        lines.append(say("No plan for this spec is one that it runs: change the spec."))
        return "\n".join(lines)
    share = percent(abs(near.slower))
    nearest = say(
        "The nearest plan that it runs ({own} a step against {refused}, {much}) differs in:",
        own=seconds(near.step_time_s),
        refused=seconds(near.refused_step_time_s),
        much=say("{slower} slower", slower=share) if near.slower >= 0 else say("{slower} faster", slower=share),
    )
    lines += [nearest, *(f"  - {line}" for line in in_words(near.changed))]
    lines.append(say("Left free to find it: {groups}.", groups=say(", ").join(map(say, near.let_go))))
    return "\n".join(lines)


def ranks_report(problem: Problem, ranks: RankMap | MeshMap) -> RenderableType:
    """The rank map: sizes, groups by kind, nodes in order. Big groups and many groups are shortened.

    Where degrees differ by chip type the groups come mesh by mesh, then those of all meshes and who sends to whom.
    """
    name, size, node = problem.model.name, ranks.size, ranks.node
    head = say("{name} on {size:,} devices in nodes of {node}", name=name, size=size, node=node)
    order = Text(say("rank order tp-cp-ep-dp-pp: tp varies fastest, pp slowest"), style="dim")
    levels: list[RenderableType] = []
    if problem.network is not None:
        levels += [*problem.network.words(supply.chip for supply in problem.supplies), ""]
    nodes = _nodes_table(problem, ranks.strategy)

    def table(groups: Mapping[str, Ints]) -> Table:
        return _groups_table(groups, levels_crossed(problem, ranks.strategy, groups))

    if isinstance(ranks, RankMap):
        heading = Text(say("{head}: {sizes}", head=head, sizes=_sizes(ranks)))
        return Group(heading, order, "", *levels, table(ranks.groups), "", nodes)
    parts: list[RenderableType] = []
    for mesh in ranks.meshes:
        of_mesh = say(
            "{chip}, ranks {ranks}, stages {stages}: {sizes}",
            chip=mesh.chip,
            ranks=span(mesh.ranks),
            stages=span(mesh.stages),
            sizes=_sizes(mesh.own),
        )
        parts += [Text(of_mesh), table(mesh.groups), ""]
    parts += [Text(say("all meshes, a group for every way through them")), table(ranks.groups), ""]
    heading = Text(say("{head}, {meshes} meshes", head=head, meshes=len(ranks.meshes)))
    return Group(heading, order, "", *levels, *parts, _borders_table(ranks), "", nodes)


def _sizes(ranks: RankMap) -> str:
    s = ranks.strategy
    sizes = f"tp {s.tp}, cp {s.cp}, dp {s.dp}, pp {s.pp}"
    experts = f"etp {s.etp}, ep {s.ep}, dp {ranks.expert_replicas}"
    return say("{sizes}; experts: {experts}", sizes=sizes, experts=experts) if ranks.experts else sizes


def _groups_table(kinds: Mapping[str, Ints], crossed: Mapping[str, Mapping[str, int]]) -> Table:
    """The kinds with more than a rank a group, `dp_cp` where it is more than `dp`; `crossed`: their levels, if any."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    names = say("group, of, many, ranks").split(", ")
    sides: tuple[JustifyMethod, ...] = ("left", "right", "right", "left", "left")
    for name, side in zip([*names, *[say("goes through")] * bool(crossed)], sides, strict=False):
        table.add_column(name, justify=side, overflow="fold")
    for kind, groups in kinds.items():
        if groups.shape[1] > 1 and (kind != "dp_cp" or groups.shape[1] > kinds["dp"].shape[1]):
            through = [_through(crossed[kind])] if crossed else []
            table.add_row(kind, f"{groups.shape[1]:,}", f"{len(groups):,}", _shown(groups.tolist()), *through)
    return table


def _borders_table(ranks: MeshMap) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in (say("border"), say("each rank sends to")):
        table.add_column(name, overflow="fold")
    for border in ranks.borders:
        between = f"{ranks.meshes[border.before].chip} -> {ranks.meshes[border.after].chip}"
        sends = [f"{sender} -> {members(to)}" for sender, to in receivers(border).items()]
        more = say(" ... {number:,} more", number=len(sends) - _FIRST) if len(sends) > _FIRST else ""
        table.add_row(between, "; ".join(sends[:_FIRST]) + more)
    return table


def receivers(border: Border) -> dict[int, list[int]]:
    """Each rank of the border's last stage, and the ranks of the next mesh that it sends to."""
    found: dict[int, list[int]] = {}
    for sender, receiver in border.pairs.tolist():
        found.setdefault(sender, []).append(receiver)
    return found


def _through(counts: Mapping[str, int]) -> str:
    """Levels that groups go through, with how many of the groups where they are several."""
    if len(counts) == 1:
        return say(next(iter(counts)))
    return ", ".join(f"{say(name)} ({number:,})" for name, number in counts.items())


def _shown(groups: list[list[int]]) -> str:
    """The first groups, as many as a line holds."""
    text = ""
    for number, group in enumerate(groups[:_FIRST]):
        more = f"[{members(group)}]"
        if number and len(text) + len(more) > _LINE:
            break
        text += more if not number else f" {more}"
    left = len(groups) - text.count("[")
    return text + (say(" ... {number:,} more", number=left) if left else "")


def members(ranks: list[int]) -> str:
    """Ranks of a group, shortened: `0-7`, `0-56 by 8`, `0 4 8 12`, `0-7 24-31`, `0 1 16 17 ... 112 113`."""
    steps = {later - earlier for earlier, later in pairwise(ranks)}
    if len(ranks) > 4 and len(steps) == 1 and steps != {1}:
        return say("{first}-{last} by {step}", first=ranks[0], last=ranks[-1], step=steps.pop())
    pieces: list[str] = []
    for _, run in groupby(enumerate(ranks), key=lambda pair: pair[1] - pair[0]):
        same = [rank for _, rank in run]
        pieces += [f"{same[0]}-{same[-1]}"] if len(same) > 2 else map(str, same)
    if len(pieces) > _MEMBERS:
        pieces = [*pieces[:4], "...", *pieces[-2:]]
    return " ".join(pieces)


def _nodes_table(problem: Problem, s: Strategy) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in (say("nodes"), say("chip"), say("stages"), say("layers a stage"), say("ranks")):
        table.add_column(name, overflow="fold")
    blocks = node_blocks(problem, s)
    for block in blocks[:16]:
        layers = runs([s.layers[stage] for stage in block.stages])
        table.add_row(span(block.nodes), block.chip, span(block.stages), layers, span(block.ranks))
    if len(blocks) > 16:
        table.add_row(say("... {number:,} more", number=len(blocks) - 16))
    return table


def ranks_document(problem: Problem, ranks: RankMap | MeshMap) -> dict[str, Any]:
    """What `ranks --json` prints: every group and every rank.

    Where degrees differ by chip type `groups` are those that cross meshes, `meshes` have the others, and `borders` who
    sends to whom.
    """
    meshes = ranks.meshes if isinstance(ranks, MeshMap) else ()
    kinds = [*ranks.groups, *dict.fromkeys(kind for mesh in meshes for kind in mesh.groups)]
    return {
        "world_size": ranks.size,
        "gpus_per_node": ranks.node,
        "order": "tp-cp-ep-dp-pp",
        "meanings": {kind: MEANINGS[kind] for kind in kinds},
        "groups": {kind: groups.tolist() for kind, groups in ranks.groups.items()},
        **(_meshes_document(problem, ranks) if isinstance(ranks, MeshMap) else {}),
        **({"levels_crossed": levels_crossed(problem, ranks.strategy, ranks.groups)} if problem.network else {}),
        "nodes": [_block(block) for block in node_blocks(problem, ranks.strategy)],
        "ranks": [asdict(place) for place in ranks.places()],
        "strategy": strategy_to_dict(ranks.strategy),
    }


def _meshes_document(problem: Problem, ranks: MeshMap) -> dict[str, Any]:
    sides = ((border.before, border.after, receivers(border)) for border in ranks.borders)
    return {
        "meshes": [_mesh(problem, ranks.strategy, mesh) for mesh in ranks.meshes],
        "borders": [
            {"before": before, "after": after, "sends": [{"rank": rank, "to": to} for rank, to in sends.items()]}
            for before, after, sends in sides
        ],
    }


def _mesh(problem: Problem, s: Strategy, mesh: MeshRanks) -> dict[str, Any]:
    return {
        "chip": mesh.chip,
        **vars(mesh.mesh),
        "stages": list(mesh.stages),
        "ranks": list(mesh.ranks),
        "groups": {kind: groups.tolist() for kind, groups in mesh.groups.items()},
        **({"levels_crossed": levels_crossed(problem, s, mesh.groups)} if problem.network else {}),
    }


def _block(block: NodeBlock) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, range) else value for name, value in vars(block).items()}
