"""The grammar of shell scripts, by POSIX ("Shell Grammar") and bash's manual."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from cpsolver.doors.importing.lexer import HereDocument, Lexer, Word
from cpsolver.inputs.language import say

Block = tuple["Node", ...]
"""Commands that run one after the other."""


@dataclass(frozen=True)
class Simple:
    """A command of words, assignments among them. `redirected`: its input or output is a file's; `document`: the
    here-document that is its input; `string`: the text that is, behind `<<<`."""

    line: int
    words: tuple[Word, ...]
    redirected: bool = False
    document: HereDocument | None = None
    string: Word | None = None


@dataclass(frozen=True)
class Condition:
    """`[[ ... ]]`: its words, operators among them as plain words."""

    line: int
    words: tuple[Word, ...]


@dataclass(frozen=True)
class Pipeline:
    """Commands joined by `|`. `negated`: its status is turned round by `!`."""

    parts: Block
    negated: bool = False


@dataclass(frozen=True)
class Chain:
    """Pipelines joined by `&&` and `||`. `background`: it is not waited for."""

    first: Node
    rest: tuple[tuple[str, Node], ...]
    background: bool = False


@dataclass(frozen=True)
class If:
    """Conditions with what runs where they hold, and what runs where none does."""

    branches: tuple[tuple[Block, Block], ...]
    otherwise: Block


@dataclass(frozen=True)
class Case:
    """Arms: patterns, what runs, and what ends it (`;;`, `;&`, `;;&`)."""

    word: Word
    arms: tuple[tuple[tuple[Word, ...], Block, str], ...]


@dataclass(frozen=True)
class For:
    """A loop over words; None: over the positional arguments."""

    line: int
    name: str
    words: tuple[Word, ...] | None
    body: Block
    known: bool = True
    """False for `select`, whose user chooses."""


@dataclass(frozen=True)
class Counting:
    """`for ((start; condition; step))`."""

    line: int
    parts: tuple[str, ...]
    body: Block


@dataclass(frozen=True)
class While:
    """A loop while its condition holds, or until it does."""

    line: int
    condition: Block
    body: Block
    until: bool


@dataclass(frozen=True)
class Group:
    """Commands in braces or, as a subshell whose variables are its own, in parentheses."""

    body: Block
    subshell: bool
    redirected: bool = False


@dataclass(frozen=True)
class Function:
    """The definition of a function."""

    name: str
    body: Node


Node = Simple | Condition | Pipeline | Chain | If | Case | For | Counting | While | Group | Function
Stop = Literal["then", "elif", "else", "fi", "do", "done", "esac", "}", ")", ";;", ";&", ";;&"]
_STOPS = frozenset(("then", "elif", "else", "fi", "do", "done", "esac", "}"))
_ARM_ENDS = (";;", ";&", ";;&")


@dataclass
class ScriptParser:
    """Reads the commands of a text; raises InputError for constructs that never close."""

    lexer: Lexer
    operator: str = field(default="\n", init=False)
    """The operator that ended the command read last."""

    def parse(self) -> Block:
        """All commands of the text."""
        return self._block(())

    def _block(self, stops: tuple[str, ...]) -> Block:
        """Commands up to one of the words or operators that may end them, which `self.stop` then is."""
        nodes: list[Node] = []
        while True:
            start = self._start()
            if isinstance(start, Word) and start.plain in _STOPS:
                if start.plain not in stops:
                    raise self.lexer.error(
                        say("{plain!r} stands where nothing is open that it ends", plain=start.plain)
                    )
                self.stop = str(start.plain)
                return tuple(nodes)
            if start == "(" or isinstance(start, Word):
                nodes.append(self._chain(start))
                start = self.operator if self.operator in (")", *_ARM_ENDS) else "\n"
            if start in stops or (start == "" and not stops):
                self.stop = str(start)
                return tuple(nodes)
            if start in ("", ")", *_ARM_ENDS):
                raise self.lexer.error(
                    say("{stops!r} is missing", stops=stops[-1])
                    if stops
                    else say("{start!r} stands where nothing is open", start=start)
                )

    def _start(self) -> Word | str:
        """The first word of a command, or the operator that stands in its place."""
        self.lexer.redirected, self.lexer.document, self.lexer.string = False, None, None
        words: list[Word] = []
        while (operator := self.lexer.token(words)) is None:
            if words:
                return words[0]
        return operator

    def _chain(self, start: Word | str) -> Node:
        first = self._pipeline(start)
        rest: list[tuple[str, Node]] = []
        while self.operator in ("&&", "||"):
            operator = self.operator
            rest.append((operator, self._pipeline(self._next())))
        background = self.operator == "&"
        return Chain(first, tuple(rest), background) if rest or background else first

    def _next(self) -> Word | str:
        """The start of the command behind an operator, which may stand on a later line."""
        while (start := self._start()) == "\n":
            pass
        return start

    def _pipeline(self, start: Word | str) -> Node:
        negated = False
        while isinstance(start, Word) and start.plain in ("!", "time"):
            negated ^= start.plain == "!"
            start = self._start()
            if isinstance(start, Word) and start.plain == "-p":
                start = self._start()
        parts = [self._command(start)]
        while self.operator in ("|", "|&"):
            parts.append(self._command(self._next()))
        return Pipeline(tuple(parts), negated) if negated or len(parts) > 1 else parts[0]

    def _command(self, start: Word | str) -> Node:
        if start == "(":
            body = self._block((")",))
            return self._closed(Group(body, True))
        if isinstance(start, str):
            self.operator = start
            if start in ("\n", ";"):
                return Simple(self.lexer.line, ())
            told = say("{start!r} stands where a command is expected", start=start)
            raise self.lexer.error(told if start else say("'the end' stands where a command is expected"))
        reader = {
            "if": self._if,
            "case": self._case,
            "for": self._for,
            "select": self._for,
            "while": self._while,
            "until": self._while,
            "{": self._braces,
            "[[": self._condition,
            "function": self._function,
        }.get(start.plain or "")
        return reader(start) if reader else self._simple(start)

    def _closed(self, node: Node) -> Node:
        """The node of a compound command, behind which only an operator may stand."""
        self.lexer.redirected, self.lexer.string = False, None
        words: list[Word] = []
        while (operator := self.lexer.token(words)) is None:
            if words:
                raise self.lexer.error(
                    say("{word!r} stands behind the end of a construct", word=words[0].plain or say("a word"))
                )
        self.operator = operator
        return Group((node,), False, True) if self.lexer.redirected or self.lexer.string else node

    def _simple(self, start: Word) -> Node:
        words = [start]
        while (operator := self.lexer.token(words)) is None:
            pass
        if operator == "(" and len(words) == 1 and start.plain and self.lexer.skip_closing():
            return Function(start.plain, self._command(self._next()))
        if operator == "(":
            raise self.lexer.error(say("'(' stands where a word is expected"))
        self.operator = operator
        lexer = self.lexer
        return Simple(start.line, tuple(words), lexer.redirected, lexer.document, lexer.string)

    def _function(self, _start: Word) -> Node:
        name = self._start()
        if isinstance(name, str) or not name.plain:
            raise self.lexer.error(say("a function has no name"))
        body = self._next()
        if body == "(" and self.lexer.skip_closing():
            body = self._next()
        return Function(name.plain, self._command(body))

    def _braces(self, _start: Word) -> Node:
        return self._closed(Group(self._block(("}",)), False))

    def _if(self, _start: Word) -> Node:
        branches = []
        while True:
            condition = self._block(("then",))
            branches.append((condition, self._block(("elif", "else", "fi"))))
            if self.stop != "elif":
                break
        otherwise = self._block(("fi",)) if self.stop == "else" else ()
        return self._closed(If(tuple(branches), otherwise))

    def _while(self, start: Word) -> Node:
        condition = self._block(("do",))
        return self._closed(While(start.line, condition, self._block(("done",)), start.plain == "until"))

    def _for(self, start: Word) -> Node:
        head: list[Word] = [start]
        while (operator := self.lexer.token(head)) is None and head[-1].plain != "do":
            pass
        if len(head) > 1 and head[1].parts and head[1].parts[0].text == "((":
            self._do(head)
            parts = tuple(head[1].parts[-1].text.split(";"))
            return self._closed(Counting(start.line, parts, self._block(("done",))))
        name = head[1].plain if len(head) > 1 else None
        if not name:
            raise self.lexer.error(say("a loop has no variable"))
        if len(head) == 2 and operator == "\n":  # `in` may stand on the next line
            following = self._next()
            if isinstance(following, Word):
                head.append(following)
            while following != "do" and head[-1].plain != "do" and self.lexer.token(head) is None:
                pass
        words = (
            None
            if len(head) < 3 or head[2].plain != "in"
            else tuple(w for w in head[3:] if w is not head[-1] or w.plain != "do")
        )
        self._do(head)
        return self._closed(For(start.line, name, words, self._block(("done",)), start.plain == "for"))

    def _do(self, head: list[Word]) -> None:
        """Step over the `do` of a loop, unless it is the last word read."""
        if head[-1].plain == "do":
            return
        start = self._start()
        while start in ("\n", ";"):
            start = self._start()
        if not isinstance(start, Word) or start.plain != "do":
            raise self.lexer.error(say("'do' is missing"))

    def _case(self, _start: Word) -> Node:
        subject = self._start()
        follow = self._next()
        if isinstance(subject, str) or isinstance(follow, str) or follow.plain != "in":
            raise self.lexer.error(say("'in' is missing"))
        return self._closed(Case(subject, tuple(self._arms())))

    def _arms(self) -> Iterator[tuple[tuple[Word, ...], Block, str]]:
        while True:
            start = self._next()
            if isinstance(start, Word) and start.plain == "esac":
                return
            patterns: list[Word] = []
            start = self._start() if start == "(" else start
            while isinstance(start, Word):
                patterns.append(start)
                operator = self._start()
                if operator == ")":
                    break
                start = self._start() if operator == "|" else operator
            else:
                raise self.lexer.error(say("'esac' is missing"))
            body = self._block((*_ARM_ENDS, "esac"))
            yield tuple(patterns), body, self.stop
            if self.stop == "esac":
                return

    def _condition(self, start: Word) -> Node:
        words: list[Word] = []
        while (word := self.lexer.condition_word(words)).plain != "]]":
            words.append(word)
        return self._closed(Condition(start.line, tuple(words)))


def parse(text: str, file: str | None = None, line: int = 1) -> Block:
    """The commands of a text; raises InputError where it is no shell script."""
    return ScriptParser(Lexer(text, file, line)).parse()
