"""Writes how far published runs reach: profiles/calibrations/measured.yaml.

    python -m benchmarks.measured_ranges

To be run after a change of the table of published runs; a test compares the two.
"""

from __future__ import annotations

from cpsolver.evidence.reach import MEASURED, QUANTITIES
from cpsolver.evidence.runs.ranges import ranges_of
from cpsolver.evidence.runs.table import PUBLISHED, read_runs

HEAD = """\
# How far the published runs reach that have a step time, by kind of model: the most of each, of cp_tokens the least
# (cpsolver/evidence/reach.py). Written by benchmarks/measured_ranges.py: do not edit by hand.
"""


def written() -> str:
    """The text of the file."""
    lines = [HEAD]
    for kind, reached in ranges_of(read_runs(PUBLISHED).runs).items():
        lines.append(f"{kind}:\n")
        lines += [f"  {name}: {reached[name]:.0f}\n" for name in QUANTITIES if name in reached]
    return "".join(lines)


if __name__ == "__main__":
    MEASURED.write_text(written(), encoding="utf-8")
