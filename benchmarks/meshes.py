"""Writes docs/degrees-by-chip.md: what degrees by chip type gain on some clusters, and what finding them takes.

python -m benchmarks.meshes   (some minutes)
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.solve_time import Run, run
from benchmarks.workloads import FIVE, spec_of

OUTPUT = Path(__file__).parents[1] / "docs" / "degrees-by-chip.md"
PROSE = Path(__file__).parent / "meshes_prose.md"
"""What is said around the table, by hand: what comes before it, and after a line `---` what comes behind."""

_FOUR = dict.fromkeys(("a100", "a800", "h100", "h800"), 64)
CASES: dict[str, tuple[dict[str, Any], str | None]] = {
    "Llama 2 70B, 256 of 128 A800 + 160 H800": (
        spec_of("llama2-70b", 256, {"a800": 128, "h800": 160}, 512, 4096),
        None,
    ),
    "the same, as FlagScale runs it": (spec_of("llama2-70b", 256, {"a800": 128, "h800": 160}, 512, 4096), "flagscale"),
    "Llama 2 70B, 512 A800 + 512 H800": (spec_of("llama2-70b", 1024, {"a800": 512, "h800": 512}, 512, 4096), None),
    "the same for FlagScale": (spec_of("llama2-70b", 1024, {"a800": 512, "h800": 512}, 512, 4096), "flagscale"),
    "Llama 3.1 70B, 64 each of A100, A800, H100, H800": (spec_of("llama3.1-70b", 256, _FOUR, 512, 4096), None),
    "the same four for FlagScale": (spec_of("llama3.1-70b", 256, _FOUR, 512, 4096), "flagscale"),
    "1.8T, 16,384 each of five types, all used, FlagScale": (
        spec_of("llama-1800b", 81_920, FIVE, 65_536, 4096),
        "flagscale",
    ),
    "1.8T, any 65,536 of these, FlagScale": (spec_of("llama-1800b", 65_536, FIVE, 65_536, 4096), "flagscale"),
}
"""Name -> spec, and the launcher that must run the plan."""


def main() -> None:
    """Solve, compare, write."""
    before, after = PROSE.read_text(encoding="utf-8").split("\n---\n")
    rows = list(table())
    OUTPUT.write_text("\n".join([before.strip(), "", *rows, "", after.strip()]) + "\n", encoding="utf-8")
    print(f"wrote {OUTPUT.name}")


def table() -> Iterator[str]:
    """A row a case, as it is solved."""
    yield "| cluster | equal degrees | equal, vpp 1 | own degrees, vpp 1 | gain | CPU s, equal | CPU s, own |"
    yield "|---|---|---|---|---|---|---|"
    for name, (spec, launcher) in CASES.items():
        free = _solved(spec, launcher, False, {})
        plain = _solved(spec, launcher, False, {"vpp": 1})
        own = _solved(spec, launcher, True, {"vpp": 1})
        steps = [one.step_time_s or float("nan") for one in (free, plain, own)]
        gain = steps[1] / steps[2] - 1
        cells = [*(f"{step:.3f} s" for step in steps), f"{100 * gain:+.1f} %", f"{plain.cpu_s:.1f}", f"{own.cpu_s:.1f}"]
        row = f"| {name} | {' | '.join(cells)} |"
        print(row, flush=True)
        yield row


def _solved(spec: dict[str, Any], launcher: str | None, own: bool, pin: dict[str, int]) -> Run:
    search = {**spec["search"], "degrees_by_chip": own, "pin": pin, "risk": 1}
    solved = run("", {**spec, "search": search, "launcher": launcher}, 1)
    assert solved.proof["complete"], spec
    return solved


if __name__ == "__main__":
    main()
