"""Frameworks' own code in an interpreter of its own, with what it imports named by variables of the environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

BRIDGE = ("MEGATRON_LM", "MEGATRON_BRIDGE")
"""What Megatron-Bridge imports from."""


def read(reader: Path, paths: tuple[str, ...], cases: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """A reader's answers on cases, with folders named by these variables to import from; without them none is made."""
    folders = [os.environ.get(name) for name in paths]
    if None in folders:
        pytest.skip(f"name folders to import from by {', '.join(paths)}")
    with TemporaryDirectory() as folder:  # some write logs where they run
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(reader)],
            input=json.dumps(list(cases)),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [*folders, os.environ.get("PYTHONPATH")]))},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found
