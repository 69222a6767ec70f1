"""Who is let in: requests from the page that this server gave out, and no other.

A browser carries any site's requests to 127.0.0.1. Nothing is answered unless

- Host names this machine and this port, so that no name of a stranger's can be made to lead here (DNS rebinding);
- Origin and Sec-Fetch-Site, where a browser sends them, are the page's own; what plans has to have an Origin;
- the path begins with the token, which only the terminal and the page know. There is no cookie that a browser would
  add to another site's requests, and no header that lets another site read an answer.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cpsolver.inputs.language import say
from cpsolver.inputs.limits import MOST_DOCUMENT_BYTES

ADDRESS = "127.0.0.1"
SPEC_TYPE = "application/yaml"
"""What a spec is sent as: a type that no form has, so that a browser asks before it sends it for another site."""
_NAMES = (ADDRESS, "localhost")
_HTTP_PORT = 80
_JUDGED = ("host", "origin", "sec-fetch-site", "content-type", "content-length")
SAFE_HEADERS = {
    "content-security-policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Of every answer that says nothing else."""


@dataclass
class Keys:
    """What opens the door: the token of all addresses, and a code that leads to the first of them once.

    A browser is started with the code: other users of the machine can see what a program is started with.
    """

    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    code: str | None = field(default_factory=lambda: secrets.token_urlsafe(32))

    def address(self, port: int) -> str:
        """The page's address, to be kept secret."""
        return f"http://{ADDRESS}:{port}/{self.token}/"

    def first_address(self, port: int) -> str:
        """An address that leads there once."""
        return f"http://{ADDRESS}:{port}/start/{self.code}"

    def rest(self, path: str) -> str | None:
        """The path behind the token; None where it has another, or none."""
        given, slash, rest = path.removeprefix("/").partition("/")
        return slash + rest if hmac.compare_digest(given.encode(), self.token.encode()) and slash else None

    def use_code(self, path: str) -> bool:
        """Whether the path has the code, which is then used up."""
        known = self.code
        if known is None or not hmac.compare_digest(path.encode(), f"/start/{known}".encode()):
            return False
        self.code = None
        return True


@dataclass(frozen=True)
class Refusal:
    """Why a request is not answered."""

    status: int
    text: str


def refusal(method: str, headers: Headers, port: int) -> Refusal | None:
    """What speaks against a request before its path is looked at; None: nothing does."""
    if any(len(headers.getlist(name)) > 1 for name in _JUDGED):
        return Refusal(400, say("A header that may stand once stands twice."))
    hosts = {f"{name}:{port}" for name in _NAMES} | (set(_NAMES) if port == _HTTP_PORT else set())
    if headers.get("host", "").lower() not in hosts:
        return Refusal(403, say("This server answers to {address} only.", address=ADDRESS))
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    changing = method not in ("GET", "HEAD")
    foreign_origin = origin not in {f"http://{host}" for host in hosts} if origin is not None else changing
    if foreign_origin or site not in (None, "same-origin", *(() if changing else ("none",))):
        return Refusal(403, say("This server answers its own page only: type the address, or paste it."))
    return _refused_body(headers) if changing else None


def _refused_body(headers: Headers) -> Refusal | None:
    if headers.get("content-type", "").partition(";")[0].strip().lower() != SPEC_TYPE:
        return Refusal(415, say("A spec is sent as {type}.", type=SPEC_TYPE))
    length = headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and len(length) < 10 and int(length) <= MOST_DOCUMENT_BYTES:
        return None
    return Refusal(413, say("A spec has at most {most:,} bytes.", most=MOST_DOCUMENT_BYTES))


class Guard:
    """An ASGI application that lets the right requests through to another, their paths without the token."""

    def __init__(self, app: ASGIApp, keys: Keys, port: int) -> None:
        self._app, self._keys, self._port = app, keys, port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; every answer has the safe headers."""
        if scope["type"] != "http":
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SAFE_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._chosen(scope)(scope, receive, send_safely)

    def _chosen(self, scope: Scope) -> ASGIApp:
        """What answers the request. The scope's path loses its token."""
        found = refusal(scope["method"], Headers(scope=scope), self._port)
        if found is not None:
            return PlainTextResponse(found.text, found.status)
        if scope["method"] == "GET" and self._keys.use_code(scope["path"]):
            return RedirectResponse(f"/{self._keys.token}/", 303)
        rest = self._keys.rest(scope["path"])
        if rest is None:
            return PlainTextResponse(say("There is nothing here: the terminal has the address."), 404)
        scope["path"] = rest
        return self._app
