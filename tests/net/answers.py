"""Asking the command line, and what of its answer must not change.

Left out: seconds, versions, which of several equally good plans is told, and how many candidates which rule or bound
cut, for that goes by the order of the search. Numbers are compared to a billionth.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import chdir
from io import StringIO
from itertools import zip_longest
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner

from tests.net.case import Case

FROZEN = Path(__file__).parent / "frozen"
_TOLERANCE = 1e-9
_LONG = 1600
"""Characters; of longer texts only a mark of every line is kept."""
_VOLATILE = {"seconds", "cpu_seconds", "solver_seconds", "versions", "version", "key"}
_PROGRESS = re.compile(r"^\d+ s: .*\n", re.MULTILINE)
"""What a slow machine says on stderr while it works."""
_SECONDS = re.compile(r"\d+\.\d+ s(?= in all| of it in the solver)|(?<= in )\d+(\.\d+)? s")
_VERSION = re.compile(r"apss-cp \d+(\.\d+)+")
_PACKED = re.compile(r'(?<="steps":")[^"]*')
"""What a page has compressed: not every zlib writes the same bytes."""
_EXACT = re.compile(r"-?\d+\.\d{10,}(?:e[-+]?\d+)?")
"""Numbers in texts that are written with all their figures. From 3.12 on Python adds floats up with less error."""
_BY_LINE = "marks of the lines"
_MISSING = object()


def command() -> click.Command:
    """The command line: the one place that knows where it is."""
    from cpsolver.commands.main import main

    return main


def ask(case: Case) -> dict[str, Any]:
    """The answer to a question, ready to be compared."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for name, content in case.files.items():
            text = content if isinstance(content, str) else json.dumps(content, indent=1)
            Path(name).write_text(text, encoding="utf-8")
        result = CliRunner().invoke(command(), case.args, env={"COLUMNS": "100"}, prog_name="apss-cp")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        new = (path for path in Path().iterdir() if path.name not in case.files and path.suffix != ".sqlite")
        written = {path.name: path.read_text(encoding="utf-8") for path in new}
    answer: dict[str, Any] = {"exit": result.exit_code}
    if case.kind == "solve":
        return answer | _solved(json.loads(result.stdout))
    answer["stdout"] = _document(result.stdout) if "--json" in case.args else text_kept(result.stdout)
    answer["stderr"] = text_kept(_PROGRESS.sub("", result.stderr))
    answer |= {name: _KEPT.get(Path(name).suffix, text_kept)(text) for name, text in written.items()}
    return {name: value for name, value in answer.items() if value != ""}


def _solved(document: dict[str, Any]) -> dict[str, Any]:
    """What holds of the best plans whichever of equal ones they are."""
    proof, plans = document["proof"], document["plans"]
    values = ("step_time_s", "dollars_per_million_tokens", "devices")
    steps = [plan["step_time_s"] for plan in plans]
    cut = sum(proof["refused"].values()) + proof["memory"] + proof["bounded"] + proof["solved"] + proof["open"]
    kept: dict[str, Any] = {
        "status": document["status"],
        "problem": document["problem"],
        **{name: [plan[name] for plan in plans if plan[name] is not None] for name in values},
        "considered": proof["considered"],
        "accounted": cut,
        "combinations": proof["combinations"],
        "stop": proof["stop"],
        "gap": proof["gap"],
        "reasons": document["reasons"],
    }
    if len(steps) > 1 and not math.isclose(steps[0], steps[1], rel_tol=1e-6):
        kept["memory_gib"] = plans[0]["memory_gib"]
    return kept


def _document(text: str) -> Any:
    """JSON without what changes from run to run; texts in it as text_kept has them."""
    document = json.loads(text)
    kept = _kept(document)
    return kept if len(dumped(kept)) < 9 * _LONG else text_kept(dumped(kept))


def _rows(text: str) -> Any:
    """A CSV table, row by row, without what changes from run to run or with the product's own files."""
    return [
        {name: cell for name, cell in row.items() if name not in _VOLATILE} for row in csv.DictReader(StringIO(text))
    ]


_KEPT: dict[str, Callable[[str], Any]] = {".json": _document, ".csv": _rows}
"""How a written file is kept, by the end of its name; others are texts."""


def _kept(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _kept(item) for key, item in value.items() if key not in _VOLATILE}
    if isinstance(value, list):
        return [_kept(item) for item in value]
    return text_kept(value) if isinstance(value, str) and "\n" in value else value


