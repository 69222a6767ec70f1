"""Measurements on disk, one JSON line each, written through before the next begins: a run that stops goes on there.

The first line says on what they were taken. A last line that was cut off is not there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cpsolver.doors.profile.task import Measurement
from cpsolver.inputs.errors import InputError, Trouble

FORMAT = 1


class Journal:
    """The journal of one output file. `found`: the measurements in it by key, the newest of each.

    `quick`: what is added was taken quickly, and what was taken quickly will do; otherwise such is not found.

    Raises InputError when the file is of another device or software, is no journal, or cannot be read or written.
    """

    def __init__(self, path: Path, provenance: Mapping[str, Any], quick: bool = False) -> None:
        self.path, self._quick = path, quick
        self.found: dict[str, Measurement] = {}
        try:
            whole, size = _whole_lines(path)
        except OSError as error:
            raise self._refused(f"cannot be read: {error.strerror}") from None
        if whole:
            self._check(whole[0], provenance)
            for line in whole[1:]:
                each = _measurement(line, quick)
                if each is not None:
                    self.found[each.key] = each
        try:
            self._file = path.open("ab")
        except OSError as error:
            raise self._refused(f"cannot be written: {error.strerror}") from None
        self._file.truncate(size)
        if not whole:
            self._write({"format": FORMAT, **provenance})

    def add(self, measured: Measurement) -> None:
        """Keep a measurement: on disk when this returns."""
        self.found[measured.key] = measured
        fields = {
            "kind": measured.kind,
            "size": measured.size,
            "note": measured.note,
            "day": measured.day,
            "quick": self._quick,
        }
        bytes_ = {"bytes": measured.bytes, "allocated": measured.allocated}
        self._write({**fields, "seconds": list(measured.seconds), **bytes_})

    def close(self) -> None:
        """No more is added."""
        self._file.close()

    def _write(self, document: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(document).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _check(self, head: str, provenance: Mapping[str, Any]) -> None:
        try:
            told = json.loads(head)
        except ValueError:
            told = None
        if not isinstance(told, dict) or "format" not in told:
            raise self._refused("is no journal of `apss-cp profile`")
        if told["format"] != FORMAT:
            raise self._refused(f"has format {told['format']}, and this version reads {FORMAT}")
        other = [name for name, value in provenance.items() if told.get(name) != value]
        if other:
            was = ", ".join(f"{name} {told.get(name)}" for name in other)
            now = ", ".join(f"{name} {provenance[name]}" for name in other)
            raise self._refused(f"was taken with {was}; this is {now}")

    def _refused(self, message: str) -> InputError:
        allowed = "another --output, or delete the file to measure anew"
        return InputError(Trouble("", message, allowed=allowed, file=str(self.path)))


def _whole_lines(path: Path) -> tuple[list[str], int]:
    """The lines that end, and their length in bytes; a file that is not there has none."""
    if not path.exists():
        return [], 0
    text = path.read_bytes()
    size = text.rfind(b"\n") + 1
    return text[:size].decode("utf-8", "replace").splitlines(), size


def _measurement(line: str, quick: bool) -> Measurement | None:
    """A line's measurement; None for a line that is damaged, or of a quick run where `quick` is not asked for."""
    try:
        told = json.loads(line)
        seconds = tuple(float(each) for each in told["seconds"])
        if told["quick"] and not quick:
            return None
        if any(each <= 0 for each in seconds) or (not seconds and told["bytes"] is None):
            return None
        bytes_ = (told["bytes"], told["allocated"])
        return Measurement(str(told["kind"]), dict(told["size"]), seconds, *bytes_, str(told["note"]), str(told["day"]))
    except (ValueError, KeyError, TypeError):
        return None
