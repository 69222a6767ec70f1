"""`apss-cp serve`: what it starts from, what it says, whom it opens, how it ends."""

from __future__ import annotations

import json
import os
import signal
import webbrowser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from cpsolver.commands import serving
from cpsolver.doors.serve.server import PageServer, listening
from cpsolver.spec.starter import starter_spec
from tests.support.command import in_tmp as in_tmp
from tests.support.command import run, write
from tests.support.html_page import parse
from tests.support.problems import chip_spec, model_spec
from tests.support.served import SPEC, Server, served_command


def shown_text(server: Server) -> str:
    page = parse(server.ask("GET", server.path).body.decode())
    return str(json.loads(page.all("script")[0].text)["text"])


@pytest.mark.full
def test_a_spec_is_planned_and_ctrl_c_ends_it_cleanly() -> None:
    write("m.yaml", json.dumps(model_spec(name="mine")))
    write("x.yaml", json.dumps(chip_spec()))
    spec = write("spec.yaml", SPEC.replace("llama2-7b", "m.yaml").replace("a800", "{x: {max: 8, file: x.yaml}}"))
    with served_command(spec, "--time-limit", "20") as server:
        text = shown_text(server)
        assert text == Path(spec).read_text(encoding="utf-8")
        told = json.loads(server.plan(text.replace("sequence_length: 4096", "sequence_length: 1024")).body)
        assert told == {"status": "optimal", "answer": 1}
        answer = server.ask("GET", f"{server.path}answer/1")
        assert "mine" in parse(answer.body.decode()).one("h1").text
        outside = json.loads(server.plan(text.replace("m.yaml", "../m.yaml")).body)
        assert "outside the folder" in outside["troubles"][0]["text"]
        infeasible = json.loads(server.plan(SPEC.replace("llama2-7b", "llama2-70b")).body)
        assert infeasible == {"status": "infeasible", "answer": 2}
        reasons = server.ask("GET", f"{server.path}answer/2").body
        assert b"Why there is no plan" in reasons
        process = server.process
        assert process is not None
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stdout is not None
        assert process.stderr is not None
        assert (process.stdout.read(), process.stderr.read()) == ("", "Ctrl-C ends the server.\n")
    assert sorted(path.name for path in Path().iterdir()) == ["m.yaml", "spec.yaml", "x.yaml"]


@pytest.mark.full
def test_without_a_spec_it_starts_from_the_starter_and_names_no_file() -> None:
    with served_command() as server:
        assert shown_text(server) == starter_spec()
        told = json.loads(server.plan(SPEC.replace("llama2-7b", "m.yaml")).body)
        assert "no spec's folder was given" in told["troubles"][0]["text"]


@pytest.fixture
def not_run(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Servers end as soon as they would serve; what the browser is given."""
    urls: list[str] = []

    def show(url: str) -> bool:
        urls.append(url)
        return False

    def end(server: PageServer, sockets: object = None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(webbrowser, "open", show)
    monkeypatch.setattr(PageServer, "run", end)
    return urls


def test_the_browser_gets_a_code_and_not_the_token(not_run: list[str]) -> None:
    result = run("serve", write("spec.yaml", SPEC))
    assert result.exit_code == 0, result.output
    (url,) = not_run
    (address,) = result.stdout.splitlines()
    assert urlsplit(url).netloc == urlsplit(address).netloc
    assert urlsplit(url).path.startswith("/start/")
    assert urlsplit(address).path.strip("/") not in url
    assert "no browser was found" in result.stderr


def test_no_open_opens_nothing(not_run: list[str]) -> None:
    with listening(0) as taken:
        port = taken.getsockname()[1]
    result = run("serve", "--no-open", "--port", str(port))
    assert (result.exit_code, not_run) == (0, [])
    assert result.stdout.startswith(f"http://127.0.0.1:{port}/")


def test_a_spec_from_standard_input(not_run: list[str]) -> None:
    assert run("serve", "--no-open", "-", stdin=SPEC).exit_code == 0


def test_what_cannot_be_served_is_told() -> None:
    assert "none.yaml: no such file" in run("serve", "none.yaml").stderr
    assert "none.yaml" in run("serve", "--calibration", "none.yaml").stderr
    with listening(0) as taken:
        result = run("serve", "--no-open", "--port", str(taken.getsockname()[1]))
    assert result.exit_code == 2
    assert "--port" in result.stderr
    assert "cannot be listened to" in result.stderr


def test_without_the_extra_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "find_spec", lambda name: None)
    result = run("serve")
    assert result.exit_code == 2
    assert "pip install 'apss-cp[serve]'" in result.stderr
