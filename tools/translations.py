"""The documents in Chinese: `make translations` brings docs/locale into step with the English ones and names what lags.

The English pages are the source. docs/locale/zh_CN has a catalogue (gettext) for each page: paragraph, heading or cell
-> Chinese. What is not there, or was said otherwise before, stands in English on the Chinese site, and `make docs`
fails. README.zh.md, for those who read the repository, is README.md in the words of its catalogue.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from babel.messages import Catalog, Message
from babel.messages.pofile import read_po, write_po
from markdown_it import MarkdownIt

from tools.site.conf import NAVIGATION, OTHER_LANGUAGE, linked

ROOT = Path(__file__).resolve().parents[1]
CATALOGUES = ROOT / "docs" / "locale" / "zh_CN" / "LC_MESSAGES"
README = ROOT / "README.zh.md"
CHINESE = "[English](README.md) · 中文文档：`make docs` 之后打开 `site/zh/index.html`\n"
"""README.zh.md's second line."""
LEFT_IN_ENGLISH = {*NAVIGATION["Work on it"], "docs/cli"} - {"docs/README"}
"""Pages for those who work on the project, and the commands' own help, whose words are in the program's catalogue."""
PAGES = ["README", *(page for pages in NAVIGATION.values() for page in pages if page not in LEFT_IN_ENGLISH)]
_CODE = re.compile(r"(`+)(.+?)\1")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def main() -> None:
    """Bring catalogues and README.zh.md into step; with --check only say what is not. Exit code 1 if anything lags."""
    check = "--check" in sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        templates = _templates(Path(folder))
        if not check:
            _update(templates)
            README.write_text(readme(), encoding="utf-8")
        told = [line for page in PAGES for line in lagging(page, _read(templates / f"{page}.pot"), catalogue(page))]
    if README.read_text(encoding="utf-8") != readme():
        told.append("README.zh.md: not README.md in the words of its catalogue; make translations writes it")
    print("\n".join(told) or f"{len(PAGES)} pages are in step")
    sys.exit(bool(told))


def catalogue(page: str) -> Catalog:
    """What a page has in Chinese."""
    return _read(CATALOGUES / f"{page}.po")


def lagging(page: str, template: Catalog, chinese: Catalog) -> Iterator[str]:
    """What of a page's messages has no Chinese, or has other code, links or numbers in it: a line for each."""
    for english in (str(message.id) for message in template if message.id):
        there = chinese.get(english) if has_words(english) else None
        if has_words(english) and (there is None or not there.string or there.fuzzy):
            yield f"{page}: without Chinese: {english}"
        elif there and (lost := sorted((_marks(english) - _marks(str(there.string))).elements())):
            yield f"{page}: the Chinese of “{english[:60]}” lacks {', '.join(lost)}"


def has_words(text: str) -> bool:
    """Whether a message says anything beside code, links, numbers and names."""
    sentence = " " in text.strip() and re.search("[a-z]{2}", _CODE.sub("", text))
    return bool(sentence or re.fullmatch("[A-Z]?[a-z]+", text))


def _marks(text: str) -> Counter[str]:
    """Code, where links lead, and numbers: what a translation keeps."""
    plain = _CODE.sub("", _LINK.sub("]", text))
    return Counter([found[1] for found in _CODE.findall(text)] + _LINK.findall(text) + _NUMBER.findall(plain))


def renumbered(was: str, now: str, chinese: str) -> str | None:
    """The Chinese of a message in which only numbers changed, with the new ones; None where more changed."""
    old, new = _NUMBER.findall(was), _NUMBER.findall(now)
    if _NUMBER.sub("#", was) != _NUMBER.sub("#", now) or Counter(old) - Counter(_NUMBER.findall(chinese)):
        return None
    instead = dict(zip(old, new, strict=True))
    if any(instead[one] != other for one, other in zip(old, new, strict=True)):
        return None
    return _NUMBER.sub(lambda found: instead.get(found[0], found[0]), chinese)


def readme() -> str:
    """README.md with every paragraph, heading and cell that its catalogue has in Chinese."""
    english = linked((ROOT / "README.md").read_text(encoding="utf-8"), "README")
    return in_chinese(english.replace(OTHER_LANGUAGE, CHINESE), catalogue("README"))


def in_chinese(page: str, chinese: Catalog) -> str:
    """A page's Markdown in the words of a catalogue; what it has no words for stands as it was."""
    known = {str(message.id): str(message.string) for message in chinese if message.string}
    lines, cells, was, now = page.splitlines(), list[str](), "", ""
    for token in reversed(MarkdownIt("commonmark").enable("table").parse(page)):
        first, end = token.map or (0, 0)
        if token.type == "inline":
            was, now = token.content, known.get(" ".join(token.content.split()), "")
        elif token.type in ("th_open", "td_open"):
            cells.insert(0, (now or was).replace("|", "\\|"))
        elif token.type == "tr_open":
            lines[first] = f"| {' | '.join(cells)} |"
            cells.clear()
        elif token.type in ("heading_open", "paragraph_open") and now:
            mark = lines[first].rpartition(was.split("\n")[0])[0]  # of a heading or a list
            lines[first:end] = [mark + now]
    return "\n".join(lines) + "\n"


def _templates(folder: Path) -> Path:
    """The messages of all pages, as Sphinx finds them."""
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "gettext", "-c", str(ROOT / "tools" / "site")]
    subprocess.run([*command, "-d", str(folder / "doctrees"), str(ROOT), str(folder / "pot")], check=True)
    return folder / "pot"


def _update(templates: Path) -> None:
    """Bring the catalogues to the messages of today; where only numbers changed, the Chinese gets the new ones."""
    before = {page: list(catalogue(page)) for page in PAGES if (CATALOGUES / f"{page}.po").is_file()}
    for path in templates.rglob("*.pot"):
        if path.relative_to(templates).with_suffix("").as_posix() not in PAGES:
            path.unlink()
    command = [sys.executable, "-m", "sphinx_intl", "update", "-l", "zh_CN", "-w", "0", "--no-obsolete"]
    subprocess.run([*command, "-p", str(templates), "-d", str(CATALOGUES.parents[1])], check=True)
    for page in PAGES:
        _settle(page, before.get(page, []))


def _settle(page: str, before: list[Message]) -> None:
    """Replace what was guessed from a message like it: by its Chinese with other numbers, else by nothing."""
    chinese = catalogue(page)
    for message in chinese:
        if message.fuzzy and message.id:
            told = (renumbered(str(was.id), str(message.id), str(was.string)) for was in before if was.string)
            message.string = next((one for one in told if one), "")
            message.flags.discard("fuzzy")
    with (CATALOGUES / f"{page}.po").open("wb") as file:
        write_po(file, chinese, width=0)


def _read(path: Path) -> Catalog:
    with path.open("rb") as file:
        return read_po(file, locale="zh_CN")


if __name__ == "__main__":
    main()
