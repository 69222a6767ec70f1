"""A page as a tree, read with the standard library's parser, which also finds tags that do not match."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from hashlib import sha256
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any
from zlib import decompress

from cpsolver.doors.report.html.shell import asset

EMPTY = {"meta", "link", "br", "input"}


@dataclass
class Element:
    """An element with its attributes, and its children: elements and texts."""

    name: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All the text within."""
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    def all(self, name: str, **attributes: str) -> list[Element]:
        """Every element of that name within, in order; attributes must contain what is given, as a word."""
        found = []
        for child in self.children:
            if isinstance(child, Element):
                words = all(
                    value in child.attributes.get(key.rstrip("_"), "").split() for key, value in attributes.items()
                )
                found += [child] if child.name == name and words else []
                found += child.all(name, **attributes)
        return found

    def one(self, name: str, **attributes: str) -> Element:
        """The only element of that name."""
        (found,) = self.all(name, **attributes)
        return found

    def rows(self) -> dict[str, list[str]]:
        """A table's rows by their first cell."""
        cells = [[child.text for child in row.children if isinstance(child, Element)] for row in self.all("tr")]
        return {first: rest for first, *rest in cells}


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = Element("")
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {key: value or "" for key, value in attrs})
        assert len(element.attributes) == len(attrs), f"an attribute twice: {attrs}"
        self.open[-1].children.append(element)
        if tag not in EMPTY:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().name == tag, f"</{tag}> ends something else"

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parse(page: str) -> Element:
    """The page's html element; fails where its tags do not match."""
    assert page.startswith("<!DOCTYPE html>\n<html ")
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert len(reader.open) == 1, f"not closed: {[element.name for element in reader.open]}"
    return reader.root.one("html")


def walk(element: Element) -> list[Element]:
    """The element and all that are within, in order."""
    below = [one for child in element.children if isinstance(child, Element) for one in walk(child)]
    return [element, *below]


def numbers(page: Element) -> dict[str, Any]:
    """What the page's script shows."""
    found: dict[str, Any] = json.loads(page.one("script", id="data").text)
    return found


def unpacked(text: str) -> Any:
    """What is packed in those, read as the script does."""
    return json.loads(decompress(b64decode(text)))


def assert_stands_alone(text: str) -> None:
    """The page loads nothing, runs no script but its own, and each id stands once."""
    library = asset("uplot/uPlot.iife.min.js")
    page, own = parse(text), text.replace(library, "")
    assert page.attributes == {"lang": "en"}
    assert page.one("head").one("title").text
    assert not re.search(r"https?://|url\(|@import|\bfetch\(|XMLHttpRequest|WebSocket|\beval\(|new Function", own)
    assert not re.findall(r"""(?:src|href|action)=["'](?!data:)""", text)
    assert re.findall(r"https?://[^ ]+", library) == ["https://github.com/leeoniya/uPlot"]  # in a comment
    assert [one.attributes.get("href") for one in page.all("link")] == ["data:,"]
    assert not [key for one in walk(page) for key in one.attributes if key == "src" or key.startswith("on")]
    identities = [one.attributes["id"] for one in walk(page) if "id" in one.attributes]
    assert len(identities) == len(set(identities))
    for one in walk(page):
        assert set(one.attributes.get("aria-labelledby", "").split()) <= set(identities)
    policy = page.one("meta", **{"http-equiv": "Content-Security-Policy"}).attributes["content"]
    assert "default-src 'none'" in policy
    _, *running = page.all("script")
    known = [b64encode(sha256(script.text.encode()).digest()).decode() for script in running]
    (allowed,) = re.findall(r"script-src ([^;]+);", policy)
    assert allowed.split() == [f"'sha256-{digest}'" for digest in known]


def assert_accessible(page: Element) -> None:
    """Headings in order, landmarks, heads of tables, and a name for whatever has a role."""
    levels = [int(one.name[1]) for one in walk(page) if re.fullmatch("h[1-6]", one.name)]
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert len(page.all("main")) == len(page.all("header")) == len(page.all("footer")) == 1
    for one in walk(page):
        if one.attributes.get("role") in ("img", "region", "group"):
            assert one.attributes["aria-label"]
        if one.name == "button":
            assert one.text
    for label in page.all("label"):
        assert label.text or label.one("input").attributes["aria-label"]
    for table in page.all("table"):
        assert all(cell.attributes.get("scope") for cell in table.all("th"))
