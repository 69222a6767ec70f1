"""The server over real sockets, with a stand-in for the search: its answers, its limits, its clocks."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from cpsolver.doors.serve.guard import SAFE_HEADERS
from cpsolver.doors.serve.server import TimedProtocol, listening
from cpsolver.inputs.errors import InputError
from cpsolver.inputs.language import CHINESE, speaking
from cpsolver.inputs.limits import MOST_DOCUMENT_BYTES
from tests.support.command import in_tmp as in_tmp
from tests.support.html_page import parse
from tests.support.served import SPEC, Answer, Server, served_here, waits_for, with_batch


@pytest.fixture
def served() -> Iterator[Server]:
    with served_here() as (server, _):
        yield server


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No traceback goes to the terminal."""
    yield
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


def document(answer: Answer) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer.body)
    return found


def how_far(server: Server) -> str:
    """What a plan that is being made tells first."""
    until = time.monotonic() + 20
    while not (told := str(document(server.ask("GET", f"{server.path}progress"))["told"])):
        assert time.monotonic() < until
        time.sleep(0.1)
    return told


def test_the_page_has_the_spec_and_may_run_its_own_script_only(served: Server) -> None:
    answer = served.ask("GET", served.path)
    assert answer.status == 200
    page = parse(answer.body.decode())
    data, script = page.all("script")
    assert json.loads(data.text)["text"] == SPEC
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert served.path.strip("/") not in answer.body.decode()
    assert page.one("iframe").attributes["sandbox"] == "allow-scripts allow-downloads"
    assert script.text


def test_a_spec_is_planned_and_its_answer_shown(served: Server) -> None:
    assert document(served.plan(with_batch(32))) == {"status": "optimal", "answer": 1}
    answer = served.ask("GET", f"{served.path}answer/1")
    assert answer.body == b"<!DOCTYPE html>llama2-7b, batch 32"
    assert answer.headers["content-security-policy"].startswith("sandbox allow-scripts allow-downloads;")
    assert answer.headers["x-frame-options"] == "SAMEORIGIN"
    page = parse(served.ask("GET", served.path).body.decode())
    given = json.loads(page.all("script")[0].text)
    assert (given["answer"], given["text"]) == (1, with_batch(32))


@pytest.mark.full
def test_only_the_last_answers_are_kept(served: Server) -> None:
    for _ in range(5):
        served.plan(SPEC)
    assert [served.ask("GET", f"{served.path}answer/{number}").status for number in (0, 1, 2, 5, 6)] == [
        404, 404, 200, 200, 404,
    ]  # fmt: skip


@pytest.mark.parametrize("number", ["9" * 5000, "-1", "1.0", "٣", "x", ""])
def test_what_is_no_number_of_an_answer_is_none(served: Server, number: str) -> None:
    assert served.ask("GET", f"{served.path}answer/{quote(number)}").status == 404


@pytest.mark.full
def test_a_bad_spec_has_its_troubles_and_a_bug_its_message(served: Server) -> None:
    told = document(served.plan(SPEC.replace("num_gpus: 8", "num_gpus: 7")))
    assert [trouble["line"] for trouble in told["troubles"]] == [2]
    assert "this is a bug" in str(document(served.plan(with_batch(93)))["said"])
    assert document(served.plan(""))["status"] == "bad_input"
    latin = served.ask("POST", f"{served.path}plan", body=b"model: \xff\xfe")
    assert (latin.status, document(latin)) == (400, {"said": "The spec is not UTF-8 text."})


def test_every_answer_is_safe_and_none_is_for_other_sites(served: Server) -> None:
    asked = [
        served.ask("GET", served.path),
        served.ask("GET", "/"),
        served.ask("GET", f"{served.path}answer/7"),
        served.ask("GET", f"{served.path}plan"),
        served.ask("GET", "/progress"),
        served.ask("GET", f"{served.path}progress", {"Sec-Fetch-Site": "cross-site"}),
        served.ask("GET", served.path, {"Host": "evil.test"}),
        served.ask("POST", f"{served.path}plan", {"Origin": "http://evil.test"}, SPEC.encode()),
        served.ask("OPTIONS", f"{served.path}plan", {"Origin": "http://evil.test"}),
        served.ask("POST", f"{served.path}plan", {"Content-Type": "text/plain"}, SPEC.encode()),
        served.plan(SPEC),
    ]
    assert [one.status for one in asked] == [200, 404, 404, 405, 404, 403, 403, 403, 403, 415, 200]
    for one in asked:
        assert SAFE_HEADERS.keys() <= one.headers.keys()
        assert not [name for name in one.headers if name.startswith("access-control-") or name == "set-cookie"]
        assert "server" not in one.headers


def test_the_page_and_what_it_is_told_are_chinese() -> None:
    with speaking(CHINESE), served_here() as (server, _):
        page = parse(server.ask("GET", server.path).body.decode())
        wrong = document(server.plan(SPEC.replace("num_gpus: 8", "num_gpus: 7")))
        gone = server.ask("GET", f"{server.path}answer/7").body.decode()
    assert [each.text for each in page.all("button")][1:] == ["停止", "保存规格"]
    said = json.loads(page.one("script", id="words").text)
    assert said["Planning: {seconds} s; {progress}"] == "正在规划：{seconds} s；{progress}"
    assert "节点须整个使用" in wrong["troubles"][0]["text"]
    assert gone == "这个结果已不再保留：请重新规划。"


