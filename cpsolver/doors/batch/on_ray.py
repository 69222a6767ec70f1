"""The same cells as tasks of a Ray cluster: one that is there, or a local one for this run."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from typing import Any

from cpsolver.doors.batch.cases import product_version
from cpsolver.doors.batch.pool import CellOutcome, CellTask, failure, solve
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import later, say

_ANSWER_S = 60.0
"""An address that has not let a process join in that time is given up."""

_LOST = later("its worker was lost, {times} times: for want of memory, maybe")
_FAILED = later("the task failed on its worker: {told}")
_OTHER = later("apss-cp is {there} on this worker and {here} on the driver: install the same on all")
RAY_FAILURES = (_LOST, _FAILED, _OTHER)
"""What goes wrong with a cell: kept in English, whatever is spoken."""

_CONNECT_S = 10.0
_RETRIES = 3
_NO_LONGER = later("the Ray cluster was lost ({kind}): what was done is kept, the same command goes on")
_PROBE = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR'); ray.shutdown()"


def check_ray(address: str | None, wait_s: float = _ANSWER_S) -> None:
    """Raises InputError when Ray is not installed, or nothing answers at the address within `wait_s` seconds.

    A process of its own tries the address: Ray's client cannot be called off, and may end its process.
    """
    try:
        import ray  # noqa: F401
    except ImportError:
        raise InputError(Trouble("--on ray", later("needs Ray: pip install 'apss-cp[ray]'"))) from None
    if address is None:
        return
    _check_port(address)
    try:
        command = [sys.executable, "-c", _PROBE, address]
        probe = subprocess.run(command, capture_output=True, text=True, timeout=wait_s, check=False)
    except subprocess.TimeoutExpired:
        told = say("no answer from a Ray cluster within {wait_s:.0f} s", wait_s=wait_s)
    else:
        if probe.returncode == 0:
            return
        told = say("no Ray cluster could be joined: {why}", why=_reason(probe.stderr, probe.returncode))
    raise _no_cluster(told, address)


def _reason(said: str, code: int) -> str:
    """What Ray said last when a process could not join."""
    if "Unauthenticated" in said:
        return say("it asks for a token: set RAY_AUTH_MODE=token, and the token as Ray's documentation on it says")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][:300] if lines else say("exit code {code}", code=code)


def _check_port(address: str) -> None:
    """Raises InputError when nothing listens at HOST:PORT, which is known much sooner than that it is no Ray."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return  # auto, local or a name of Ray's own
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        told = say("nothing listens there: {why}", why=getattr(error, "strerror", None) or error)
        raise _no_cluster(told, address) from None


def _no_cluster(told: str, address: str) -> InputError:
    allowed = say("the address that `ray start --head` prints, auto, or none for a local cluster")
    return InputError(Trouble("--ray-address", told, address, allowed))


def solve_on_ray(tasks: Sequence[CellTask], jobs: int | None, address: str | None) -> Iterator[CellOutcome]:
    """Every task's outcome as it comes; a lost worker's task is run again by Ray, a few times.

    `jobs` tasks at most are under way, by default two for every core of the cluster. Close the iterator to stop.
    Raises InputError when the cluster is lost.
    """
    import ray

    local = {"address": "local", "num_cpus": jobs, "include_dashboard": False}  # not one that happens to run here
    with redirect_stdout(sys.stderr):  # Ray tells of dead workers on stdout, which is for the answer
        ray.init(**({"address": address} if address else local), log_to_driver=False, logging_level="ERROR")
        try:
            remote = ray.remote(num_cpus=1, max_retries=_RETRIES)(_solve_same)
            limit = jobs or max(2, round(2 * ray.cluster_resources().get("CPU", 1)))
            yield from _all(ray, remote, deque(tasks), limit)
        finally:
            ray.shutdown()


def _all(ray: Any, remote: Any, waiting: deque[CellTask], limit: int) -> Iterator[CellOutcome]:
    running: dict[Any, str] = {}
    version = product_version()
    while waiting or running:
        while waiting and len(running) < limit:
            task = waiting.popleft()
            running[remote.remote(task, version)] = task.key
        done, _ = ray.wait(list(running), num_returns=1)
        for reference in done:
            yield _outcome(ray, reference, running.pop(reference))


def _outcome(ray: Any, reference: Any, key: str) -> CellOutcome:
    errors = ray.exceptions
    try:
        outcome = ray.get(reference)
    except (errors.WorkerCrashedError, errors.OutOfMemoryError, errors.NodeDiedError):
        return CellOutcome(key, failure(_LOST.format(times=_RETRIES + 1)))
    except errors.RayTaskError as error:
        told = str(error).strip().splitlines()[-1]
        return CellOutcome(key, failure(_FAILED.format(told=told)))
    except errors.RayError as error:
        told = say(_NO_LONGER, kind=type(error).__name__)
        raise InputError(Trouble("--on ray", told)) from None
    assert isinstance(outcome, CellOutcome)
    return outcome


def _solve_same(task: CellTask, version: str) -> CellOutcome:
    """Solve a task on a worker that has the same apss-cp as the driver: another one's answers are others."""
    if product_version() != version:
        return CellOutcome(task.key, failure(_OTHER.format(there=product_version(), here=version)))
    return solve(task)
