"""What is kept of a tuning: SQLite in a folder, a row a trial, every change a transaction that is on disk after it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from cpsolver.doors.tune.outcome import Verdict
from cpsolver.doors.tune.template import Template, parse_template
from cpsolver.doors.tune.trial import Proposal, Trial
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import later, say
from cpsolver.plans.strategy import StageGroup, Strategy
from cpsolver.problem.problem import Problem

SCHEMA_VERSION = 1
"""Of the tables below; another one is refused."""

_NAME, _LOCK = "tune.sqlite", "lock"
_COLUMNS = {
    "number": "INTEGER PRIMARY KEY",
    "strategy": "TEXT NOT NULL",
    "why": "TEXT NOT NULL",
    "predicted_s": "REAL NOT NULL",
    "low_s": "REAL NOT NULL",
    "high_s": "REAL NOT NULL",
    "command": "TEXT NOT NULL",
    "asked": "INTEGER NOT NULL",
    "outcome": "TEXT NOT NULL",
    "note": "TEXT NOT NULL",
    "step_time_s": "REAL",
    "peak_memory_gib": "REAL",
    "memory_kind": "TEXT",
    "seconds": "REAL",
    "iterations": "INTEGER NOT NULL",
    "spread": "REAL",
    "candidates": "TEXT NOT NULL",
}
_SUM = "checksum"
"""Of the trial's other values, so that one that a disk or a copy has changed is told from a result."""
_BEGIN = f"INSERT INTO trials ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
_MOST_SHOWN = 6
_FREE = ("top", "time_limit_s")
"""Of the spec's search section: how long and how many, which no measurement depends on."""


@dataclass(frozen=True)
class Binding:
    """What the trials of a folder belong to: `spec` resolved, as plain values, and the `command` as plain values."""

    spec: Mapping[str, Any]
    command: Mapping[str, Any] | None


def spec_meaning(problem: Problem) -> dict[str, Any]:
    """All of a resolved spec that a measured step time, or the space of plans, depends on.

    What is believed of the chips and the stack (efficiencies, constants) is no part of it: a new calibration, or a
    newer version of this product, goes on with the same trials.
    """
    spec = problem.spec.model_dump(mode="json")
    spec["model"] = problem.model.model_dump(mode="json")
    chips = {supply.name: supply for supply in problem.supplies}
    spec["cluster"]["chips"] = {
        name: {"max": supply.limit, **supply.chip.model_dump(mode="json", include={"memory", "vendor"})}
        for name, supply in chips.items()
    }
    for name in _FREE:
        spec["search"].pop(name)
    return spec


def command_meaning(template: Template, target: str | None) -> dict[str, Any]:
    """What the template runs: its words, however they are spaced and quoted."""
    text = template.text if template.shell else shlex.join(template.words)
    return {"text": text, "shell": template.shell, "target": target}


def stored_template(meaning: Mapping[str, Any]) -> tuple[Template, str | None]:
    """The template and the target that `command_meaning` described."""
    return parse_template(meaning["text"], meaning["shell"]), meaning["target"]


