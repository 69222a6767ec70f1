"""The server: few addresses, on this machine's own address, with limits on sizes and times."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import OrderedDict
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

import h11
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from cpsolver.doors.serve.guard import ADDRESS, Guard, Keys
from cpsolver.doors.serve.planner import BusyError, Outcome, Planner
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import later, say
from cpsolver.inputs.limits import MOST_DOCUMENT_BYTES

_MOST_HEADER_BYTES = 16 * 1024
_MOST_CONNECTIONS = 32
_REQUEST_S = 10.0
"""A request is here whole so long after its first byte, or its connection, began; else the connection is cut."""
_READING_S = 30.0
"""So long a reader may take for what fits into its window; else the connection is cut."""
_IDLE_S = 5
_FAREWELL_S = 3
_KEPT_ANSWERS = 4


_SANDBOX = "allow-scripts allow-downloads"
_ANSWER_HEADERS = {
    "content-security-policy": f"sandbox {_SANDBOX}; base-uri 'none'; form-action 'none'; connect-src 'none'; "
    "frame-ancestors 'self'",
    "x-frame-options": "SAMEORIGIN",
}
"""Of an answer's page, beside the policy that it has itself: it stands in a frame, and cannot ask this server."""


class EditPage(Protocol):
    """Makes the page to edit, and the policy that it is sent with (`cpsolver.doors.report.html.editing.edit_page`)."""

    def __call__(
        self,
        text: str,
        answer: int | None,
        *,
        name: str,
        time_limit_s: float,
        most_bytes: int,
        sandbox: str,
    ) -> tuple[str, str]:
        """The page and its policy."""


@dataclass
class Served:
    """What is shown: the text planned last, `name` of a saved one, the last answers by number; `edit_page` shows it."""

    text: str
    name: str
    edit_page: EditPage

    def __post_init__(self) -> None:
        self._answers: OrderedDict[int, str] = OrderedDict()
        self._count = 0

    def keep(self, page: str) -> int:
        """Keep an answer's page; its number."""
        self._count += 1
        self._answers[self._count] = page
        if len(self._answers) > _KEPT_ANSWERS:
            self._answers.popitem(last=False)
        return self._count

    def answer(self, number: int) -> str | None:
        """The page of that number, unless it is too old."""
        return self._answers.get(number)

    def page(self, time_limit_s: float) -> tuple[str, str]:
        """The page with the text and the last answer, and its policy; before there is one, it plans by itself."""
        return self.edit_page(
            self.text,
            self._count or None,
            name=self.name,
            time_limit_s=time_limit_s,
            most_bytes=MOST_DOCUMENT_BYTES,
            sandbox=_SANDBOX,
        )


def application(served: Served, planner: Planner, keys: Keys, port: int) -> ASGIApp:
    """All addresses behind the token, guarded."""

    async def show(_request: Request) -> Response:
        page, policy = served.page(planner.limits.time_limit_s)
        return HTMLResponse(page, headers={"content-security-policy": policy})

    async def plan(request: Request) -> Response:
        try:
            text = (await _body(request)).decode("utf-8-sig")
            outcome = await planner.plan(text, request.is_disconnected)
        except _TooLargeError:
            return PlainTextResponse(say("A spec has at most {most:,} bytes.", most=MOST_DOCUMENT_BYTES), 413)
        except UnicodeDecodeError:
            return JSONResponse({"said": say("The spec is not UTF-8 text.")}, 400)
        except BusyError:
            told = say("Another plan is being made, maybe in another window: wait, or stop it.")
            return JSONResponse({"said": told}, 409)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        return _summary(served, text, outcome)

    async def stop(_request: Request) -> Response:
        return JSONResponse({"stopped": planner.stop()})

    async def progress(_request: Request) -> Response:
        return JSONResponse({"told": planner.progress()})

    async def answer(request: Request) -> Response:
        number: str = request.path_params["number"]  # of any length: Python makes no number of thousands of digits
        page = served.answer(int(number)) if len(number) < 10 and number.isascii() and number.isdigit() else None
        if page is None:
            told = say("This answer is no longer kept: plan again.")
            return PlainTextResponse(told, 404, _ANSWER_HEADERS)
        return HTMLResponse(page, headers=_ANSWER_HEADERS)

    routes = [
        Route("/", show, methods=["GET"]),
        Route("/plan", plan, methods=["POST"]),
        Route("/stop", stop, methods=["POST"]),
        Route("/progress", progress, methods=["GET"]),
        Route("/answer/{number}", answer, methods=["GET"]),
    ]
    return Guard(Router(routes, redirect_slashes=False), keys, port)


