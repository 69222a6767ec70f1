"""The document around a page's parts: its policy, its styles, its scripts and the data that these show."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import compress

from cpsolver.doors.report.document import dumps_compact, dumps_embedded, versions
from cpsolver.doors.report.html.elements import Html, tag
from cpsolver.doors.report.html.style import SCRIPT, STYLE
from cpsolver.doors.report.pipeline_run import KINDS
from cpsolver.inputs.language import ENGLISH, say, spoken

_FOLDER = Path(__file__).parent
_SAID = re.compile(r"\bsay\('([^']*)'")
"""What a script says."""


@cache
def asset(name: str) -> str:
    """A script or a style sheet that comes with the package."""
    return (_FOLDER / name).read_text(encoding="utf-8")


def scripts(own: str) -> tuple[str, ...]:
    """The scripts of a page in their order: uPlot (as published) and what all pages share, before its own."""
    return SCRIPT, asset("uplot/uPlot.iife.min.js"), asset("common.js"), asset(own)


def packed(value: Any) -> str:
    """Plain values as a script unpacks them: JSON, compressed by zlib, in base 64."""
    return b64encode(compress(dumps_compact(value).encode(), 9)).decode()


def data_element(values: Mapping[str, Any]) -> Html:
    """Plain values as JSON in an element that nothing runs; no sign in it can end the element."""
    return tag("script", Html(dumps_embedded(values)), type="application/json", id="data")


def words_element(running: Sequence[str]) -> Iterator[Html]:
    """What the scripts say in the language spoken: a table by the English, which they say themselves."""
    if spoken() != ENGLISH:
        messages = dict.fromkeys(text for script in running for text in _SAID.findall(script))
        values = Html(dumps_embedded({text: say(text) for text in (*messages, *KINDS.values())}))
        yield tag("script", values, type="application/json", id="words")


def document(title: str, parts: Sequence[Html], data: Html, script: str) -> str:
    """The page. Its policy lets nothing be loaded, and no script run but its own: `script`, and what it needs."""
    running = scripts(script)
    known = " ".join(f"'sha256-{b64encode(sha256(one.encode()).digest()).decode()}'" for one in running)
    safe = "base-uri 'none'; form-action 'none'"
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {known}; {safe}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", Html("\n".join((asset("uplot/uPlot.min.css"), STYLE, asset("play.css"))))),
    )
    made = ", ".join(f"{name} {number}" for name, number in versions().items() if number)
    told = say(
        "Made by {made}. This file needs no network; its charts are drawn by uPlot.",
        made=made.replace("apss_cp", "apss-cp"),
    )
    run = (tag("script", Html(one)) for one in running)
    body = tag("body", tag("main", *parts), tag("footer", tag("p", told)), data, *words_element(running), *run)
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang=spoken())}"
