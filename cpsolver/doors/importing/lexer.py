"""Splits the text of a shell script into commands and words. A word keeps its quoted parts and its expansions apart.

Covers what training scripts are made of, by POSIX shell grammar and bash's manual: quotes, continuations, comments,
`$NAME`, `${...}`, `$((...))`, `$(...)`, backticks, arrays, redirections, here-documents, operators.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import say

Kind = Literal["text", "variable", "arithmetic", "command"]
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]", re.ASCII)
_OPERATORS = (";;&", ";;", ";&", "&&", "||", "|&", ";", "|", "&", "(", ")", "\n")
_NO_EXPANSION = re.compile(r"[^$`\\]+")
_RESERVED = ("if", "elif", "while", "until", "for", "then", "else", "do", "!")
_REDIRECTIONS = re.compile(r"(?:\d*)(?:&>>|&>|<<<|<<-|<<|>>|>&|<&|>\||<>|>|<)")


@dataclass(frozen=True)
class WordPart:
    """A piece of a word: plain text, or the text inside the braces or parentheses of an expansion."""

    kind: Kind
    text: str
    quoted: bool = False


@dataclass
class Word:
    """A word and its line. `items`: the elements where the word is an array, `NAME=( ... )`; else None."""

    line: int
    parts: list[WordPart] = field(default_factory=list)
    items: list[Word] | None = None

    @property
    def plain(self) -> str | None:
        """The text of a word that has no quotes and no expansions; None for any other word."""
        if self.items is not None or any(part.kind != "text" or part.quoted for part in self.parts):
            return None
        return "".join(part.text for part in self.parts)

    def add(self, part: WordPart) -> None:
        """Append a part; neighbouring text of one kind becomes one part."""
        last = self.parts[-1] if self.parts else None
        if last is not None and last.kind == part.kind == "text" and last.quoted == part.quoted:
            self.parts[-1] = WordPart("text", last.text + part.text, part.quoted)
        else:
            self.parts.append(part)


@dataclass
class HereDocument:
    """The lines behind `<<MARK`, and the first one's line, once they are read. `quoted`: the mark has quotes, and
    nothing is expanded; `tabs`: those at the start of lines are left out (`<<-`)."""

    mark: str
    tabs: bool
    quoted: bool
    text: str = ""
    line: int = 0

    def word(self) -> Word:
        """The text as one word with its expansions; raises InputError for one that never closes."""
        if self.quoted:
            return Word(self.line, [WordPart("text", self.text, True)])
        return Lexer(self.text, None, self.line).document_word()


class Lexer:
    """Reads one text; raises InputError for quotes or brackets that never close."""

    def __init__(self, text: str, file: str | None = None, line: int = 1) -> None:
        self.text = text.replace("\r\n", "\n")
        self.file, self.line, self.at = file, line, 0
        self.waiting: list[HereDocument] = []  # those that start after this line
        self.document: HereDocument | None = None  # the last one, of the command at hand
        self.redirected = False  # whether a redirection of input or output was left out
        self.string: Word | None = None  # the text behind `<<<`, of the command at hand

    def operand(self) -> Word:
        """The whole text as one word, with its blanks: the operand of an expansion in braces."""
        word = Word(self.line)
        while self.at < len(self.text):
            self._piece(word)
        return word

    def document_word(self) -> Word:
        """The whole text as the word of a here-document: quotes in it are letters."""
        word = Word(self.line)
        while self.at < len(self.text):
            if match := _NO_EXPANSION.match(self.text, self.at):
                word.add(WordPart("text", match.group(), True))
                self._advance(match.end())
            elif self.text[self.at] != "\\":
                self._expansion(word, True)
            else:
                after = self.text[self.at + 1 : self.at + 2]
                kept = {"\n": "", "$": "$", "`": "`", "\\": "\\"}.get(after, f"\\{after}")
                word.add(WordPart("text", kept, True))
                self._advance(min(self.at + 2, len(self.text)))
        return word

    def token(self, words: list[Word]) -> str | None:
        """Read one word into `words`, those of the command so far, or return the operator that ends it.

        None for a word or a redirection (which is left out); "" at the end of the text.
        """
        self._skip_blanks()
        if self.at >= len(self.text):
            return ""
        if self._redirection():
            return None
        if self.text.startswith("((", self.at) and all(word.plain in _RESERVED for word in words):
            words.append(
                Word(self.line, [WordPart("text", "(("), WordPart("arithmetic", self._bracketed("(", ")")[1:-1])])
            )
            return None
        for operator in _OPERATORS:
            if self.text.startswith(operator, self.at):
                self.at += len(operator)
                if operator == "\n":
                    self.line += 1
                    self._here_documents()
                return operator
        words.append(self._word(assignment=all(assignment_head(word) for word in words) or _declares(words)))
        return None

    def skip_closing(self) -> bool:
        """Step over the `)` of a function's head; raises InputError where there is none."""
        self._skip_blanks()
        if not self.text.startswith(")", self.at):
            raise self.error(say("'(' stands where a word is expected"))
        self.at += 1
        return True

    def condition_word(self, before: list[Word]) -> Word:
        """The next word inside `[[ ... ]]`, where operators are words and lines may end anywhere."""
        self._skip_blanks()
        while self.text.startswith("\n", self.at):
            self._advance(self.at + 1)
            self._skip_blanks()
        if self.at >= len(self.text):
            raise self.error(say("'[[' is never closed by ']]'"))
        if before and before[-1].plain in ("=~", "==", "=", "!="):
            return self._pattern()
        for operator in ("&&", "||", "(", ")", "<", ">"):
            if self.text.startswith(operator, self.at):
                self.at += len(operator)
                return Word(self.line, [WordPart("text", operator)])
        word = self._word()
        if not word.parts:
            raise self.error(say("{text!r} stands in [[ ]]", text=self.text[self.at]))
        return word

    def _pattern(self) -> Word:
        """A pattern or regular expression inside `[[ ... ]]`: parentheses and bars in it are text."""
        word, depth = Word(self.line), 0
        while self.at < len(self.text) and (depth or self.text[self.at] not in " \t\n"):
            depth += {"(": 1, ")": -1}.get(self.text[self.at], 0)
            if depth < 0:
                break
            self._piece(word)
        if not word.parts:
            raise self.error(say("a comparison in [[ ]] ends too early"))
        return word

    def _skip_blanks(self) -> None:
        while self.at < len(self.text):
            if self.text.startswith("\\\n", self.at):
                self.at, self.line = self.at + 2, self.line + 1
            elif self.text[self.at] in " \t":
                self.at += 1
            elif self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def _redirection(self) -> bool:
        """Step over a redirection and its target."""
        match = _REDIRECTIONS.match(self.text, self.at)
        if match is None:
            return False
        self.at = match.end()
        sign = match.group().lstrip("0123456789")
        self.redirected |= not match.group().startswith("2") and sign != "<<<"
        if self.text.startswith("(", self.at):  # process substitution
            self._bracketed("(", ")")
            return True
        self._skip_blanks()
        if self.text.startswith(("<(", ">("), self.at):  # `< <(...)`
            self.at += 1
            self._bracketed("(", ")")
            return True
        if self.at < len(self.text) and self.text[self.at] not in "\n;|&":
            target = self._word()
            if sign == "<<<":
                self.string = target
            if sign in ("<<", "<<-"):
                mark, quoted = "".join(part.text for part in target.parts), any(part.quoted for part in target.parts)
                self.document = HereDocument(mark, sign == "<<-", quoted)
                self.waiting.append(self.document)
        return True

    def _here_documents(self) -> None:
        for document in self.waiting:
            rows, document.line = [], self.line
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                row = self.text[self.at : end]
                self.at, self.line = min(end + 1, len(self.text)), self.line + 1
                row = row.lstrip("\t") if document.tabs else row
                if row == document.mark:
                    break
                rows.append(row + "\n")
            document.text = "".join(rows)
        self.waiting = []

    def _word(self, assignment: bool = False) -> Word:
        word = Word(self.line)
        if assignment and (match := _ASSIGNMENT.match(self.text, self.at)):
            word.add(WordPart("text", match.group()))
            self.at = match.end()
            if self.text.startswith("(", self.at):
                self.at += 1
                word.items = self._items()
                return word
        while self.at < len(self.text) and self.text[self.at] not in " \t\n;|&()<>":
            self._piece(word)
        if self.at < len(self.text) and self.text[self.at] in "(<>" and not word.parts:
            raise self.error(say("{text!r} stands where a word is expected", text=self.text[self.at]))
        return word

    def _items(self) -> list[Word]:
        """The words of an array, up to its closing parenthesis."""
        items: list[Word] = []
        start = self.line
        while True:
            self._skip_blanks()
            if self.at >= len(self.text):
                raise self.error(say("an array is never closed by ')'"), start)
            letter = self.text[self.at]
            if letter == ")":
                self.at += 1
                return items
            if letter == "\n":
                self.at, self.line = self.at + 1, self.line + 1
            elif letter in ";|&(<>":
                raise self.error(say("{letter!r} stands in an array", letter=letter))
            else:
                items.append(self._word())

    def _piece(self, word: Word) -> None:
        letter = self.text[self.at]
        if letter == "\\":
            if self.text.startswith("\\\n", self.at):
                self.line += 1
            elif self.at + 1 < len(self.text):  # at the end of a file bash leaves it out
                word.add(WordPart("text", self.text[self.at + 1], True))
            self.at += 2
        elif letter == "'":
            end = self._find("'", self.at + 1)
            word.add(WordPart("text", self.text[self.at + 1 : end], True))
            self._advance(end + 1)
        elif letter == '"':
            self._double(word)
        elif letter in "$`":
            self._expansion(word, False)
        else:
            word.add(WordPart("text", letter))
            self.at += 1

    def _double(self, word: Word) -> None:
        """Read a text in double quotes, with its expansions and its backslashes."""
        start, first = self.line, self.at + 1
        self.at += 1
        while True:
            if self.at >= len(self.text):
                raise self.error(say('a text in double quotes is never closed by "'), start)
            letter = self.text[self.at]
            if letter == '"':
                if self.at == first:
                    word.add(WordPart("text", "", True))  # an empty text is a word of its own
                self.at += 1
                return
            if letter == "\\" and self.text[self.at + 1 : self.at + 2] in tuple('$`"\\\n'):
                if self.text[self.at + 1] != "\n":
                    word.add(WordPart("text", self.text[self.at + 1], True))
                self._advance(self.at + 2)
            elif letter in "$`":
                self._expansion(word, True)
            else:
                word.add(WordPart("text", letter, True))
                self._advance(self.at + 1)

    def _expansion(self, word: Word, quoted: bool) -> None:
        if self.text[self.at] == "`":
            end = self._find("`", self.at + 1)
            word.add(WordPart("command", re.sub(r"\\([`\\$])", r"\1", self.text[self.at + 1 : end]), quoted))
            self._advance(end + 1)
            return
        self.at += 1
        rest = self.text[self.at : self.at + 2]
        if rest == "((":
            inner = self._bracketed("(", ")")
            arithmetic = inner.startswith("(") and inner.endswith(")")
            word.add(WordPart("arithmetic", inner[1:-1], quoted) if arithmetic else WordPart("command", inner, quoted))
        elif rest[:1] == "(":
            word.add(WordPart("command", self._bracketed("(", ")"), quoted))
        elif rest[:1] == "{":
            word.add(WordPart("variable", self._bracketed("{", "}"), quoted))
        elif rest[:1] == "'" and not quoted:
            end = self._find("'", self.at + 1)
            word.add(WordPart("text", self.text[self.at + 1 : end].replace("\\n", "\n").replace("\\t", "\t"), True))
            self._advance(end + 1)
        elif match := _NAME.match(self.text, self.at):
            word.add(WordPart("variable", match.group(), quoted))
            self.at = match.end()
        else:
            word.add(WordPart("text", "$", quoted))

    def _bracketed(self, opening: str, closing: str) -> str:
        """The text between a pair of brackets; inner pairs and quotes are skipped. Moves behind the closing one."""
        start, depth, at = self.at, 0, self.at
        while at < len(self.text):
            letter = self.text[at]
            if letter == "\\":
                at += 1
            elif letter == "'" and opening == "(":
                at = self._find("'", at + 1)
            elif letter == '"' and opening == "(":
                at = self._after_double(at)
            elif letter == opening:
                depth += 1
            elif letter == closing:
                depth -= 1
                if depth == 0:
                    self._advance(at + 1)
                    return self.text[start + 1 : at]
            at += 1
        raise self.error(say("an expansion is never closed by {closing!r}", closing=closing))

    def _after_double(self, at: int) -> int:
        """The place of the quote that closes a text in double quotes, commands inside it skipped."""
        at += 1
        while at < len(self.text) and self.text[at] != '"':
            if self.text.startswith("$(", at):
                inner = Lexer(self.text, self.file, self.line)
                inner.at = at + 1
                inner._bracketed("(", ")")
                at = inner.at
            else:
                at += 2 if self.text[at] == "\\" else 1
        return at

    def _find(self, mark: str, start: int) -> int:
        end = self.text.find(mark, start)
        if end < 0:
            raise self.error(say("a text is never closed by {mark}", mark=mark))
        return end

    def _advance(self, to: int) -> None:
        self.line += self.text.count("\n", self.at, to)
        self.at = to

    def error(self, message: str, line: int | None = None) -> InputError:
        """The error of a text that is no shell script."""
        return InputError(
            Trouble("", say("is not a shell script: {text}", text=message), file=self.file, line=line or self.line)
        )


def assignment_head(word: Word) -> re.Match[str] | None:
    """`NAME=`, `NAME+=` or `NAME[INDEX]=` at the start of a word, as a match of its name, index and plus; else None."""
    first = word.parts[0] if word.parts else None
    if first is None or first.quoted or first.kind != "text":
        return None
    return _ASSIGNMENT.match(first.text)


def _declares(words: list[Word]) -> bool:
    """Whether the words that follow are assignments too, as after `export`."""
    return bool(words) and words[0].plain in ("export", "declare", "typeset", "local", "readonly")
