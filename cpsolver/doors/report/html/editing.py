"""The page around an answer's page: the spec to edit, what is wrong with it, and the answer in a frame of its own."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256

from cpsolver.doors.report.html.elements import Html, tag
from cpsolver.doors.report.html.shell import asset, data_element, words_element
from cpsolver.doors.report.html.style import STYLE
from cpsolver.inputs.language import say, spoken


def edit_page(
    text: str, answer: int | None, *, name: str, time_limit_s: float, most_bytes: int, sandbox: str
) -> tuple[str, str]:
    """The page, and the policy that it has to be sent with: its own script and style, its own server, no other.

    Args:
        text: the spec.
        answer: the number of the answer to show; None: there is none yet, and the page plans.
        name: what a saved spec is called.
        time_limit_s: the server's limit, to be told.
        most_bytes: the longest spec.
        sandbox: what the answer's frame may do.
    """
    script, style = asset("editing.js"), STYLE + asset("editing.css")
    given = {"text": text, "answer": answer, "name": name, "most": most_bytes}
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("link", rel="icon", href="data:,"),
        tag("title", f"apss-cp: {name}"),
        tag("style", Html(style)),
    )
    title = say("The answer")
    frame = tag("iframe", "", id="answer", title=title, sandbox=sandbox, allow="clipboard-write")
    parts = (_editor(time_limit_s), tag("section", frame, aria_label=title))
    scripts = (data_element(given), *words_element([script]), tag("script", Html(script)))
    body = tag("body", *parts, *scripts, class_="serve")
    own = f"script-src {_known(script)}; style-src {_known(style)}; img-src data:; connect-src 'self'; frame-src 'self'"
    policy = f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang=spoken())}", policy


def _known(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _editor(time_limit_s: float) -> Html:
    buttons = tag(
        "div",
        tag("button", say("Plan"), type="button", id="plan", title=say("Ctrl+Enter in the spec")),
        tag("button", say("Stop"), type="button", id="stop", hidden="hidden"),
        tag("button", say("Save the spec"), type="button", id="save"),
        class_="tools",
    )
    about = say(
        "A search ends after {limit:g} s at most. No file is written: save what you want to keep.", limit=time_limit_s
    )
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
            aria_label=say("The spec, as YAML"),
        ),
        class_="editor",
    )
    main = tag(
        "main",
        editor,
        buttons,
        tag("p", "", id="said", role="status"),
        tag("ul", id="troubles", aria_label=say("What is wrong with the spec"), hidden="hidden"),
    )
    return tag("div", tag("header", tag("h1", say("The spec"))), main, tag("footer", tag("p", about)), class_="side")
