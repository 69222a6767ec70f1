"""Writes docs/answer.schema.json, the JSON Schema of answers, from the code: `python -m tools.answer_schema`.

A test checks that the file is what this writes.
"""

from __future__ import annotations

import json
from pathlib import Path

from cpsolver import answer_schema

TARGET = Path(__file__).parent.parent / "docs" / "answer.schema.json"


def text() -> str:
    """The whole file."""
    return json.dumps(answer_schema(), indent=2) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
