"""The entrance of the installed command: Ctrl-C ends it from the first import on, and is never lost."""

from __future__ import annotations

import os
import signal
import sys
from _thread import interrupt_main
from collections.abc import Sequence
from pathlib import Path
from threading import Timer
from typing import Any

_SOON_S = 0.05
"""Later than what cannot raise a KeyboardInterrupt has ended, most often."""


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line, or these arguments.

    Until it is loaded Ctrl-C ends the process without a word; where it is ignored, it stays so.
    """
    if sys.stderr is None:  # it was closed: what is told goes nowhere, and no file of ours takes its place
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (open to the end)
    python_raises = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if python_raises:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from cpsolver.commands.main import main as command

    if python_raises:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = raise_later
    command(arguments)


def raise_later(unraisable: Any) -> None:
    """A KeyboardInterrupt that could not be raised where it came, in a destructor or in a library's part that is not
    Python, comes again soon; all else is told as ever."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        again = Timer(_SOON_S, interrupt_main)
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(unraisable)
