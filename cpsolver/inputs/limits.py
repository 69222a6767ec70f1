"""The most that is read and listed: beyond it an input is refused at once, by its size. SECURITY.md lists them.

Values are our choice: far above what anybody writes, and so low that what is below them is read in seconds. Those of
a model (layers, sizes) stand in `models_zoo.consistency`, those of a cluster and a step in `cpsolver.spec.training`.
"""

from __future__ import annotations

MOST_TEXT_BYTES = 64 * 2**20
"""Of any text that is read whole: tables of runs, mostly."""
MOST_DOCUMENT_BYTES = 4 * 2**20
"""Of a YAML or JSON document: specs, plans, sweeps, what `solve --json` prints."""
MOST_VALUES = 200_000
"""Values of a document, those that aliases repeat included."""
MOST_YAML_PARTS = 50_000
"""Line ends and commas of a document in YAML proper, whose reader takes a second for ten thousand."""
MOST_NESTED = 200
"""Brackets and braces open at once: the reader takes more than a second for a thousand, and nobody nests ten."""
MOST_DIGITS = 1000
"""Of a whole number, in any base: Python itself writes no number of more than 4,300 decimal digits."""
MOST_SCRIPT_BYTES = 2**20
"""Of a training script."""
MOST_SCRIPT_LINE = 2**17
"""Characters of a script's line: what Linux takes as one argument (MAX_ARG_STRLEN, linux/binfmts.h)."""
MOST_CELLS = 100_000
"""Cells of a sweep, and values of a range in one."""
