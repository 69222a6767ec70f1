"""The database of results: SQLite, a row a cell, each kept the moment it is known."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

from cpsolver.doors.batch.rows import COLUMNS, Row
from cpsolver.inputs.errors import InputError
from cpsolver.inputs.language import say
from cpsolver.inputs.output import file_error

SCHEMA_VERSION = 1
"""Of the tables below; another one is refused."""

_NAMES = [column.name for column in COLUMNS]
_TYPES = {"text": "TEXT", "int": "INTEGER", "real": "REAL", "json": "TEXT"}
_TABLE = ", ".join(f"{column.name} {_TYPES[column.kind]}" for column in COLUMNS).replace(
    "key TEXT", "key TEXT PRIMARY KEY", 1
)
_SUM = "checksum"
"""Of the row's other values, so that a row that a disk or a copy has changed is told from an answer."""
_GET = f"SELECT {', '.join(_NAMES)}, {_SUM} FROM cells WHERE key"
_PUT = f"INSERT OR REPLACE INTO cells ({', '.join(_NAMES)}) VALUES ({', '.join('?' * len(_NAMES))})"
_AT_ONCE = 500  # keys in a query: SQLite allows some thousand parameters


def _of_another_version(found: Sequence[object] | None) -> str:
    return say(
        "has {version} of the tables, and this apss-cp reads and writes version {own}: give another file with --db, or "
        "go on with the apss-cp that made this one",
        version=say("no version") if found is None else say("version {number}", number=found[0]),
        own=SCHEMA_VERSION,
    )


class Store:
    """An open database; use it as a context manager. One run at a time writes it.

    Every `put` is a transaction of its own, on disk when it returns: a run that is killed has lost nothing.
    `damaged`: keys of rows that `get` found changed and left out.
    """

    def __init__(self, path: str) -> None:
        """Opens the file, or makes it.

        Raises InputError for a file that is no such database, is of another schema version, cannot be opened or is
        in use by another run.
        """
        self._path = path
        self.damaged: set[str] = set()
        self._lock = _locked(path)
        try:
            self._database = sqlite3.connect(path, timeout=30)
            self._database.text_factory = lambda raw: raw.decode("utf-8", "replace")  # what is no text is damage
            try:
                self._prepare()
            except BaseException:
                self._database.close()
                raise
        except BaseException as error:
            os.close(self._lock)
            raise self._error(error) if isinstance(error, sqlite3.Error) else error from None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_error: object) -> None:
        self._database.close()
        os.close(self._lock)

    def _prepare(self) -> None:
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        tables = {name for (name,) in self._database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not tables:
            with self._database:
                self._database.execute("BEGIN")
                self._database.execute("CREATE TABLE schema_version (version INTEGER NOT NULL)")
                self._database.execute("INSERT INTO schema_version VALUES (?)", [SCHEMA_VERSION])
                self._database.execute(f"CREATE TABLE cells ({_TABLE}, {_SUM} TEXT) WITHOUT ROWID")
            return
        if "schema_version" not in tables:
            raise file_error(
                self._path,
                say("is a database of something else: give another file with --db, which is made when it is not there"),
            )
        found = self._database.execute("SELECT version FROM schema_version").fetchone()
        if found != (SCHEMA_VERSION,):
            raise file_error(self._path, _of_another_version(found))
        there = {name for _, name, *_ in self._database.execute("PRAGMA table_info(cells)")}
        for column in COLUMNS:  # one that reports have had since
            if column.name not in there:
                self._database.execute(f"ALTER TABLE cells ADD COLUMN {column.name} {_TYPES[column.kind]}")
        if _SUM not in there:
            self._database.execute(f"ALTER TABLE cells ADD COLUMN {_SUM} TEXT")

    def get(self, keys: Iterable[str]) -> dict[str, Row]:
        """The rows of these keys, as far as they are there and as they were written."""
        wanted, rows = list(dict.fromkeys(keys)), dict[str, Row]()
        try:
            for start in range(0, len(wanted), _AT_ONCE):
                some = wanted[start : start + _AT_ONCE]
                for *values, told in self._database.execute(f"{_GET} IN ({', '.join('?' * len(some))})", some):
                    row = dict(zip(_NAMES, values, strict=True))
                    if _is_whole(row, told):
                        rows[row["key"]] = row
                    else:
                        self.damaged.add(row["key"])
        except sqlite3.Error as error:
            raise self._error(error) from None
        return rows

    def put(self, row: Row) -> None:
        """Keep a row, in place of one with the same key. Raises InputError when the file cannot be written."""
        try:
            with self._database:
                self._database.execute(_PUT, [row[name] for name in _NAMES])
                # of the values as the database has them: it turns whole numbers into others, and back
                (*values, _) = self._database.execute(f"{_GET} = ?", [row["key"]]).fetchone()
                told = _checksum(dict(zip(_NAMES, values, strict=True)))
                self._database.execute(f"UPDATE cells SET {_SUM} = ? WHERE key = ?", [told, row["key"]])
        except sqlite3.Error as error:
            raise self._error(error) from None

    def _error(self, error: sqlite3.Error) -> InputError:
        if "not a database" in str(error):
            return file_error(self._path, say("is not a SQLite database: give another file with --db"))
        return file_error(self._path, say("cannot be used: {error}", error=error))


def _checksum(row: Row) -> str:
    """Values that are not there do not count: a column that reports have had since changes no row."""
    known = {name: value for name, value in row.items() if value is not None}
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=repr).encode()).hexdigest()[:16]


def _is_whole(row: Row, told: str | None) -> bool:
    """The row is as it was written; one from before there were checksums (None) can at least be read."""
    if told is not None:
        return told == _checksum(row)
    try:
        for column in COLUMNS:
            if column.kind == "json" and row[column.name] is not None:
                json.loads(row[column.name])
    except (ValueError, TypeError):
        return False
    return True


def _locked(path: str) -> int:
    """The file, made where it is missing, held for this process alone until it ends, however it ends."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        folder = Path(path).parent
        why = error.strerror if folder.is_dir() else say("there is no directory {folder}", folder=folder)
        raise file_error(path, say("cannot be opened: {why}", why=why)) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        told = say("is in use by another `apss-cp batch`: wait for it, stop it, or give another file with --db")
        raise file_error(path, told) from None
    return handle
