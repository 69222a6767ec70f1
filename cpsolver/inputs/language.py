"""In which language people are spoken to: English, or Chinese from a gettext catalogue (locale/zh).

The library, and whatever is written for machines, speaks English; only the command line chooses another language
(`speaking`), once for the process. What is read by machines and people alike, or stands in a table made on import, is
marked with `later`: it is English, and `say` says it where people read it. `python -m tools.messages` brings the
catalogue into step with the code.
"""

from __future__ import annotations

import gettext
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from string import Formatter

ENGLISH, CHINESE = "en", "zh"
LANGUAGES = (ENGLISH, CHINESE)
DOMAIN = "apss_cp"
CATALOGUES = Path(__file__).with_name("locale")
COUNTED = "counted"
"""The context of nouns behind a number: in Chinese these have a measure word."""

_KEPT = "kept"
"""No language: what is said so can be said in any of them."""

_spoken = ENGLISH


def say(message: str, /, **values: object) -> str:
    """The message in the language spoken, its fields `{name}` filled with the values; English where it has no other."""
    if _spoken == _KEPT:
        return message if isinstance(message, _Later) and not values else later(message, **values)
    if isinstance(message, _Later) and message.values:
        return message.said()
    text = _catalogue(_spoken).gettext(message) if message and _spoken != ENGLISH else message
    return text.format(**{name: _said(value) for name, value in values.items()}) if values else text


def later(message: str, /, **values: object) -> str:
    """Marks a message for the catalogue to find: it is English, and `say` says it elsewhere, with its values."""
    return _Later(message, values)


def counted(amount: int, word: str) -> str:
    """`1 plan`, `2 plans`."""
    if _spoken in (ENGLISH, _KEPT):
        return f"{amount:,} {word}" if amount == 1 else f"{amount:,} {word}s"
    return f"{amount:,} {_catalogue(_spoken).pgettext(COUNTED, word)}"


def capital(text: str) -> str:
    """With a capital letter at its start."""
    return _Capital(text) if isinstance(text, _Later) else f"{text[:1].upper()}{text[1:]}"


def filled_from(text: str, messages: Iterable[str]) -> tuple[str, dict[str, str]] | None:
    """The first of the messages that the English text is with its fields filled, and what these hold; None: it is none
    of them."""
    for message in messages:
        if found := _pattern(message).fullmatch(text):
            return message, found.groupdict()
    return None


def retold(text: str, messages: Iterable[str]) -> str:
    """An English text in the language spoken, where one of the messages has become it with its fields filled."""
    found = None if _spoken == ENGLISH else filled_from(text, messages)
    return text if found is None else say(found[0], **found[1])


def recognised(text: str, messages: Iterable[str]) -> str:
    """An English text as the one of the messages that it is, with its fields filled likewise, so that `say` says it
    where people read it; itself where it is none."""
    messages = tuple(messages)
    found = filled_from(text, messages)
    if found is None:
        return text
    return later(found[0], **{name: recognised(held, messages) for name, held in found[1].items()})


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


@contextmanager
def for_every_language() -> Iterator[None]:
    """As long as the block lasts `say` gives English that `in_language` can say again in any language.

    So do its `join` and what is added to it; an f-string, another text's `join` and `counted` make plain English of it.
    """
    with speaking(_KEPT):
        yield


def in_language(language: str, texts: Iterable[str]) -> list[str]:
    """Texts of `for_every_language` in one of LANGUAGES."""
    with speaking(language):
        return [say(text) for text in texts]


def of_locale(environment: Mapping[str, str]) -> str:
    """The language that a locale asks for: the first of these variables that is set decides, as POSIX has it."""
    names = (environment.get(name) for name in ("LC_ALL", "LC_MESSAGES", "LANG"))
    return CHINESE if next(filter(None, names), "").startswith(CHINESE) else ENGLISH


class _Later(str):
    """A message in English that keeps its values apart; some of these may be messages too."""

    message: str
    values: dict[str, object]

    def __new__(cls, message: str, values: dict[str, object]) -> _Later:
        made = super().__new__(cls, message.format(**values) if values else message)
        made.message, made.values = message, values
        return made

    def __getnewargs__(self) -> tuple[str, dict[str, object]]:  # type: ignore[override]
        return self.message, self.values

    def __add__(self, other: str) -> str:
        return later("{first}{second}", first=self, second=other)

    def join(self, texts: Iterable[str], /) -> str:
        """As of any text; the result keeps the texts, and this one between them, apart."""
        parts = {f"part_{place}": text for place, text in enumerate(texts)}
        return later("{between}".join(f"{{{name}}}" for name in parts), between=self, **parts)

    def said(self) -> str:
        """In the language spoken."""
        return say(self.message, **self.values)


class _Capital(_Later):
    """A message whose first letter is a capital, in whatever language it is said."""

    of: str

    def __new__(cls, of: str) -> _Capital:
        made = str.__new__(cls, f"{of[:1].upper()}{of[1:]}")
        made.message, made.values, made.of = "{of}", {"of": of}, of
        return made

    def __getnewargs__(self) -> tuple[str]:  # type: ignore[override]
        return (self.of,)

    def said(self) -> str:
        return capital(say(self.of))


@cache
def _pattern(message: str) -> re.Pattern[str]:
    parts = (
        re.escape(text) + ("" if field is None else f"(?P<{field}>.+?)")
        for text, field, *_ in Formatter().parse(message)
    )
    return re.compile("".join(parts), re.DOTALL)


def _said(value: object) -> object:
    return say(value) if isinstance(value, _Later) else value


@cache
def _catalogue(language: str) -> gettext.NullTranslations:
    return gettext.translation(DOMAIN, CATALOGUES, [language], fallback=True)
