"""The database of results: rows come back as they were put, or are told to be damaged."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from cpsolver.doors.batch.rows import COLUMNS, Row
from cpsolver.doors.batch.run import SweepRequest, run_batch
from cpsolver.doors.batch.store import Store
from cpsolver.inputs.errors import InputError
from tests.support.batch_sweeps import BASE
from tests.support.command import in_tmp, write

__all__ = ["in_tmp"]


def row_of(key: str) -> Row:
    row: Row = dict.fromkeys(column.name for column in COLUMNS)
    return row | {"key": key, "strategy": "dp 8", "plans": "[1]", "seconds": 5, "num_gpus": 8, "status": "optimal"}


def changed(setting: str) -> tuple[set[str], set[str]]:
    """Keys of rows that are found and that are told to be damaged after that change of the row b."""
    with Store("d") as store:
        for key in "abc":
            store.put(row_of(key))
    with closing(sqlite3.connect("d")) as database, database:
        database.execute(f"UPDATE cells SET {setting} WHERE key = 'b'")
    with Store("d") as store:
        return set(store.get("abc")), store.damaged


def test_rows_come_back_as_they_were_put() -> None:
    with Store("d") as store:
        store.put(row_of("a"))
        store.put(row_of("a") | {"seconds": 7})
        assert store.get("ab") == {"a": row_of("a") | {"seconds": 7.0}}
        assert not store.damaged


@pytest.mark.parametrize(
    "setting",
    ["strategy = 'dP 8'", "plans = '[1'", "seconds = 5.5", "checksum = 'x'", "status = CAST(x'ff' AS TEXT)"],
)
def test_a_row_that_was_changed_is_told_and_left_out(setting: str) -> None:
    assert changed(setting) == ({"a", "c"}, {"b"})


def test_rows_without_a_checksum_are_from_before_there_were_any() -> None:
    assert changed("checksum = NULL") == ({"a", "b", "c"}, set())
    assert changed("checksum = NULL, plans = '[1'") == ({"a", "c"}, {"b"})


def test_flipped_bits_end_in_a_row_as_it_was_damage_or_a_refusal() -> None:
    with Store("d") as store:
        for key in "abc":
            store.put(row_of(key))
    whole = Path("d").read_bytes()
    for seed in range(60):
        drawn = random.Random(seed)
        torn = bytearray(whole)
        for _ in range(drawn.choice((1, 8))):
            torn[drawn.randrange(len(torn))] ^= 1 << drawn.randrange(8)
        Path("e").write_bytes(torn)
        try:
            with Store("e") as store:
                found = store.get("abc")
        except InputError:
            continue
        assert all(row == row_of(key) for key, row in found.items())


@pytest.mark.full
def test_a_damaged_row_is_solved_again() -> None:
    write("sweep.yaml", BASE + "list: [{cluster.num_gpus: 16}, {cluster.num_gpus: 8}]")
    before = run_batch(SweepRequest("sweep.yaml", jobs=1))
    with closing(sqlite3.connect("sweep.sqlite")) as database, database:
        database.execute("UPDATE cells SET strategy = 'tp 1' WHERE num_gpus = 8")
    after = run_batch(SweepRequest("sweep.yaml", jobs=1))
    assert (after.damaged, after.solved) == ((2,), 1)
    assert [row and row["strategy"] for row in after.rows] == [row and row["strategy"] for row in before.rows]
