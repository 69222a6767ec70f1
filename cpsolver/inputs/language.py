"""In which language people are spoken to: English, or Chinese from a gettext catalogue (locale/zh).

The library, and whatever is written for machines, speaks English; only the command line chooses another language
(`speaking`), once for the process. A text that stands in a table made on import is marked there with `later`, and said
where it is used. `python -m tools.messages` brings the catalogue into step with the code.
"""

from __future__ import annotations

import gettext
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

ENGLISH, CHINESE = "en", "zh"
LANGUAGES = (ENGLISH, CHINESE)
DOMAIN = "apss_cp"
CATALOGUES = Path(__file__).with_name("locale")
COUNTED = "counted"
"""The context of nouns behind a number: in Chinese these have a measure word."""

_spoken = ENGLISH


def say(message: str, **values: object) -> str:
    """The message in the language spoken, its fields `{name}` filled with the values; English where it has no other."""
    text = _catalogue(_spoken).gettext(message) if message and _spoken != ENGLISH else message
    return text.format(**values) if values else text


def later(message: str) -> str:
    """Marks a message that is said elsewhere: for the catalogue to find."""
    return message


def counted(amount: int, word: str) -> str:
    """`1 plan`, `2 plans`."""
    if _spoken == ENGLISH:
        return f"{amount:,} {word}" if amount == 1 else f"{amount:,} {word}s"
    return f"{amount:,} {_catalogue(_spoken).pgettext(COUNTED, word)}"


def spoken() -> str:
    """The language of now."""
    return _spoken


@contextmanager
def speaking(language: str) -> Iterator[None]:
    """One of LANGUAGES as long as the block lasts, in all threads."""
    global _spoken
    before, _spoken = _spoken, language
    try:
        yield
    finally:
        _spoken = before


def of_locale(environment: Mapping[str, str]) -> str:
    """The language that a locale asks for: the first of these variables that is set decides, as POSIX has it."""
    names = (environment.get(name) for name in ("LC_ALL", "LC_MESSAGES", "LANG"))
    return CHINESE if next(filter(None, names), "").startswith(CHINESE) else ENGLISH


@cache
def _catalogue(language: str) -> gettext.NullTranslations:
    return gettext.translation(DOMAIN, CATALOGUES, [language], fallback=True)
