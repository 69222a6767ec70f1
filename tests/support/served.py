"""`apss-cp serve` as a process of its own, and in a thread of the test's."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cpsolver.doors.report.html.editing import edit_page
from cpsolver.doors.serve.guard import Keys
from cpsolver.doors.serve.planner import Planner
from cpsolver.doors.serve.server import Served, application, listening, server
from cpsolver.doors.serve.spec_text import PageLimits
from cpsolver.problem.problem import Problem

SPEC = """\
model: llama2-7b
cluster: {num_gpus: 8, chips: a800}
training: {global_batch_size: 16, sequence_length: 4096}
search: {top: 2, pin: {cp: 1}}
"""


@dataclass(frozen=True)
class Server:
    """A server that runs: its address, the token in it, and its process if it is one."""

    address: str
    process: subprocess.Popen[str] | None = None

    @property
    def port(self) -> int:
        """Where it listens."""
        port = urlsplit(self.address).port
        assert port is not None
        return port

    @property
    def path(self) -> str:
        """The path of its page: the token, between slashes."""
        return urlsplit(self.address).path

    @property
    def origin(self) -> str:
        """What a browser calls it."""
        return self.address.removesuffix(self.path)

    def raw(self, request: bytes, *, done: bool = False, timeout_s: float = 20.0) -> bytes:
        """What comes back for these bytes, until the server ends the connection.

        `done`: it is told that no more comes, so that its clocks need not run out for a request that is cut short.
        """
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s) as connection:
            got = b""
            try:
                connection.sendall(request)
                if done:
                    connection.shutdown(socket.SHUT_WR)
                while piece := connection.recv(65536):
                    got += piece
            except ConnectionError:  # cut off: what has come is the answer
                pass
            return got

    def ask(self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b"") -> Answer:
        """A well-formed request, as the page sends it but for the headers given; a value of "" leaves one out."""
        usual = {
            "Host": f"127.0.0.1:{self.port}",
            "Connection": "close",
            "Content-Length": str(len(body)),
            **({"Origin": self.origin, "Content-Type": "application/yaml"} if method == "POST" else {}),
        }
        lines = [f"{name}: {value}" for name, value in {**usual, **(headers or {})}.items() if value]
        head = "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""])
        return Answer.of(self.raw(head.encode("latin-1") + body))

    def plan(self, text: str) -> Answer:
        """What the page's button does."""
        return self.ask("POST", f"{self.path}plan", body=text.encode())


@dataclass(frozen=True)
class Answer:
    """An HTTP answer; status 0: none."""

    status: int
    headers: dict[str, str]
    body: bytes

    @staticmethod
    def of(raw: bytes) -> Answer:
        """What was read."""
        head, _, body = raw.partition(b"\r\n\r\n")
        if head.startswith(b"HTTP/1.1 100 "):  # the server only says that it waits for the body
            return Answer.of(body)
        first, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return Answer(int(first.split()[1]) if first else 0, {k.lower(): v.strip() for k, _, v in pairs}, body)


def stand_in(problem: Problem, tell: Callable[[str], None]) -> tuple[str, str]:
    """What plans for tests of all else, told what to do by the batch size: it takes no time, but for

    - 90: sleeps, until SIGINT, and then has a plan; 91: sleeps whatever comes; 92: dies; 93: has a bug; 94: no memory.
    """
    batch = problem.spec.training.global_batch_size
    if batch in (90, 91):
        tell("half of it is done")
        while True:
            try:
                Path("asleep").touch()  # from here on SIGINT may come
                time.sleep(60)
            except KeyboardInterrupt:
                if batch == 90:
                    return "feasible", "<!DOCTYPE html>so far"
    if batch == 92:
        os._exit(7)
    if batch == 93:
        raise ZeroDivisionError("one over none")
    if batch == 94:
        raise MemoryError
    return "optimal", f"<!DOCTYPE html>{problem.model.name}, batch {batch}"


def with_batch(batch: int) -> str:
    """The spec that tells the stand-in so."""
    return SPEC.replace("global_batch_size: 16", f"global_batch_size: {batch}")


def waits_for(file: str, limit_s: float = 20.0) -> None:
    """Until the file is there."""
    until = time.monotonic() + limit_s
    while not Path(file).exists():
        assert time.monotonic() < until, f"{file} does not come"
        time.sleep(0.02)


@contextmanager
def served_here(folder: Path | None = None, **settings: Any) -> Iterator[tuple[Server, Keys]]:
    """A server in a thread of this process, whose plans are the stand-in's."""
    planner, keys, listener = Planner(stand_in, PageLimits(60.0, folder)), Keys(), listening(0)
    port = listener.getsockname()[1]
    running = server(application(Served(SPEC, "spec.yaml", edit_page), planner, keys, port), planner, **settings)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield Server(keys.address(port)), keys
    finally:
        planner.close()
        running.should_exit = True
        thread.join(20)
        listener.close()
        assert not thread.is_alive()


@contextmanager
def served_command(*args: str) -> Iterator[Server]:
    """The command, started without a browser; it is ended by Ctrl-C if the test has not."""
    program = "from cpsolver.commands.main import main; main()"
    command = [sys.executable, "-c", program, "serve", "--no-open", *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address, process.stderr and process.stderr.read()
            yield Server(address, process)
        finally:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGINT)
            try:
                process.wait(20)
            finally:
                process.kill()
