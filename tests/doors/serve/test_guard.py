"""Who is let in by the headers alone, and the keys of the door."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from cpsolver.doors.serve.guard import Keys, refusal
from cpsolver.inputs.limits import MOST_DOCUMENT_BYTES

PORT = 8765
OWN = {"host": "127.0.0.1:8765"}
POST = {**OWN, "origin": "http://127.0.0.1:8765", "content-type": "application/yaml", "content-length": "10"}
BROWSER = {**POST, "sec-fetch-site": "same-origin"}


def status(method: str, headers: dict[str, str], port: int = PORT) -> int:
    """0 where the request is let in."""
    found = refusal(method, Headers(headers), port)
    return 0 if found is None else found.status


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", OWN),
        ("GET", {"host": "LocalHost:8765"}),
        ("GET", {**OWN, "sec-fetch-site": "none"}),  # typed, pasted, or opened by the command
        ("GET", {**OWN, "sec-fetch-site": "same-origin"}),
        ("POST", POST),
        ("POST", BROWSER),
        ("POST", {**BROWSER, "host": "localhost:8765", "origin": "http://localhost:8765"}),
        ("POST", {**BROWSER, "content-type": "Application/YAML; charset=utf-8"}),
        ("POST", {**BROWSER, "content-length": str(MOST_DOCUMENT_BYTES)}),
    ],
)
def test_the_page_and_a_typed_address_are_let_in(method: str, headers: dict[str, str]) -> None:
    assert status(method, headers) == 0


@pytest.mark.parametrize(
    "host",
    [
        "", "127.0.0.1", "localhost", "127.0.0.1:80", "127.0.0.1:8766", "evil.test:8765", "127.0.0.1.evil.test:8765",
        "localhost.:8765", "[::1]:8765", "0.0.0.0:8765", "127.1:8765", "2130706433:8765", "evil.test@127.0.0.1:8765",
        "127.0.0.1:8765, evil.test", "127.0.0.1:8765/", "127.0.0.1:08765", "xn--lcalhost-1jg:8765",
    ],
)  # fmt: skip
def test_another_name_is_refused(host: str) -> None:
    assert status("GET", {"host": host}) == 403
    assert status("POST", {**BROWSER, "host": host}) == 403


@pytest.mark.parametrize(
    "origin",
    [
        "", "null", "http://evil.test", "http://127.0.0.1", "http://127.0.0.1:8766", "https://127.0.0.1:8765",
        "http://127.0.0.1:8765/", "http://127.0.0.1:8765.evil.test", "http://evil.test:8765", "file://",
        "127.0.0.1:8765",
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE"])
def test_another_origin_is_refused(method: str, origin: str) -> None:
    assert status(method, {**BROWSER, "origin": origin}) == 403


def test_what_plans_has_an_origin() -> None:
    without = {name: value for name, value in BROWSER.items() if name != "origin"}
    assert [status(method, without) for method in ("POST", "OPTIONS", "PUT")] == [403] * 3


@pytest.mark.parametrize("site", ["cross-site", "same-site", "none", "", "SAME-ORIGIN", "same-origin, none"])
def test_another_site_is_refused(site: str) -> None:
    assert status("POST", {**BROWSER, "sec-fetch-site": site}) == 403
    assert (status("GET", {**OWN, "sec-fetch-site": site}) == 403) is (site != "none")


@pytest.mark.parametrize("name", ["host", "origin", "sec-fetch-site", "content-type", "content-length"])
def test_a_header_twice_is_refused(name: str) -> None:
    raw = [(key.encode(), value.encode()) for key, value in BROWSER.items()]
    twice = Headers(raw=[*raw, (name.encode(), BROWSER[name].encode())])
    found = refusal("POST", twice, PORT)
    assert found is not None
    assert found.status == 400


def test_a_form_of_another_site_has_no_such_type() -> None:
    for kind in ("", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/json"):
        assert status("POST", {**BROWSER, "content-type": kind}) == 415


@pytest.mark.parametrize("length", [str(MOST_DOCUMENT_BYTES + 1), "9" * 400, "-1", "1e3", "ten", "١"])
def test_a_body_too_large_is_refused_by_its_length(length: str) -> None:
    raw = [(k.encode(), v.encode("utf-8")) for k, v in {**BROWSER, "content-length": length}.items()]
    found = refusal("POST", Headers(raw=raw), PORT)
    assert found is not None
    assert found.status == 413


def test_port_80_is_left_out_by_browsers() -> None:
    assert status("GET", {"host": "localhost"}, 80) == status("GET", {"host": "127.0.0.1:80"}, 80) == 0


def test_the_token_opens_and_nothing_else() -> None:
    keys = Keys()
    assert len(keys.token) > 40
    assert keys.token != Keys().token
    assert keys.address(PORT) == f"http://127.0.0.1:8765/{keys.token}/"
    assert keys.rest(f"/{keys.token}/plan") == "/plan"
    assert keys.rest(f"/{keys.token}/") == "/"
    wrong = (
        "",
        "/",
        f"/{keys.token}",
        f"//{keys.token}/",
        f"/{keys.token[:-1]}/",
        f"/{keys.token}x/",
        "/é\ud800/"[:2] + "/",
    )
    assert [keys.rest(path) for path in wrong] == [None] * len(wrong)
    assert keys.rest(f"/{keys.token.swapcase()}/") is None


def test_the_code_opens_once() -> None:
    keys = Keys()
    path = f"/start/{keys.code}"
    assert keys.first_address(PORT) == f"http://127.0.0.1:8765{path}"
    assert keys.token not in path
    assert [keys.use_code("/start/"), keys.use_code("/start/None"), keys.use_code(path + "x")] == [False] * 3
    assert [keys.use_code(path), keys.use_code(path), keys.use_code("/start/None")] == [True, False, False]
