"""Measurements on disk, one JSON line each, synced before the next begins, so that a stopped run can be continued.

The first line says on which device and software they were taken. A last line that was cut off does not count.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cpsolver.doors.profile.task import Measurement
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import say

FORMAT = 1


class Journal:
    """The journal of one output file. `measurements`: those in it by key, the newest of each.

    `quick`: a quick run. Its measurements are marked; runs that are not quick do not take them up.

    Raises InputError where the file is of another device or software, is no journal, or cannot be read or written.
    """

    def __init__(self, path: Path, provenance: Mapping[str, Any], quick: bool = False) -> None:
        self.path, self._quick = path, quick
        self.measurements: dict[str, Measurement] = {}
        try:
            lines, size = _whole_lines(path)
        except OSError as error:
            raise self._refused(f"cannot be read: {error.strerror}") from None
        if lines:
            self._check(lines[0], provenance)
            for line in lines[1:]:
                measurement = _measurement(line, quick)
                if measurement is not None:
                    self.measurements[measurement.key] = measurement
        try:
            self._file = path.open("ab")
        except OSError as error:
            raise self._refused(say("cannot be written: {why}", why=error.strerror)) from None
        self._file.truncate(size)
        if not lines:
            self._write({"format": FORMAT, **provenance})

    def add(self, measured: Measurement) -> None:
        """Add a measurement; it is on disk when this returns."""
        self.measurements[measured.key] = measured
        fields = {name: getattr(measured, name) for name in ("kind", "size", "note", "day")}
        bytes_ = {"bytes": measured.bytes, "allocated": measured.allocated}
        self._write({**fields, "quick": self._quick, "seconds": list(measured.seconds), **bytes_})

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, document: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(document).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _check(self, head: str, provenance: Mapping[str, Any]) -> None:
        try:
            document = json.loads(head)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict) or "format" not in document:
            raise self._refused(say("is no journal of `apss-cp profile`"))
        if document["format"] != FORMAT:
            raise self._refused(
                say("has format {format}, and this version reads {reads}", format=document["format"], reads=FORMAT)
            )
        differing = [name for name, value in provenance.items() if document.get(name) != value]
        if differing:
            was = ", ".join(f"{name} {document.get(name)}" for name in differing)
            now = ", ".join(f"{name} {provenance[name]}" for name in differing)
            raise self._refused(say("was taken with {was}; this is {now}", was=was, now=now))

    def _refused(self, message: str) -> InputError:
        allowed = say("another --output, or delete the file to measure anew")
        return InputError(Trouble("", message, allowed=allowed, file=str(self.path)))


def _whole_lines(path: Path) -> tuple[list[str], int]:
    """The complete lines, and their length in bytes; none for a file that does not exist."""
    if not path.exists():
        return [], 0
    text = path.read_bytes()
    size = text.rfind(b"\n") + 1
    return text[:size].decode("utf-8", "replace").splitlines(), size


def _measurement(line: str, quick: bool) -> Measurement | None:
    """A line's measurement; None for a damaged line, or for one of a quick run where `quick` is false."""
    try:
        document = json.loads(line)
        seconds = tuple(float(value) for value in document["seconds"])
        if document["quick"] and not quick:
            return None
        if any(value <= 0 for value in seconds) or (not seconds and document["bytes"] is None):
            return None
        kind, note, day = (str(document[name]) for name in ("kind", "note", "day"))
        return Measurement(kind, dict(document["size"]), seconds, document["bytes"], document["allocated"], note, day)
    except (ValueError, KeyError, TypeError):
        return None
