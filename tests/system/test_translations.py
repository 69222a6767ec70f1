"""The Chinese documents keep to the English ones, and what does not is named."""

from __future__ import annotations

import re

import pytest
from babel.messages import Catalog

from tests.support.checkout import ROOT
from tools.translations import PAGES, README, catalogue, has_words, in_chinese, lagging, readme, renumbered


def of(*messages: tuple[str, str], fuzzy: bool = False) -> Catalog:
    made = Catalog(locale="zh_CN")
    for english, chinese in messages:
        made.add(english, chinese, flags=["fuzzy"] if fuzzy else [])
    return made


def test_a_page_that_lags_is_named_with_what_it_lacks() -> None:
    english = of(("Two new words", ""), ("80 % of `tp`", ""), ("[A page](specs.md) more", ""), ("`code` 7", ""))
    chinese = of(("80 % of `tp`", "8 % 的 `tp`"), ("[A page](specs.md) more", "[一页](spec.md)"))
    assert list(lagging("docs/any", english, chinese)) == [
        "docs/any: without Chinese: Two new words",
        "docs/any: the Chinese of “80 % of `tp`” lacks 80",
        "docs/any: the Chinese of “[A page](specs.md) more” lacks specs.md",
    ]


def test_what_was_guessed_lags_and_what_is_whole_does_not() -> None:
    message = ("In 3 words", "三个词，即 3")
    assert not list(lagging("any", of(message), of(message)))
    assert list(lagging("any", of(message), of(message, fuzzy=True))) == ["any: without Chinese: In 3 words"]


@pytest.mark.parametrize(("text", "words"), [("`a b` 3", False), ("h100", False), ("Memory", True), ("of it", True)])
def test_names_numbers_and_code_need_no_chinese(text: str, words: bool) -> None:
    assert has_words(text) is words


def test_where_only_numbers_changed_the_chinese_gets_the_new_ones() -> None:
    assert renumbered("6.2 % of 613", "6.4 % of 620", "613 次中的 6.2 %") == "620 次中的 6.4 %"
    assert renumbered("6.2 % of 613", "6.4 % in 620", "613 次中的 6.2 %") is None
    assert renumbered("2 of 2", "2 of 3", "2 个中的 2 个") is None, "which of the two changed cannot be told"
    assert renumbered("3 of 5", "4 of 5", "五个中的 3 个") is None, "a number in words cannot be found"


def test_every_page_for_users_has_a_catalogue() -> None:
    assert len(PAGES) > 25
    assert all(len(catalogue(page)) > 3 for page in PAGES)


def test_the_readme_in_chinese_is_the_english_one_in_its_catalogue_s_words() -> None:
    assert README.read_text(encoding="utf-8") == readme(), "make translations writes it"
    both = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md")]
    blocks = [re.findall(r"^```.*?^```$", text, flags=re.DOTALL | re.MULTILINE) for text in both]
    assert blocks[0] == blocks[1], "commands and what they print are the same"


def test_lists_tables_and_headings_keep_their_marks() -> None:
    page = "# One two\n\n- a word\n  more\n\n| a cell | 2 |\n|---|---|\n| b cell | `x` |\n"
    words = of(("One two", "一二"), ("a word more", "词"), ("b cell", "乙"))
    assert in_chinese(page, words) == "# 一二\n\n- 词\n\n| a cell | 2 |\n|---|---|\n| 乙 | `x` |\n"
