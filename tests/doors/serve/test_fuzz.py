"""Random requests, well-formed and not: no traceback, no 500, and nothing for whoever is not the page itself."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator

import pytest

from tests.support.served import SPEC, Answer, Server, served_here

SEEDS = range(8)
REQUESTS = 150
SECRET = "a name that only the spec has"
METHODS = (
    "GET",
    "GET",
    "POST",
    "POST",
    "POST",
    "HEAD",
    "OPTIONS",
    "PUT",
    "DELETE",
    "PATCH",
    "TRACE",
    "CONNECT",
    "get",
    "X",
)
EXPECTED = {0, 200, 303, 400, 403, 404, 405, 409, 413, 415, 501}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served_here() as (server, _):
        server.plan(f"{SPEC}# {SECRET}\n")
        yield server


class Fuzz:
    """Requests of one seed; each knows whether it may be answered."""

    def __init__(self, seed: int, server: Server) -> None:
        self.random, self.server = random.Random(seed), server

    def path(self) -> tuple[str, bool]:
        token, r = self.server.path.strip("/"), self.random
        tail = r.choice(
            [
                "",
                "plan",
                "stop",
                "answer/1",
                "answer/-1",
                "answer/" + "9" * 400,
                "answer/x",
                "../",
                "%2e%2e/",
                "é",
                "?q",
            ]
        )
        wrong = [
            token[:-1], token + "a", token.swapcase(), "", "x", "%00", "/" + token, "start", "start/None", "*",
            "..", token[::-1], "\xff", "http://127.0.0.1:1/" + token + "/" + tail,
        ]  # fmt: skip
        return (f"/{token}/{tail}", True) if r.random() < 0.6 else (f"/{r.choice(wrong)}/{tail}", False)

    def host(self) -> tuple[list[str], bool]:
        port, r = self.server.port, self.random
        good = [f"127.0.0.1:{port}", f"localhost:{port}", f"LOCALHOST:{port}"]
        wrong = [
            "evil.test",
            f"evil.test:{port}",
            "127.0.0.1",
            f"127.0.0.1:{port + 1}",
            "",
            f"127.0.0.1:{port}.evil.test",
            "\xff",
        ]
        if r.random() < 0.75:
            return [r.choice(good)], True
        return r.choice([[r.choice(wrong)], [], [good[0], wrong[0]], [wrong[0], good[0]]]), False

    def origin(self) -> tuple[list[str], bool | None]:
        """None: no origin is given."""
        r = self.random
        wrong = [
            "null",
            "http://evil.test",
            f"http://evil.test:{self.server.port}",
            "http://127.0.0.1",
            "",
            "\x80",
            "a" * 5000,
        ]
        if r.random() < 0.2:
            return [], None
        if r.random() < 0.6:
            return [self.server.origin], True
        return r.choice([[r.choice(wrong)], [self.server.origin, "http://evil.test"]]), False

    def body(self) -> bytes:
        r = self.random
        whole = SPEC.encode()
        spoilt = bytearray(whole)
        for _ in range(r.randrange(6)):
            spoilt[r.randrange(len(spoilt))] = r.randrange(256)
        return r.choice(
            [whole, bytes(spoilt), b"", r.randbytes(r.randrange(3000)), b"[" * 5000, whole[: r.randrange(99)]]
        )

    def request(self) -> tuple[bytes, bool]:
        """The bytes, and whether anything but a refusal may come back."""
        r, method = self.random, self.random.choice(METHODS)
        path, known = self.path()
        hosts, right_host = self.host()
        origins, right_origin = self.origin()
        site = r.choice([None, None, "same-origin", "none", "cross-site", "same-site", "\x7f"])
        plain = method in ("GET", "HEAD")
        allowed = known and right_host and (right_origin or (right_origin is None and plain))
        allowed = allowed and (site in (None, "same-origin") or (plain and site == "none"))
        body = b"" if plain and r.random() < 0.8 else self.body()
        lines = [*(f"Host: {one}" for one in hosts), *(f"Origin: {one}" for one in origins)]
        lines += [] if site is None else [f"Sec-Fetch-Site: {site}"]
        lines += [
            f"Content-Type: {r.choice(['application/yaml', 'application/yaml', 'text/plain', ''])}",
            *self.framing(body),
        ]
        lines += r.choice(
            [[], [], ["X-Forwarded-Host: evil.test", "X-Forwarded-For: 1.2.3.4"], ["Cookie: " + "a" * 3000]]
        )
        lines += r.choice([[], [], ["Upgrade: websocket", "Connection: Upgrade"], ["Expect: 100-continue"]])
        r.shuffle(lines)
        head = "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "Connection: close", "", ""])
        return head.encode("latin-1", "replace") + body, allowed

    def framing(self, body: bytes) -> list[str]:
        """How long the body is: true, false, twice, or not a number."""
        r, true = self.random, f"Content-Length: {len(body)}"
        if r.random() < 0.7:
            return [true]
        odd = ["-1", "0x10", "9" * 300, str(5 * 2**20), "1,1", "", str(max(0, len(body) - 3))]
        return r.choice(
            [[f"Content-Length: {r.choice(odd)}"], [true, "Content-Length: 3"], ["Transfer-Encoding: chunked"], []]
        )

    def malformed(self, request: bytes) -> bytes:
        """The request with bytes changed, cut, doubled or added, or only noise."""
        r = self.random
        at = r.randrange(len(request))
        noise = r.randbytes(r.randrange(1, 40))
        spoilt = [request[:at] + noise + request[at:], request[:at] + request[at + 9 :], noise + request, noise]
        spoilt += [request[:at], request[:at] + request, request.replace(b"\r\n", b"\n")]
        return r.choice([*spoilt, request.replace(b"HTTP/1.1", b"HTTP/9.9")])


def assert_sound(answer: Answer) -> None:
    assert answer.status in EXPECTED
    assert b"Traceback" not in answer.body
    assert not [name for name in answer.headers if name.startswith("access-control-") or name == "set-cookie"]


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.full
@pytest.mark.parametrize("seed", SEEDS)
def test_well_formed_requests(seed: int, server: Server, caplog: pytest.LogCaptureFixture) -> None:
    fuzz = Fuzz(seed, server)
    for _ in range(REQUESTS):
        request, allowed = fuzz.request()
        answer = Answer.of(server.raw(request, done=True))
        assert_sound(answer)
        if not allowed:
            assert answer.status not in (200, 303), request
            assert SECRET.encode() not in answer.body
            assert server.path.strip("/").encode() not in answer.body
    assert server.ask("GET", server.path).status == 200
    assert errors(caplog) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_malformed_requests(seed: int, server: Server, caplog: pytest.LogCaptureFixture) -> None:
    fuzz = Fuzz(1000 + seed, server)
    for _ in range(REQUESTS):
        request, _ = fuzz.request()
        assert_sound(Answer.of(server.raw(fuzz.malformed(request), done=True)))
    assert server.ask("GET", server.path).status == 200
    assert errors(caplog) == []
