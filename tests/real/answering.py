"""What the readers that run inside a framework's environment share: cases from stdin, an answer each on stdout."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable
from typing import Any


def answer(prepare: Callable[[], object], read: Callable[[Any], Any]) -> None:
    """Answer stdin's cases, with the error where there is one. What a framework prints is no part of it."""
    cases = json.load(sys.stdin)
    with contextlib.redirect_stdout(io.StringIO()):
        prepare()
        answers = [_answered(read, case) for case in cases]
    json.dump(answers, sys.stdout, default=str)


def _answered(read: Callable[[Any], Any], case: Any) -> Any:
    try:
        return read(case)
    except (Exception, SystemExit) as error:  # an argument parser leaves by SystemExit
        return {"error": f"{type(error).__name__}: {error}"}
