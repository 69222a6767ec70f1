"""The documents as a site, by Sphinx and MyST: `make docs` builds site/ and, in Chinese, site/zh/, without network.

The pages are those that are read in the repository, where they are: links between them hold in both places. Warnings
are errors: a link to nowhere, an anchor that is not there, a page that NAVIGATION lacks.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NAVIGATION: dict[str, list[str]] = {
    "Start": ["docs/tutorial", "docs/how-to", "docs/specs", "docs/gallery", "docs/how-sure"],
    "Plan": [
        "docs/space",
        "docs/network",
        "docs/degrees-by-chip",
        "docs/replicas",
        "docs/layer-kinds",
        "docs/fine-tuning",
        "docs/vision",
        "docs/techniques",
    ],
    "Understand an answer": [
        "docs/reports",
        "docs/serve",
        "docs/explain",
        "docs/verify",
        "docs/recommendations",
        "docs/chances",
        "docs/experts-layouts",
    ],
    "From a plan to a job": ["docs/export", "docs/import", "docs/batch", "docs/python"],
    "On your own cluster": ["docs/tune", "docs/calibrate", "docs/profile"],
    "Accuracy": ["docs/accuracy", "docs/validate", "docs/mixed-runs"],
    "Reference": ["docs/support", "docs/cli", "docs/glossary"],
    "Work on it": [
        "docs/README",
        "ARCHITECTURE",
        "CONTRIBUTING",
        "docs/adding-a-chip",
        "docs/adding-a-model",
        "docs/adding-a-stack",
        "docs/adding-an-exporter",
        "docs/adding-a-rule",
        "docs/adding-a-decision",
        "docs/adding-a-framework-fact",
        "docs/adding-a-schedule",
        "docs/adding-a-report-column",
        "SECURITY",
        "CHANGELOG",
    ],
}
"""Heading of the menu -> its pages, in order; the README is the first page."""

project = "apss-cp"
release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = [f"{page}.md" for page in (root_doc, "ARCHITECTURE", "CONTRIBUTING", "SECURITY", "CHANGELOG")]
include_patterns += ["docs/*.md", "docs/images/*"]
myst_heading_anchors = 3
highlight_language = "text"
suppress_warnings = ["misc.highlighting_failure"]  # blocks with … in them
html_theme = "furo"
html_title = "apss-cp"
html_copy_source = False
html_show_sphinx = False
templates_path = ["templates"]
html_additional_pages = {"index": "index.html"}
html_sidebars = {
    "**": ["sidebar/brand.html", "sidebar/search.html", "languages.html"]
    + [f"sidebar/{part}.html" for part in ("scroll-start", "navigation", "scroll-end")]
}
language = "en"  # the Chinese site is built with -D language=zh_CN
locale_dirs = ["docs/locale"]
gettext_compact = False
gettext_location = False

OTHER_LANGUAGE = "[中文](README.zh.md)\n"
"""The README's second line, which the site has in its menu."""
_NAMED = re.compile(r"(?<![\w/`\[.-])docs/([\w-]+)\.md(?![\w`\]/-])")
_WHOLE = re.compile(
    r"(^ *```.*?^ *```|^ *~~~.*?^ *~~~|`+[^`]*`+|\[[^\]]*\]\([^)]*\)|<!--.*?-->)", re.DOTALL | re.MULTILINE
)


def linked(text: str, page: str) -> str:
    """A page with links where its sentences name others as docs/NAME.md; code and links stay as they are."""
    folder = "" if page.startswith("docs/") else "docs/"
    pieces = _WHOLE.split(text)
    pieces[::2] = [_NAMED.sub(lambda named: _link(named, folder), piece) for piece in pieces[::2]]
    return "".join(pieces)


def _link(named: re.Match[str], folder: str) -> str:
    """A name as a link, where a page has it: others name files of frameworks."""
    return f"[{named[0]}]({folder}{named[1]}.md)" if (ROOT / named[0]).is_file() else named[0]


def menu() -> str:
    """The menu as MyST has it, for the end of the first page."""
    blocks = (
        "\n".join(["```{toctree}", ":hidden:", f":caption: {heading}", "", *(f"/{page}" for page in pages), "```"])
        for heading, pages in NAVIGATION.items()
    )
    return "\n\n".join(blocks) + "\n"


def setup(app: Any) -> None:
    """Sphinx' hook: pages are completed as they are read."""

    def read(_: Any, page: str, source: list[str]) -> None:
        source[0] = linked(source[0], page)
        if page == root_doc:
            source[0] = source[0].replace(OTHER_LANGUAGE, "", 1) + "\n\n" + menu()

    app.connect("source-read", read)