class State:
    """An open folder; use it as a context manager. One tuner at a time has it.

    Every change is a transaction of its own, on disk when it returns: a tuner that is killed has lost nothing.
    """

    def __init__(self, folder: Path) -> None:
        """Opens the folder, or makes it.

        Raises InputError for one that cannot be used, is of another schema version or is in use by another tuner.
        """
        self.folder = folder.absolute()
        self._lock = _locked(self.folder)
        try:
            self._database = sqlite3.connect(self.folder / _NAME, timeout=30)
            self._database.text_factory = lambda raw: raw.decode("utf-8", "replace")  # what is no text is damage
            try:
                self._prepare()
            except BaseException:
                self._database.close()
                raise
        except BaseException as error:
            os.close(self._lock)
            raise (
                self._error(say("cannot be used: {why}", why=error)) if isinstance(error, sqlite3.Error) else error
            ) from None

    def __enter__(self) -> State:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()
        os.close(self._lock)

    def _prepare(self) -> None:
        self._database.execute("PRAGMA journal_mode = DELETE")  # write-ahead logs do not work on network file systems
        self._database.execute("PRAGMA synchronous = FULL")
        tables = {name for (name,) in self._database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not tables:
            columns = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())
            with self._database:
                self._database.execute("BEGIN")
                self._database.execute("CREATE TABLE schema_version (version INTEGER NOT NULL)")
                self._database.execute("INSERT INTO schema_version VALUES (?)", [SCHEMA_VERSION])
                self._database.execute("CREATE TABLE bound (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
                self._database.execute(f"CREATE TABLE trials ({columns}, {_SUM} TEXT)")
            return
        if "schema_version" not in tables:
            raise self._error(say("{file} is a database of something else", file=_NAME))
        (found,) = self._database.execute("SELECT version FROM schema_version").fetchone() or (None,)
        if found != SCHEMA_VERSION:
            told = say(
                "has version {found} of the tables, and this apss-cp reads and writes version {own}: go on with the "
                "apss-cp that made it",
                found=found,
                own=SCHEMA_VERSION,
            )
            raise self._error(told)
        if _SUM not in {name for _, name, *_ in self._database.execute("PRAGMA table_info(trials)")}:
            self._database.execute(f"ALTER TABLE trials ADD COLUMN {_SUM} TEXT")

    def bind(self, bound: Binding) -> Mapping[str, Any] | None:
        """Hold the spec and the command against those of the folder's trials, and keep them where there are none.

        Returns the folder's command, which counts where none is given. Raises InputError with all that differs.
        """
        try:
            stored = {name: json.loads(text) for name, text in self._read("SELECT name, value FROM bound")}
        except (ValueError, TypeError):
            raise self._error(
                say("{file} is damaged: the spec that it belongs to cannot be read", file=_NAME)
            ) from None
        given = {"spec": _plain(bound.spec), "command": _plain(bound.command)}
        found: list[str] = []
        if "spec" in stored:
            found += differences(stored["spec"], given["spec"], "")
        if "command" in stored and given["command"] is not None:
            found += differences(stored["command"], given["command"], say("the command"))
        if found:
            shown = say("; ").join(found[:_MOST_SHOWN])
            more = say("; and {count} more", count=len(found) - _MOST_SHOWN) if len(found) > _MOST_SHOWN else ""
            raise self._error(say("holds trials of another spec or command: {shown}{more}", shown=shown, more=more))
        new = {name: value for name, value in given.items() if value is not None and name not in stored}
        if new:
            with self._database:
                rows = [(name, json.dumps(value)) for name, value in new.items()]
                self._database.executemany("INSERT INTO bound VALUES (?, ?)", rows)
        command = {**stored, **new}.get("command")
        return command if command is None else dict(command)

    def trials(self) -> list[Trial]:
        """Every trial, in order."""
        rows = self._read(f"SELECT {', '.join(_COLUMNS)}, {_SUM} FROM trials ORDER BY number")
        return [self._trial(dict(zip(_COLUMNS, row, strict=True)), told) for *row, told in rows]

    def _read(self, query: str) -> list[Any]:
        try:
            return self._database.execute(query).fetchall()
        except sqlite3.Error as error:
            raise self._error(say("{file} is damaged: {error}", file=_NAME, error=error)) from None

    def _trial(self, row: dict[str, Any], checksum: str | None) -> Trial:
        try:
            if checksum not in (None, _checksum(row)):
                raise ValueError
            fields = row | {
                "strategy": strategy_from_json(row["strategy"]),
                "command": tuple(json.loads(row["command"])),
                "asked": bool(row["asked"]),
                "candidates": tuple(map(_strategy, json.loads(row["candidates"]))),
            }
            return Trial(**fields, directory=self.directory(row["number"]))
        except (ValueError, TypeError, KeyError):
            told = say(
                "trial {number} in {file} is damaged: take the file from a copy", number=row["number"], file=_NAME
            )
            raise self._error(told) from None

    def next_number(self) -> int:
        """The number that the next trial gets."""
        ((most,),) = self._read("SELECT max(number) FROM trials")
        return (most or 0) + 1

    def directory(self, number: int) -> Path:
        """The folder of that trial."""
        return self.folder / f"trial-{number:03d}"

    def begin(self, number: int, proposal: Proposal, command: tuple[str, ...], asked: bool) -> Trial:
        """Keep a new trial, which runs from now on."""
        plan = json.dumps(asdict(proposal.strategy))
        times = (proposal.predicted_s, proposal.low_s, proposal.high_s)
        others = json.dumps([asdict(candidate) for candidate in proposal.candidates])
        began = [asked, "running", "", *[None] * 4, 0, None, others]
        self._write(number, _BEGIN, [number, plan, proposal.why, *times, json.dumps(command), *began])
        return self.trial(number)

    def finish(self, number: int, verdict: Verdict) -> Trial:
        """Keep how a running trial went."""
        fields = asdict(verdict)
        names = ", ".join(f"{name} = ?" for name in fields)
        change = f"UPDATE trials SET {names} WHERE number = ? AND outcome = 'running'"
        self._write(number, change, [*fields.values(), number])
        return self.trial(number)

    def trial(self, number: int) -> Trial:
        """The trial of that number; raises KeyError."""
        return {trial.number: trial for trial in self.trials()}[number]

    def _write(self, number: int, statement: str, values: list[Any]) -> None:
        try:
            with self._database:
                self._database.execute(statement, values)
                # of the values as the database has them
                row = self._database.execute(f"SELECT {', '.join(_COLUMNS)} FROM trials WHERE number = ?", [number])
                told = _checksum(dict(zip(_COLUMNS, row.fetchone(), strict=True)))
                self._database.execute(f"UPDATE trials SET {_SUM} = ? WHERE number = ?", [told, number])
        except sqlite3.Error as error:
            raise self._error(say("cannot be written: {why}", why=error)) from None

    def _error(self, told: str) -> InputError:
        return InputError(
            Trouble("", say("{told}: or give another folder with --state", told=told), file=str(self.folder))
        )


def _checksum(row: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(row, sort_keys=True, default=repr).encode()).hexdigest()[:16]


def strategy_from_json(text: str) -> Strategy:
    """The plan that `begin` kept."""
    return _strategy(json.loads(text))


def _strategy(fields: dict[str, Any]) -> Strategy:
    groups = tuple(StageGroup(**_tuples(group)) for group in fields.pop("groups"))
    return Strategy(**_tuples(fields), groups=groups)


def _tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def differences(before: Any, now: Any, where: str) -> list[str]:
    """What differs between two documents of plain values: `cluster.num_gpus is 64 there and 32 here`."""
    if isinstance(before, dict) and isinstance(now, dict):
        names = dict.fromkeys((*before, *now))
        below = (differences(before.get(n), now.get(n), f"{where}.{n}" if where else str(n)) for n in names)
        return [found for part in below for found in part]
    return (
        []
        if before == now
        else [say("{where} is {before} there and {now} here", where=where, before=_short(before), now=_short(now))]
    )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _locked(folder: Path) -> int:
    """The folder, made where it is missing, held for this process alone until it ends, however it ends."""
    made = not folder.exists()
    try:
        folder.mkdir(exist_ok=True)
        handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        told = error.strerror if folder.parent.is_dir() else say("there is no directory {folder}", folder=folder.parent)
        told = say("it is a file") if folder.is_file() else told
        raise InputError(Trouble("--state", say("cannot be used: {why}", why=told), str(folder))) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        told = later("is in use by another `apss-cp tune`: wait for it, stop it, or give another folder with --state")
        raise InputError(Trouble("", told, file=str(folder))) from None
    if not made and not (folder / _NAME).exists() and _foreign(folder):
        os.close(handle)
        with suppress(OSError):
            (folder / _LOCK).unlink()
        raise InputError(Trouble("--state", later("is a folder with other things in it: name a new one"), str(folder)))
    return handle


def _foreign(folder: Path) -> bool:
    """Something lies there that no tuner put there."""
    return any(path.name != _LOCK and not path.name.startswith(_NAME) for path in folder.iterdir())
