"""The page around an answer's page: the spec to edit, what is wrong with it, and the answer in a frame of its own."""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from pathlib import Path

from cpsolver.doors.report.html.elements import Html, tag
from cpsolver.doors.report.html.shell import data_element
from cpsolver.doors.report.html.style import STYLE

_FOLDER = Path(__file__).parent
_SANDBOX = "allow-scripts allow-downloads"
ANSWER_HEADERS = {
    "content-security-policy": f"sandbox {_SANDBOX}; base-uri 'none'; form-action 'none'; connect-src 'none'; "
    "frame-ancestors 'self'",
    "x-frame-options": "SAMEORIGIN",
}
"""Of an answer's page, beside the policy that it has itself: it stands in the frame, and cannot ask this server."""


@cache
def _script() -> str:
    return (_FOLDER / "serve.js").read_text(encoding="utf-8")


@cache
def _style() -> str:
    return STYLE + (_FOLDER / "serve.css").read_text(encoding="utf-8")


def _known(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def page_policy() -> str:
    """What the page may do: run its own script, ask its own server, show answers in the frame."""
    own = f"script-src {_known(_script())}; style-src {_known(_style())}; img-src data:"
    return (
        f"default-src 'none'; {own}; connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


def edit_page(text: str, answer: int | None, plan_now: bool, name: str, time_limit_s: float, most_bytes: int) -> str:
    """The page with the spec's text and the number of the answer to show, if any; else it may plan at once.

    `name`: what a saved spec is called; `time_limit_s` and `most_bytes`: the server's limits, to be told.
    """
    given = {"text": text, "answer": answer, "plan": plan_now, "name": name, "most": most_bytes}
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("link", rel="icon", href="data:,"),
        tag("title", f"apss-cp: {name}"),
        tag("style", Html(_style())),
    )
    body = tag(
        "body", _editor(time_limit_s), _frame(), data_element(given), tag("script", Html(_script())), class_="serve"
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}"


def _editor(time_limit_s: float) -> Html:
    buttons = tag(
        "div",
        tag("button", "Plan", type="button", id="plan", title="Ctrl+Enter in the spec"),
        tag("button", "Stop", type="button", id="stop", hidden="hidden"),
        tag("button", "Save the spec", type="button", id="save"),
        class_="tools",
    )
    about = f"A search ends after {time_limit_s:g} s at most. No file is written: save what you want to keep."
    editor = tag(
        "div",
        tag("pre", "", id="lines", aria_hidden="true"),
        tag(
            "textarea",
            "",
            id="spec",
            spellcheck="false",
            autocomplete="off",
            wrap="off",
            aria_label="The spec, as YAML",
        ),
        class_="editor",
    )
    return tag(
        "main",
        tag("h1", "The spec"),
        editor,
        buttons,
        tag("p", "", id="said", role="status"),
        tag("ul", id="troubles", aria_label="What is wrong with the spec", hidden="hidden"),
        tag("p", about, class_="dim"),
    )


def _frame() -> Html:
    frame = tag("iframe", "", id="answer", title="The answer", sandbox=_SANDBOX, allow="clipboard-write")
    return tag("section", frame, aria_label="The answer")
