"""A page as a tree, read with the standard library's parser, which also finds tags that do not match."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

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
