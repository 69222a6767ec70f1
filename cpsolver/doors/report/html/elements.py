"""HTML by small functions: whatever is not HTML already is escaped, so that no name can become markup."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

_EMPTY = frozenset({"meta", "link", "br"})
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f]")
"""Characters that HTML does not allow; those that it does are tab and newline."""


class Html(str):
    """Text that is HTML."""

    __slots__ = ()


def text(value: str) -> Html:
    """Anything as HTML: escaped, unless it is HTML."""
    return value if isinstance(value, Html) else Html(escape(_UNSEEN.sub("\N{REPLACEMENT CHARACTER}", value)))


def join(parts: Iterable[str], between: str = "") -> Html:
    """Several parts after each other, escaped unless they are HTML."""
    return Html(text(between).join(text(part) for part in parts))


def tag(element: str, /, *children: str, **attributes: str | float | None) -> Html:
    """An element. Attributes that are None are left out; `class_` is class, `aria_label` is aria-label."""
    given = (
        f' {key.rstrip("_").replace("_", "-")}="{text(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    opened = f"<{element}{''.join(given)}>"
    return Html(opened if element in _EMPTY else f"{opened}{join(children)}</{element}>")


def section(key: str, title: str, *content: str) -> Html:
    """A section with its heading; `key` is its id."""
    heading = tag("h2", title, id=f"{key}-title")
    return tag("section", heading, *content, id=key, aria_labelledby=f"{key}-title")


def scrolling(label: str, *content: str) -> Html:
    """What may be wider than the page: it scrolls by itself, with the keyboard too."""
    return tag("div", *content, class_="scroll", role="region", aria_label=label, tabindex="0")


def items(lines: Iterable[str], class_: str | None = None) -> Html:
    """A list."""
    return tag("ul", *(tag("li", line) for line in lines), class_=class_)
