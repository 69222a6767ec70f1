"""What bash makes of a training script, compared with what import reads in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any


def compared(outcomes: list[Any], folder: Path) -> Iterator[str]:
    """Lines that say how many agree, and where others differ."""
    yield ""
