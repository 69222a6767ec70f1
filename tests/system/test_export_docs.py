"""docs/export.md says what is true: its targets, its table of worlds, its example of a refusal."""

from __future__ import annotations

from cpsolver.doors.export.launch import EXPORTERS
from cpsolver.doors.export.report import members
from cpsolver.problem.ranks import RankMap
from tests.support.checkout import ROOT
from tests.support.problems import strategy_of

PAGE = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
WORLDS = ((64, 8), (96, 4), (128, 8), (160, 4), (192, 8), (224, 4))
"""Ranks and stages; tp is 8."""


def world_table() -> str:
    lines = [
        "| ranks | tp × pp × dp | tp groups | dp groups | pp groups | nodes of stage 1 |",
        "|---|---|---|---|---|---|",
    ]
    for world, pp in WORLDS:
        dp = world // 8 // pp
        found = RankMap(strategy_of("x:" + ",".join(["1"] * pp), tp=8, dp=dp), 8, experts=False, tied=False)
        shown = []
        for kind in ("tp", "dp", "pp"):
            groups = found.groups[kind].tolist()
            first = " ".join(f"[{members(group)}]" for group in groups[:2])
            shown.append(f"{first} … {len(groups)} in all")
        nodes = sorted({place.node for place in found.places() if place.pp == 1})
        lines.append(f"| {world} | 8 × {pp} × {dp} | {' | '.join(shown)} | {members(nodes)} |")
    return "\n".join(lines)


def test_the_worlds() -> None:
    assert world_table() in PAGE


def test_every_target_has_its_row() -> None:
    for target in EXPORTERS:
        assert f"| `{target}` |" in PAGE, target
