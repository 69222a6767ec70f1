"""What a worker does when things go wrong, without the wrong things: failures of a cell, of a process, of Ray."""

from __future__ import annotations

import signal
import socket

import pytest

from cpsolver.doors.batch import pool
from cpsolver.doors.batch.on_ray import _check_port, _reason, _solve_same
from cpsolver.doors.batch.pool import CellTask, _end, cores, solve
from cpsolver.inputs.errors import InputError
from cpsolver.problem.problem import Problem
from tests.support.batch_sweeps import cases_of
from tests.support.command import in_tmp

__all__ = ["in_tmp"]


def task() -> CellTask:
    (case,) = cases_of("list: [{cluster.num_gpus: 16}]")
    assert case.problem is not None
    return CellTask(case.key, case.problem)


@pytest.mark.parametrize(
    ("error", "told"), [(MemoryError(), "out of memory"), (ValueError("odd"), "bug in apss-cp: ValueError: odd")]
)
def test_whatever_goes_wrong_in_a_cell_is_its_row_s_error(
    error: Exception, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(problem: Problem) -> None:
        raise error

    monkeypatch.setattr(pool, "_answer", answer)
    outcome = solve(task())
    assert outcome.columns["status"] == "error"
    assert told in outcome.columns["error"]
    assert outcome.columns["seconds"] >= 0


def test_how_a_process_ended_in_words() -> None:
    assert "for want of memory" in _end(-signal.SIGKILL)
    assert _end(-signal.SIGSEGV) == "the worker was ended by SIGSEGV"
    assert _end(3) == "the worker ended by itself with exit code 3"
    assert cores() >= 1


def test_a_worker_with_another_version_says_so_and_solves_nothing() -> None:
    outcome = _solve_same(task(), "another")
    assert outcome.columns["status"] == "error"
    assert "on this worker and another on the driver" in outcome.columns["error"]


def test_a_port_where_nothing_listens_is_told_at_once_and_names_of_ray_s_own_are_left_to_it() -> None:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        port = asked.getsockname()[1]
        for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
            with pytest.raises(InputError, match="nothing listens there"):
                _check_port(address)
        asked.listen()
        _check_port(f"127.0.0.1:{port}")
    _check_port("auto")


def test_why_a_cluster_could_not_be_joined_is_what_ray_said_last() -> None:
    assert _reason("Traceback\nConnectionError: too bad\n\n", 1) == "ConnectionError: too bad"
    assert "RAY_AUTH_MODE=token" in _reason("Unauthenticated: InvalidAuthToken\nConnectionError: no", 1)
    assert _reason("", 7) == "exit code 7"