def _summary(served: Served, text: str, outcome: Outcome) -> Response:
    """What the page is told of an outcome; an answer is kept for the frame to ask for."""
    if outcome.troubles:
        return JSONResponse({"status": outcome.status, "troubles": list(outcome.troubles)})
    if not outcome.page:
        return JSONResponse({"status": outcome.status, "said": say("No plan: {said}.", said=outcome.said)})
    served.text = text
    return JSONResponse({"status": outcome.status, "answer": served.keep(outcome.page)})


class _TooLargeError(Exception):
    """The body is larger than a spec may be."""


async def _body(request: Request) -> bytes:
    parts, size = list[bytes](), 0
    async for part in request.stream():
        size += len(part)
        if size > MOST_DOCUMENT_BYTES:
            raise _TooLargeError
        parts.append(part)
    return b"".join(parts)


class TimedProtocol(H11Protocol):
    """HTTP/1.1 with a clock: who sends a request, or reads an answer, too slowly is cut off."""

    _request_s, _reading_s = _REQUEST_S, _READING_S
    _arriving: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The first request has to come."""
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        self._arriving = self.loop.call_later(self._request_s, transport.abort)

    def data_received(self, data: bytes) -> None:
        """A piece of a request: its clock runs until the whole is there."""
        if self._arriving is None and self.conn.their_state is h11.IDLE:
            self._arriving = self.loop.call_later(self._request_s, self.transport.abort)
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # something malformed behind a request whose answer has begun
            self.transport.abort()
        if self._arriving is not None and self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._arriving.cancel()
            self._arriving = None

    def send_400_response(self, msg: str) -> None:
        """To what is malformed; behind a request that is being answered it ends the connection, and that answer."""
        if self.cycle is None or self.cycle.response_complete:
            super().send_400_response(msg)
            return
        self.cycle.disconnected = True  # what it still sends goes nowhere
        self.cycle.message_event.set()
        self.transport.abort()

    def pause_writing(self) -> None:
        """The reader's window is full."""
        super().pause_writing()
        self._reading = self.loop.call_later(self._reading_s, self.transport.abort)

    def resume_writing(self) -> None:
        """It reads."""
        super().resume_writing()
        if self._reading is not None:
            self._reading.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """No clock runs for a connection that is gone."""
        super().connection_lost(exc)
        for clock in (self._arriving, self._reading):
            if clock is not None:
                clock.cancel()


class PageServer(uvicorn.Server):
    """Ends the plan that is being made before it waits for its request to end."""

    def __init__(self, config: uvicorn.Config, planner: Planner) -> None:
        super().__init__(config)
        self._planner = planner

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ctrl-C or SIGTERM."""
        self._planner.close()
        super().handle_exit(sig, frame)


def listening(port: int) -> socket.socket:
    """A socket on this machine's own address; port 0: any that is free. Raises InputError."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((ADDRESS, port))
        made.listen(_MOST_CONNECTIONS)
    except OSError as error:
        made.close()
        told = later("cannot be listened to: {why}", why=error.strerror)
        raise InputError(Trouble("--port", told, port, later("another, or 0: any that is free"))) from None
    return made


def server(app: ASGIApp, planner: Planner, **settings: Any) -> PageServer:
    """The server of an application; `run(sockets=[...])` serves until Ctrl-C, which it raises again at its end."""
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    config = uvicorn.Config(
        app,
        **{
            "http": TimedProtocol,
            "ws": "none",
            "loop": "asyncio",
            "lifespan": "off",
            "log_config": None,
            "access_log": False,
            "proxy_headers": False,
            "server_header": False,
            "limit_concurrency": _MOST_CONNECTIONS,
            "h11_max_incomplete_event_size": _MOST_HEADER_BYTES,
            "timeout_keep_alive": _IDLE_S,
            "timeout_graceful_shutdown": _FAREWELL_S,
            **settings,
        },
    )
    return PageServer(config, planner)
