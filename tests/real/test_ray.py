"""apss-cp batch on a real Ray: a local one and one by its address, workers and drivers killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.batch_sweeps import BASE, EIGHT, answers, rows, start, wait_for_rows
from tests.support.command import in_tmp, run, write

pytest.importorskip("ray")
pytestmark = pytest.mark.full

__all__ = ["in_tmp"]

OPEN = {"RAY_AUTH_MODE": "disabled"}
"""The test's own cluster listens to this machine only, and asks for no token."""


def free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


def answers_at(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Ray cluster with two workers."""
    port = free_port()
    where = ["--head", "--node-ip-address=127.0.0.1", f"--port={port}", "--block"]
    what = ["--num-cpus=2", "--include-dashboard=false", "--disable-usage-stats"]
    log = (tmp_path_factory.mktemp("ray") / "head.log").open("w")
    command = [str(Path(sys.executable).parent / "ray"), "start", *where, *what]
    head = subprocess.Popen(command, env={**os.environ, **OPEN}, stdout=log, stderr=log)
    try:
        while not answers_at(port):
            assert head.poll() is None, Path(log.name).read_text(encoding="utf-8")
            time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        head.terminate()
        head.wait()
        log.close()


def descendants(ancestor: int) -> list[int]:
    """Process ids below one, from /proc."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it ended
    found = [ancestor]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found[1:]


def kill_a_busy_worker(driver: subprocess.Popen[str]) -> None:
    """Kill a process of the driver's own Ray while it solves a cell."""
    while driver.poll() is None:
        for process in descendants(driver.pid):
            try:
                busy = b"ray::_solve_same" in Path(f"/proc/{process}/cmdline").read_bytes()
            except OSError:
                continue
            if busy:
                os.kill(process, signal.SIGKILL)
                return
        time.sleep(0.02)
    raise AssertionError(driver.communicate())


def test_a_killed_worker_s_cell_is_solved_again_and_the_rows_are_those_of_processes() -> None:
    write("sweep.yaml", EIGHT)
    driver = start("--on", "ray", "--jobs", "2", "--json")
    wait_for_rows(driver, 2)
    kill_a_busy_worker(driver)
    told, errors = driver.communicate()
    assert driver.returncode == 0, errors
    assert json.loads(told)["counts"] == {"optimal": 8}
    assert run("batch", "sweep.yaml", "--db", "processes.sqlite").exit_code == 0
    assert answers("sweep.sqlite") == answers("processes.sqlite")


def test_on_a_cluster_by_its_address_a_killed_driver_goes_on_where_it_was(cluster: str) -> None:
    write("sweep.yaml", EIGHT)
    driver = start("--on", "ray", "--ray-address", cluster, "--jobs", "1", **OPEN)
    wait_for_rows(driver, 2)
    driver.kill()
    driver.communicate()
    before = rows("sweep.sqlite")
    assert 2 <= len(before) < 8
    second = start("--on", "ray", "--ray-address", cluster, "--json", **OPEN)
    told, errors = second.communicate()
    assert second.returncode == 0, errors
    assert json.loads(told)["solved"] == 8 - len(before)
    after = rows("sweep.sqlite")
    assert {key: after[key] for key in before} == before


def test_ctrl_c_keeps_what_is_done(cluster: str) -> None:
    write("sweep.yaml", EIGHT)
    driver = start("--on", "ray", "--ray-address", cluster, "--jobs", "1", **OPEN)
    wait_for_rows(driver, 1)
    driver.send_signal(signal.SIGINT)
    _, told = driver.communicate()
    assert driver.returncode == 130
    assert f"stopped: {len(rows('sweep.sqlite'))} of 8 cells are kept" in told


def test_an_address_where_nothing_listens_is_a_clear_error_and_nothing_is_lost() -> None:
    write("sweep.yaml", BASE + "list: [{cluster.num_gpus: 16}]")
    assert run("batch", "sweep.yaml").exit_code == 0
    before = rows("sweep.sqlite")
    write("sweep.yaml", BASE + "list: [{cluster.num_gpus: 16}, {cluster.num_gpus: 32}]")
    result = run("batch", "sweep.yaml", "--on", "ray", "--ray-address", f"127.0.0.1:{free_port()}")
    assert result.exit_code == 2
    assert "nothing listens there" in result.stderr
    assert rows("sweep.sqlite") == before