def test_the_code_leads_to_the_page_once() -> None:
    with served_here() as (server, keys):
        path = f"/start/{keys.code}"
        assert server.ask("HEAD", path).status == 404
        first, second = server.ask("GET", path), server.ask("GET", path)
        assert (first.status, first.headers["location"], second.status) == (303, server.path, 404)


@pytest.mark.full
def test_a_second_plan_has_to_wait_and_stop_stops_the_first(served: Server) -> None:
    found: list[Answer] = []
    thread = threading.Thread(target=lambda: found.append(served.plan(with_batch(90))))
    thread.start()
    waits_for("asleep")
    assert how_far(served) == "half of it is done"
    busy = served.plan(SPEC)
    assert busy.status == 409
    assert "Another plan is being made" in str(document(busy)["said"])
    assert served.ask("POST", f"{served.path}stop").body == b'{"stopped":true}'
    thread.join(20)
    assert document(found[0]) == {"status": "feasible", "answer": 1}
    assert served.ask("POST", f"{served.path}stop").body == b'{"stopped":false}'
    assert document(served.ask("GET", f"{served.path}progress")) == {"told": ""}


@pytest.mark.full
def test_who_leaves_does_not_keep_the_server(served: Server) -> None:
    body = with_batch(91).encode()
    head = f"POST {served.path}plan HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nOrigin: {served.origin}\r\n"
    head += f"Content-Type: application/yaml\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(head.encode() + body)
        waits_for("asleep")
    until = time.monotonic() + 20
    while (answer := served.plan(SPEC)).status == 409:
        assert time.monotonic() < until
        time.sleep(0.1)
    assert document(answer)["status"] == "optimal"


CHUNKED = {"Transfer-Encoding": "chunked", "Content-Length": ""}


@pytest.mark.full
def test_a_body_that_is_too_large_is_refused_however_it_comes(served: Server) -> None:
    told = served.ask("POST", f"{served.path}plan", {"Content-Length": str(MOST_DOCUMENT_BYTES + 1)})
    assert told.status == 413
    chunk = b"10000\r\n" + b"a" * 65536 + b"\r\n"
    assert served.ask("POST", f"{served.path}plan", CHUNKED, chunk * 65 + b"0\r\n\r\n").status == 413
    fits = served.ask("POST", f"{served.path}plan", CHUNKED, b"a\r\n# a spec?\n\r\n0\r\n\r\n")
    assert document(fits)["status"] == "bad_input"


def test_headers_that_are_too_large_are_refused(served: Server) -> None:
    assert served.ask("GET", served.path, {"X-Long": "a" * 1_000_000}).status in (0, 400)
    assert served.ask("GET", served.path + "?" + "a" * 1_000_000).status in (0, 400)


@pytest.mark.full
def test_a_request_that_drips_is_cut_off(monkeypatch: pytest.MonkeyPatch, served: Server) -> None:
    monkeypatch.setattr(TimedProtocol, "_request_s", 0.6)
    head = f"POST {served.path}plan HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nOrigin: {served.origin}\r\n"
    whole = head + "Content-Type: application/yaml\r\nContent-Length: 1000\r\n\r\n" + "a" * 500
    for text in ("", head, whole):
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
            connection.sendall(text.encode())
            ended = False
            while not ended and time.monotonic() < began + 5:
                try:
                    connection.sendall(b"a") if text else None
                    connection.settimeout(0.1)
                    ended = connection.recv(1) == b""
                except TimeoutError:
                    continue
                except ConnectionError:
                    ended = True
        assert 0.4 < time.monotonic() - began < 4
    assert served.ask("GET", served.path).status == 200


@pytest.mark.full
def test_a_long_plan_is_no_slow_request(monkeypatch: pytest.MonkeyPatch, served: Server) -> None:
    monkeypatch.setattr(TimedProtocol, "_request_s", 0.3)
    found: list[Answer] = []
    thread = threading.Thread(target=lambda: found.append(served.plan(with_batch(90))))
    thread.start()
    waits_for("asleep")
    time.sleep(0.6)
    served.ask("POST", f"{served.path}stop")
    thread.join(20)
    assert document(found[0])["status"] == "feasible"


def test_several_requests_of_one_connection(served: Server) -> None:
    get = f"GET {served.path}answer/9 HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n"
    got = served.raw((get + "\r\n" + get + "\r\n" + get + "Connection: close\r\n\r\n").encode())
    assert re.findall(rb"HTTP/1.1 (\d+)", got) == [b"404"] * 3


def test_more_connections_than_allowed_are_turned_away() -> None:
    with served_here(limit_concurrency=3) as (server, _):
        held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
        time.sleep(0.2)
        assert server.ask("GET", server.path).status == 503
        for one in held:
            one.close()
        time.sleep(0.2)
        assert server.ask("GET", server.path).status == 200


def test_a_port_that_is_taken_is_told() -> None:
    with listening(0) as one:
        address, port = one.getsockname()
        with pytest.raises(InputError) as caught:
            listening(port)
    assert address == "127.0.0.1"
    assert "cannot be listened to" in str(caught.value)


@pytest.mark.full
def test_texts_of_a_spec_are_texts(served: Server) -> None:
    """A comment that looks like markup ends no element of the page."""
    text = SPEC + "# </script><script>alert(1)</script> <!-- ]]>\n"
    assert document(served.plan(text))["status"] == "optimal"
    page = parse(served.ask("GET", served.path).body.decode())
    data, _ = page.all("script")
    assert json.loads(data.text)["text"] == text


def test_keys_are_told_apart() -> None:
    with served_here() as (one, _), served_here() as (two, _):
        assert one.ask("GET", two.path).status == 404
        assert one.path != two.path
