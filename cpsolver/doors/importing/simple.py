"""What simple commands do to a script's variables: assignments, builtins of the shell, and files that are sourced."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cpsolver.doors.importing.conditions import holds_test
from cpsolver.doors.importing.grammar import Block, Node, Simple, parse
from cpsolver.doors.importing.lexer import HereDocument, Word, assignment_head
from cpsolver.doors.importing.printed import printed, searched, split_among
from cpsolver.doors.importing.queried import PROGRAMS, queried
from cpsolver.doors.importing.variables import ShellVariables
from cpsolver.inputs.document import read_source
from cpsolver.inputs.errors import InputError
from cpsolver.inputs.language import later, say

_DECLARING = ("export", "declare", "typeset", "local", "readonly")
_CHANGES = re.compile(r"([A-Za-z_]\w*)\s*(?:(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)|(?:\+\+|--)\s*([A-Za-z_]\w*)")
_STEP = re.compile(r"\s*(?:([A-Za-z_]\w*)\s*(\+\+|--)|(\+\+|--)\s*([A-Za-z_]\w*))\s*")
_SET = re.compile(r"\s*([A-Za-z_]\w*)\s*([-+*/%&|^]|<<|>>)?=(?!=)([^=].*)", re.DOTALL)
_BEFORE = ("exec", "command", "builtin", "nohup", "time")
"""Words before a command that change nothing of what is read."""
_SHELLS = ("bash", "sh", "sbatch", "ssh")
"""What runs the commands of its input, where it is given no script."""
_QUIET = (
    ":",
    "true",
    "false",
    "cd",
    "mkdir",
    "shopt",
    "ulimit",
    "umask",
    "trap",
    "sleep",
    "wait",
    "rm",
    "touch",
    "cp",
    "chmod",
)


@dataclass(frozen=True)
class ScriptCommand:
    """A command that the script would run, its words expanded. `certain`: no undecided condition leads to it.

    `settings`: variables that are set for it alone.
    """

    line: int
    words: tuple[str, ...]
    certain: bool
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Script:
    """What reading a script gave. A warning names something that was not followed, and its line.

    `ended`: the line of the `exit` that ends the script before its last line; None where none is met.
    """

    variables: ShellVariables
    commands: list[ScriptCommand] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    ended: int | None = None

    def warn(self, line: int, message: str) -> None:
        """Note something that was not followed, once."""
        text = say("line {line}: {text}", line=line, text=message)
        if text not in self.warnings:
            self.warnings.append(text)


class Leave(Exception):
    """Leaves a script (`exit`), a function (`return`) or loops (`break`, `continue`: how many)."""

    def __init__(self, what: str, amount: int = 1, status: bool | None = True) -> None:
        super().__init__(what)
        self.what, self.amount, self.status = what, amount, status


class SimpleCommands:
    """Runs simple commands on variables. `doubts`: conditions not decided that lead to the command at hand.

    `output` collects what is printed, where somebody reads it; None in it: not known. `frames` are the variables that
    the functions at hand have for themselves.
    """

    def __init__(self, script: Script, file: str | None) -> None:
        self.script, self.variables, self.file = script, script.variables, file
        self.doubts = 0
        self.output: list[str | None] | None = None
        self.piped: str | None = None
        self.folder: str | None = None
        self.functions: dict[str, tuple[Node, bool]] = {}
        self.frames: list[dict[str, tuple[str | None, list[str] | None]]] = []
        self.sources = 0  # files being read inside one another
        self.loops = 0
        self.steps = 0
        self.presumed = False  # whether a condition at hand took a variable as not set
        self.settings: dict[str, str] = {}  # of the command at hand alone

    @property
    def certain(self) -> bool:
        """Whether the command at hand runs in any case."""
        return self.doubts == 0

    def block(self, nodes: Block) -> bool | None:
        """Run commands one after the other; the status of the last."""
        raise NotImplementedError

    def call(self, name: str, words: Sequence[str]) -> bool | None:
        """Run a function."""
        raise NotImplementedError

    def emit(self, text: str | None) -> None:
        """Note what is printed."""
        if self.output is not None:
            self.output.append(text if self.certain else None)

    def simple(self, command: Simple) -> bool | None:
        """Run a simple command; whether it succeeds, None where that is not known."""
        words = list(command.words)
        if not words:
            if command.redirected:
                self.emit(None)
            return True
        if words[0].parts and words[0].parts[0].text == "((" and words[0].parts[-1].kind == "arithmetic":
            return self.arithmetic(words[0].parts[-1].text, command.line)
        if all(assignment_head(word) for word in words):
            return self._assign(words)
        if words[0].plain in _DECLARING:
            return self._declare(str(words[0].plain), words[1:])
        self.settings = {}
        while head := assignment_head(words[0]):
            name, value = head.group(1), self.variables.text(words[0], len(head.group()))
            self.settings[name] = value
            words = words[1:]
            if name not in self.variables.scalars:
                told = later("is set for one command only (blanks in a value need quotes): {value}")
                self.variables.mark(name, command.line, say(told, value=self.variables.shown(value)))
        asks = words[0].plain in ("[", "test")
        if asks:
            with self.variables.question():
                fields = [text for word in words for text in self.variables.fields(word)]
        else:
            fields = [text for word in words for text in self.variables.fields(word)]
        while len(fields) > 1 and fields[0] in _BEFORE and not fields[1].startswith("-"):
            last = fields.pop(0) == "exec"
            if last and self.certain and fields[0] not in self.functions:
                self._run(command, fields)
                raise Leave("exit")
        self.steps += len(fields) // 64
        return self._run(command, fields) if fields else True

    def _run(self, command: Simple, fields: list[str]) -> bool | None:
        """Run a command of expanded words; the text behind `<<<` is its input."""
        if command.string is None:
            return self._run_words(command, fields)
        piped, self.piped = self.piped, self.variables.text(command.string) + "\n"
        try:
            return self._read_text(fields, self.piped) or self._run_words(command, fields)
        finally:
            self.piped = piped

    def _read_text(self, fields: list[str], text: str) -> bool | None:
        """`read` of a text that the script itself gives; None where it is another command, or is not followed."""
        separators = self.settings.get("IFS", self.variables.scalars.get("IFS", " \t\n"))
        values = split_among(fields, text, separators) if fields[0] == "read" and self.certain else None
        for name, value in (values or {}).items():
            if isinstance(value, list):
                self.variables.set_array(name, value)
            else:
                self.variables.set(name, value)
        return True if values else None

    def _run_words(self, command: Simple, fields: list[str]) -> bool | None:
        name, line = fields[0], command.line
        if name in self.functions:
            before = None if self.output is None else len(self.output)
            status = self.call(name, fields[1:])
            if self.output is not None and command.redirected:
                self.output[before:] = [None]
            return status
        builtin = _BUILTINS.get(name)
        if builtin is not None:
            return builtin(self, fields, line)
        if name in ("[", "test"):
            closed = name == "test" or fields[-1] == "]"
            return holds_test(fields[1:] if name == "test" else fields[1:-1], self.variables) if closed else None
        if command.document is not None and (text := self._handed_on(command.document, fields)) is not None:
            fields = [*fields, "-c", text]
        if name in ("grep", "egrep", "fgrep") and (held := searched(fields, self.piped)) is not None:
            return held
        known = queried(fields, self._found) if name in PROGRAMS else printed(fields, self.piped)
        known = None if command.redirected else known
        unclear = known is not None and bool(self.variables.unclear_in(known)) and name not in ("echo", "printf")
        if name not in _QUIET:
            self.emit(None if unclear else known)
        self.script.commands.append(ScriptCommand(line, tuple(fields), self.certain, dict(self.settings)))
        return name != "false" if name in _QUIET[:3] or name in ("echo", "printf") else None

    def _handed_on(self, document: HereDocument, fields: list[str]) -> str | None:
        """The text of a here-document that a shell runs; None for one that is given to anything else."""
        script = any(re.search(r"\.(sh|bash|slurm|sbatch)$|^-c$", field) for field in fields)
        if posixpath.basename(fields[0]) not in _SHELLS or script:
            return None
        with suppress(InputError):
            word = document.word()
            self.variables.spend(document.text, document.line)
            return self.variables.text(word)
        return None

    # -- assignments

    def _assign(self, words: list[Word]) -> bool | None:
        """Do assignments; a command in them decides their status."""
        commands = False
        for word in words:
            if head := assignment_head(word):
                self._assign_one(word, head)
                commands |= any(part.kind == "command" for part in word.parts)
        return None if commands else True

    def _declare(self, kind: str, words: list[Word]) -> bool | None:
        if kind == "local" and not self.frames:
            return False  # an error of the script, which goes on
        options = "".join(word.plain for word in words if word.plain and word.plain.startswith("-"))
        for word in words:
            head = assignment_head(word)
            name = head.group(1) if head else word.plain
            if not name or not name.isidentifier():
                continue
            if kind == "export" or "x" in options:
                self.variables.exported.add(name)
            if self.frames and kind in ("local", "declare", "typeset") and "g" not in options:
                self._keep(name)
                if head is None:
                    self.variables.set(name, "")
            if "A" in options and kind != "export":
                self.variables.tables.add(name)
            if head and "i" in options and not self.variables.text(word, len(head.group())).isdigit():
                self.unclear(name, word.line, say("is declared as a number, which is not followed"))
            elif head:
                self._assign_one(word, head)
        return True

    def _keep(self, name: str) -> None:
        """Remember a variable, which the end of the function brings back."""
        array = self.variables.arrays.get(name)
        before = (self.variables.scalars.get(name), None if array is None else list(array))
        self.frames[-1].setdefault(name, before)

    def _assign_one(self, word: Word, head: re.Match[str]) -> None:
        name, index, adds = head.groups()
        if name in self.variables.tables:
            return
        if not self.certain:
            self._assign_maybe(word, name, head.group(), bool(adds))
        elif index is not None:
            self.unclear(name, word.line, say("has an element set by itself, which is not followed"))
        elif word.items is not None:
            values = [text for item in word.items for text in self.variables.fields(item)]
            if any(re.match(r"\[[^\]]*\]=", text) for text in values):
                self.unclear(name, word.line, say("has elements set by their places, which is not followed"))
                return
            scalar = self.variables.scalars.get(name)
            elements = self.variables.arrays.get(name, [] if scalar is None else [scalar])
            self.variables.set_array(name, [*elements, *values] if adds else values)
            self.steps += len(self.variables.arrays.get(name, ())) // 64  # long texts count as many steps
        elif adds and name in self.variables.arrays:
            values = list(self.variables.arrays[name]) or [""]
            values[0] += self.variables.text(word, len(head.group()))
            self.variables.set_array(name, values)
        else:
            self._assign_text(name, (self.variables.get(name) or "") if adds else "", word, len(head.group()))

    def _assign_text(self, name: str, prefix: str, word: Word, skip: int) -> None:
        if name in self.variables.arrays:  # the first element of an array
            self.variables.set_array(name, [self.variables.text(word, skip), *self.variables.arrays[name][1:]])
        else:
            self.variables.set(name, prefix + self.variables.text(word, skip))

    def _assign_maybe(self, word: Word, name: str, head: str, adds: bool) -> None:
        """An assignment in doubt: an addition is left out, and a replaced value is unclear from here on."""
        if word.items is not None:
            value = " ".join(text for item in word.items for text in self.variables.fields(item))
            current = " ".join(self.variables.arrays[name]) if name in self.variables.arrays else None
        else:
            value, current = self.variables.text(word, len(head)), self.variables.get(name)
        if name in self.variables.given or (value == current and not adds):
            return
        if current and value.startswith(current) and value[len(current) :][:1].isspace():  # NAME="$NAME more"
            value, adds = value[len(current) :].strip(), True
        shown = self.variables.shown(value)
        if adds:
            self.script.warn(
                word.line,
                say("in a conditional, not followed: nothing is added to {name} ({shown})", name=name, shown=shown),
            )
        elif current is not None and any(part.argument for part in self.variables.unclear_in(value)):
            self.script.warn(
                word.line, say("{name} may come from the script's arguments; its value before is taken", name=name)
            )
        else:
            self.variables.set(name, self.variables.set_maybe(name, word.line, value))

    def unclear(self, name: str, line: int, reason: str) -> None:
        """Make a variable's value unclear."""
        self.variables.set(name, self.variables.mark(name, line, reason))

    # -- arithmetic

    def arithmetic(self, text: str, line: int) -> bool | None:
        """`((text))`: its assignments are done where they are simple; whether the value is not 0."""
        value: str | None = None
        for part in text.split(","):
            value = self._arithmetic_part(part, line)
        return None if value is None or self.variables.unclear_in(value) else int(value) != 0

    def _arithmetic_part(self, text: str, line: int) -> str | None:
        step, setting = _STEP.fullmatch(text), _SET.fullmatch(text)
        name = None
        with self.variables.question():
            if step:
                name = step.group(1) or step.group(4)
                operator = step.group(2) or step.group(3)
                old = self.variables.arithmetic(name, line)
                new = self.variables.arithmetic(f"{name}{operator[0]}1", line)
                value = old if step.group(1) else new
            elif setting and not _CHANGES.search(setting.group(3)):
                name = setting.group(1)
                formula = f"{name}{setting.group(2)}({setting.group(3)})" if setting.group(2) else setting.group(3)
                value = new = self.variables.arithmetic(formula, line)
            else:
                changes = list(_CHANGES.finditer(text))
                for change in changes:
                    changed = change.group(1) or change.group(2)
                    self.unclear(changed, line, say("is changed by arithmetic that is not followed"))
                return None if changes else self.variables.arithmetic(text, line)
        if self.certain and name not in self.variables.arrays:
            self.variables.set(name, new)
        elif self.variables.get(name) != new:
            self.unclear(name, line, say("is changed in a conditional, which is not followed"))
        return value if self.certain else None

    # -- builtins

    def _shift(self, fields: list[str], _line: int) -> bool | None:
        amount = int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else 1 if len(fields) == 1 else None
        arguments = self.variables.positional
        if not self.certain or amount is None:
            self.variables.positional = None
        elif arguments is not None and amount <= len(arguments):
            self.variables.positional = arguments[amount:]
            return True
        return None if arguments is None or amount is None else False

    def _set(self, fields: list[str], _line: int) -> bool | None:
        if "--" in fields:
            self.variables.positional = fields[fields.index("--") + 1 :] if self.certain else None
        elif len(fields) > 1 and fields[1][:1] not in "-+":
            self.variables.positional = fields[1:] if self.certain else None
        return True

    def _unset(self, fields: list[str], line: int) -> bool | None:
        for name in fields[1:]:
            if self.certain:
                self.variables.unset(name)
            elif self.variables.get(name) is not None:
                self.unclear(name, line, say("is removed in a conditional, which is not followed"))
        return True

    def _read(self, fields: list[str], line: int) -> bool | None:
        names = [name for name in fields[1:] if name.isidentifier()] or ["REPLY"]
        for name in names:
            self.unclear(name, line, say("is read when the script runs"))
        return None

    def _getopts(self, fields: list[str], line: int) -> bool | None:
        for name in (*fields[2:3], "OPTARG", "OPTIND"):
            self.unclear(name, line, say("is an option of the script's own arguments"))
        return None

    def _let(self, fields: list[str], line: int) -> bool | None:
        return [self.arithmetic(text, line) for text in fields[1:]][-1] if len(fields) > 1 else False

    def _leave(self, fields: list[str], line: int) -> bool | None:
        what, amount = fields[0], fields[1] if len(fields) > 1 else ""
        number = int(amount) if amount.isdigit() else 1
        if what in ("break", "continue"):
            if self.loops == 0:
                return True
            if self.certain:
                raise Leave(what, min(number, self.loops))
            self.doubts += 1  # up to the end of the loop
            return None
        if what == "return" and not self.frames and not self.sources:
            return False  # an error of the script, which goes on
        if what == "return" and not self.certain:
            self.doubts += 1  # up to the end of the function
            return None
        if what == "exit" and self.presumed:
            return None  # the environment has what the script asks for, else it would train nothing
        if self.certain:
            known = amount.isdigit() or not amount
            status = None if not known else number == 0 if amount else self.variables.status
            if what == "exit" and self.output is None:
                self.script.ended = line
            raise Leave(what, 1, status)
        return None

    def _eval(self, fields: list[str], line: int) -> bool | None:
        text = " ".join(fields[1:])
        self.variables.spend(text, line)
        return self.block(parse(text, None, line))

    def _cd(self, fields: list[str], _line: int) -> bool | None:
        rest = fields[2:] if fields[1:2] in (["--"], ["-P"]) else fields[1:]
        target = rest[0] if len(rest) == 1 else ""
        known = bool(target) and not self.variables.unclear_in(target) and target not in ("-", "--") and self.certain
        self.folder = posixpath.join(self.folder or ".", target) if known else None
        return None

    def _pwd(self, _fields: list[str], _line: int) -> bool | None:
        known = self.folder is not None and self.output is not None and Path(self.folder).is_dir()
        self.emit(str(Path(self.folder or "").absolute().resolve()) + "\n" if known else None)
        return True

    def _source(self, fields: list[str], line: int) -> bool | None:
        """Read a file beside the script, in a folder above it, or in the folder that the script has gone to."""
        name = fields[1] if len(fields) > 1 else ""
        path = None if self.variables.unclear_in(name) else self._found(name)
        try:
            text = read_source(str(path))[1] if path is not None and self.sources < 20 else None
            nodes = parse(text, str(path)) if text is not None else None
        except InputError:
            nodes = None
        if nodes is None:
            self.variables.open_world = True
            self.script.warn(
                line, say("the file {name} is not read, nor what it sets", name=self.variables.shown(name))
            )
            return None
        self.sources += 1
        arguments = self.variables.positional
        if len(fields) > 2:
            self.variables.positional = fields[2:]
        try:
            return self.block(nodes)
        except Leave as leave:
            if leave.what != "return":
                raise
            return leave.status
        finally:
            self.sources -= 1
            self.variables.positional = arguments if len(fields) > 2 else self.variables.positional

    def _found(self, name: str) -> Path | None:
        if not name or self.file is None:
            return None
        folder = Path(self.file).parent.absolute()
        folders = [folder, *list(folder.parents)[:3]] if not name.startswith("/") else [Path("/")]
        for each in [Path(self.folder), *folders] if self.folder is not None else folders:
            if (each / name).is_file():
                return each / name
        return None


_BUILTINS: dict[str, Callable[[SimpleCommands, list[str], int], bool | None]] = {
    "shift": SimpleCommands._shift,
    "set": SimpleCommands._set,
    "unset": SimpleCommands._unset,
    "read": SimpleCommands._read,
    "mapfile": SimpleCommands._read,
    "readarray": SimpleCommands._read,
    "getopts": SimpleCommands._getopts,
    "let": SimpleCommands._let,
    "eval": SimpleCommands._eval,
    "break": SimpleCommands._leave,
    "continue": SimpleCommands._leave,
    "return": SimpleCommands._leave,
    "exit": SimpleCommands._leave,
    "source": SimpleCommands._source,
    ".": SimpleCommands._source,
    "cd": SimpleCommands._cd,
    "pushd": SimpleCommands._cd,
    "pwd": SimpleCommands._pwd,
}