def text_kept(text: str) -> Any:
    """A text without seconds: itself if it has one line, its lines, or a mark of each, or of many, where it is long."""
    text = _PACKED.sub("…", _VERSION.sub("apss-cp …", _SECONDS.sub("… s", text)))
    lines = text.replace("><", ">\n<").splitlines()
    if len(lines) < 2:
        return text
    if len(text) < _LONG:
        return text.splitlines()
    lines = [_EXACT.sub(lambda found: str(float(f"{float(found[0]):.9g}")), line) for line in lines]
    block = 16 if len(lines) <= 320 else 320
    parts = [lines[at : at + block] for at in range(0, len(lines), block)]
    if block == 16:
        return {"lines": len(lines), _BY_LINE: [_marks(part) for part in parts]}
    return {"lines": len(lines), f"marks of {block} lines each": [_mark(part) for part in parts]}


def _marks(lines: list[str]) -> str:
    return " ".join(_mark([line]) for line in lines)


def _mark(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:6]


def dumped(value: Any, indent: int = 0) -> str:
    """JSON, sorted by key, that keeps on one line what has room there."""
    flat = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if not isinstance(value, dict | list) or len(flat) + indent <= 110 or not value:
        return flat
    inner = " " * (indent + 1)
    if isinstance(value, list):
        if all(isinstance(item, int) for item in value):
            return flat
        parts = [dumped(item, indent + 1) for item in value]
        if all(len(part) < 48 for part in parts):
            return _in_columns(parts, indent)
        return "[\n" + ",\n".join(inner + part for part in parts) + "\n" + " " * indent + "]"
    parts = [f"{json.dumps(key, ensure_ascii=False)}: {dumped(value[key], indent + 1)}" for key in sorted(value)]
    return "{\n" + ",\n".join(inner + part for part in parts) + "\n" + " " * indent + "}"


def _in_columns(parts: list[str], indent: int) -> str:
    """A list of short items, as many on a line as have room."""
    lines = [""]
    for part in parts:
        if len(lines[-1]) + len(part) + indent > 114:
            lines.append("")
        lines[-1] += f"{' ' if lines[-1] else ' ' * (indent + 1)}{part},"
    return "[\n" + "\n".join(lines).removesuffix(",") + "\n" + " " * indent + "]"


def differences(frozen: Any, found: Any, where: str = "") -> Iterator[str]:
    """Every place where an answer is not what it was."""
    if isinstance(frozen, dict) and isinstance(found, dict):
        if _BY_LINE in frozen and _BY_LINE in found:
            lines, seen = (" ".join(value[_BY_LINE]).split() for value in (frozen, found))
            first = next(
                (line for line, pair in enumerate(zip(lines, seen, strict=False), 1) if pair[0] != pair[1]), None
            )
            if first:
                yield f"{where}: line {first} is another; {len(lines)} lines were there, {len(seen)} are"
                return
        for key in sorted(frozen.keys() | found.keys()):
            yield from differences(frozen.get(key, _MISSING), found.get(key, _MISSING), f"{where}.{key}")
    elif isinstance(frozen, list) and isinstance(found, list) and len(frozen) == len(found):
        for number, (before, now) in enumerate(zip(frozen, found, strict=True)):
            yield from differences(before, now, f"{where}[{number}]")
    elif isinstance(frozen, list) and isinstance(found, list):
        pairs = zip_longest(frozen, found, fillvalue=_MISSING)
        at = next(number for number, pair in enumerate(pairs) if not _same(*pair))
        now = found[at] if at < len(found) else _MISSING
        yield from differences(frozen[at] if at < len(frozen) else _MISSING, now, f"{where}[{at}]")
        yield f"{where}: had {len(frozen)} items, has {len(found)}; the first that differs is {at}"
    elif not _same(frozen, found):
        before, now = ("nothing" if value is _MISSING else repr(value) for value in (frozen, found))
        yield f"{where}: was {before}, is {now}"


def _same(frozen: Any, found: Any) -> bool:
    if isinstance(frozen, float) and isinstance(found, float):
        return math.isclose(frozen, found, rel_tol=_TOLERANCE, abs_tol=1e-12)
    if isinstance(frozen, str) and isinstance(found, str):
        before, now = (list(map(float, _EXACT.findall(text))) for text in (frozen, found))
        return _EXACT.sub("", frozen) == _EXACT.sub("", found) and all(map(_same, before, now))
    return type(frozen) is type(found) and bool(frozen == found)


def load(kind: str) -> dict[str, Any]:
    """The frozen answers of a kind, by the question's name."""
    answers: dict[str, Any] = json.loads((FROZEN / f"{kind}.json").read_text(encoding="utf-8"))
    return answers
