"""Reads a script as bash would run it: conditionals, loops and functions, as far as the text alone decides them.

Nothing is run. Where a condition is not decided, none of its branches is followed: what they set is unclear from there
on, what they add is left out with a warning, and the commands in them are not certain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from cpsolver.doors.importing.arguments import table
from cpsolver.doors.importing.conditions import asked_empty, holds_condition, negated
from cpsolver.doors.importing.grammar import (
    Block,
    Case,
    Chain,
    Condition,
    Counting,
    For,
    Function,
    Group,
    If,
    Node,
    Pipeline,
    Simple,
    While,
    parse,
)
from cpsolver.doors.importing.lexer import Word, assignment_head
from cpsolver.doors.importing.patterns import glob_regex
from cpsolver.doors.importing.queried import counts_devices
from cpsolver.doors.importing.simple import Leave, Script, ScriptCommand, SimpleCommands
from cpsolver.doors.importing.variables import ShellVariables
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import say

__all__ = ["Script", "ScriptCommand", "read_script", "read_text_commands"]
_ASKS = (
    "grep",
    "which",
    "type",
    "ls",
    "diff",
    "cmp",
    "pgrep",
    "hash",
    "nvidia-smi",
    "[",
    "[[",
    "test",
    "((",
    "command",
)
"""Commands whose failure is an answer: what `&&` joins to them may not run. Others are taken to succeed there."""
_ROUNDS = 256
"""Rounds of a loop that are followed."""
_STEPS = 20_000
"""Commands that are followed in all, so that loops in loops come to an end."""


_GPUS = ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE")


def read_script(
    text: str,
    file: str | None,
    given: dict[str, str],
    arguments: Sequence[str] | None = None,
    gpus_per_node: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Script:
    """Read a script. `given` are values of variables that the user fixed: what the script sets them to does not count.

    `arguments`: the words that the script is started with; None: not known. `gpus_per_node`: what the user says that a
    node has; None: as the script asks its scheduler for. `environment`: what the script that starts it exports. Raises
    InputError for text that is no shell script (quotes or constructs that never close), and for scripts that never end.
    """
    positional = None if arguments is None else list(arguments)
    variables = ShellVariables(dict(given), positional=positional, script=file)
    if file is not None:
        variables.arrays["BASH_SOURCE"] = [file]
    scheduled = {**(environment or {}), **batch_values(text)}
    if gpus_per_node is not None:
        scheduled |= dict.fromkeys(_GPUS, str(gpus_per_node))
    for name, value in scheduled.items():
        variables.set(name, value)
    script = Script(variables)
    try:
        _ScriptReader(script, file).script_text(text)
    except RecursionError:
        raise InputError(Trouble("", "calls itself, or is nested too deeply, to be followed", file=file)) from None
    for line, fault in variables.faults.items():
        script.warn(
            line,
            say("arithmetic that is not followed ({fault}): bash may leave out the commands around it", fault=fault),
        )
    return script


def read_text_commands(script: Script, text: str, line: int) -> list[ScriptCommand]:
    """The commands of a text that a command of the script hands to another shell, in the script's variables."""
    inner = Script(script.variables)
    saved, asked = script.variables.saved(), (script.variables.substitute, script.variables.certain)
    try:
        _ScriptReader(inner, None).script_text(text, line)
    except InputError:
        return []  # a text of another kind
    finally:
        script.variables.restore(saved)
        script.variables.substitute, script.variables.certain = asked
    return inner.commands


def batch_values(text: str) -> dict[str, str]:
    """Variables that Slurm sets by the #SBATCH lines of a script, and Grid Engine by `#$` lines that ask for nodes."""
    values: dict[str, str] = {}
    for option, names in (
        (r"(?:--nodes[=\s]|-N)", ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")),
        (r"--ntasks-per-node[=\s]", ("SLURM_NTASKS_PER_NODE",)),
        (r"(?:--gpus-per-node=|--gres=gpu:(?:\w+:)?)", _GPUS),
        (r"(?:--ntasks[=\s]|-n)", ("SLURM_NTASKS", "SLURM_NPROCS")),
    ):
        if found := re.findall(rf"^#SBATCH\s+{option}\s*(\d+)\s*(?:#.*)?$", text, re.MULTILINE):
            values |= dict.fromkeys(names, found[-1])
    nodes = "|".join(sorted(table()["whole_nodes"]))
    if whole := re.findall(rf"^#\$[ \t]+-l[ \t]+({nodes})=(\d+)[ \t]*$", text, re.MULTILINE):
        kind, values["NHOSTS"] = whole[-1]
        values |= {"SGE_RESOURCE_TYPE": kind} if kind.startswith("rt_") else {}  # ABCI's
    return values


class _ScriptReader(SimpleCommands):
    """Goes through the nodes of a script."""

    def __init__(self, script: Script, file: str | None) -> None:
        super().__init__(script, file)
        self.called: set[str] = set()
        self.variables.substitute, self.variables.certain = self._substituted, lambda: self.certain

    def script_text(self, text: str, line: int = 1) -> None:
        """Read a whole text; functions that nothing calls are looked through for commands."""
        with suppress(Leave):
            self.block(parse(text, self.file, line))
        warnings = list(self.script.warnings)
        saved = self.variables.saved()
        for name, (body, _) in list(self.functions.items()):
            if name not in self.called:
                self._doubtful((body,))
        self.script.warnings[:] = warnings
        self.variables.restore(saved)

    def block(self, nodes: Block) -> bool | None:
        status: bool | None = True
        for node in nodes:
            status = self.node(node)
            self.variables.status = status if self.certain else None
        return status

    def node(self, node: Node) -> bool | None:
        """Run one node; whether it succeeds, None where that is not known."""
        self.steps += 1
        if self.steps > _STEPS:
            raise InputError(Trouble("", "runs too long to be followed: loops in loops", file=self.file))
        match node:
            case Simple():
                return self.simple(node)
            case Condition():
                with self.variables.question():
                    return holds_condition(node, self.variables)
            case Pipeline():
                return self._pipeline(node)
            case Chain():
                return self._chain(node)
            case If():
                return self._if(node)
            case Case():
                return self._case(node)
            case For():
                return self._for(node)
            case Counting():
                return self._counting(node)
            case While():
                return self._while(node)
            case Group():
                return self._group(node)
            case Function():
                self.functions[node.name] = (node.body, self.certain)
                return True

    def _doubtful(self, nodes: Block) -> None:
        """Go through commands of which it is not known whether they run."""
        before = self.doubts
        self.doubts += 1
        try:
            self.block(nodes)
        finally:
            self.doubts = before

    def _pipeline(self, node: Pipeline) -> bool | None:
        if len(node.parts) == 1:
            return negated(self.node(node.parts[0]))
        outer, piped = self.output, self.piped
        status: bool | None = None
        try:
            for place, part in enumerate(node.parts):
                self.output = outer if place == len(node.parts) - 1 else []
                status = self._subshell((part,))
                if self.output is not outer and self.output is not None:
                    self.piped = _joined(self.output)
        finally:
            self.output, self.piped = outer, piped
        return negated(status) if node.negated else status

    def _subshell(self, nodes: Block) -> bool | None:
        """Run commands whose changes of variables stay their own."""
        saved, folder, doubts = self.variables.saved(), self.folder, self.doubts
        try:
            return self.block(nodes)
        except Leave as leave:
            self.script.ended = None if leave.what == "exit" else self.script.ended
            return leave.status
        finally:
            self.variables.restore(saved)
            self.folder, self.doubts = folder, doubts

    def _chain(self, node: Chain) -> bool | None:
        if node.background:
            self._subshell((Chain(node.first, node.rest),))
            return True
        presumed, absent = self.presumed, len(self.variables.absent)
        try:
            return self._chained(node, absent)
        finally:
            self.presumed = presumed

    def _chained(self, node: Chain, absent: int) -> bool | None:
        """The parts of a chain, as far as they run; `absent`: variables taken as not set before it."""
        status = self.node(node.first)
        last = node.first
        for operator, part in node.rest:
            self.presumed |= len(self.variables.absent) > absent
            if status is None and operator == "&&" and not _asks(last):
                status = self.node(part)
            elif status is None:
                self._doubtful((part,))
                continue
            elif status == (operator == "&&"):
                status = self.node(part)
            else:
                continue
            last = part
        return status

    def _if(self, node: If) -> bool | None:
        doubts, presumed = self.doubts, self.presumed
        decided = True
        if (name := self._given_default(node)) is not None:
            status = self.block(node.branches[0][1])
            self.variables.defaults.setdefault(name, self.variables.get(name) or "")
            return status
        try:
            for condition, body in node.branches:
                absent = len(self.variables.absent)
                holds = self.block(condition)
                self.presumed |= len(self.variables.absent) > absent
                if holds is False:
                    continue
                if holds and decided:
                    return self.block(body)
                self._doubtful_branch(body)
                if holds:
                    return None
                decided = False
            if decided:
                return self.block(node.otherwise)
            self._doubtful_branch(node.otherwise)
            return None
        finally:
            self.doubts, self.presumed = max(self.doubts, doubts), presumed

    def _given_default(self, node: If) -> str | None:
        """The variable that a conditional sets where nothing else has, as `${NAME:-default}` does; else None."""
        (condition, body), *others = node.branches
        name = None if others or node.otherwise or not self.certain else asked_empty(condition)
        if name is None or self.variables.get(name) is not None or not _sets(body, name):
            return None
        return name

    def _doubtful_branch(self, nodes: Block) -> None:
        """Go through a branch of a conditional that is not decided; a `break` or `return` in it leaves doubt behind."""
        before = self.doubts
        self.doubts += 1
        self.block(nodes)
        self.doubts = before + (self.doubts > before + 1)

    def _case(self, node: Case) -> bool | None:
        with self.variables.question():
            subject = self.variables.text(node.word)
        decided = not self.variables.unclear_in(subject)
        falls = False
        for patterns, body, ending in node.arms:
            fits = True if falls else self._fits(subject, patterns, decided)
            if fits is False:
                continue
            if not fits or not decided:
                self._doubtful_branch(body)
                decided = False
                continue
            status = self.block(body)
            falls = ending == ";&"
            if ending not in (";&", ";;&"):
                return status
        return None

    def _fits(self, subject: str, patterns: Sequence[Word], decided: bool) -> bool | None:
        """Whether a text fits one of the patterns."""
        answer: bool | None = False
        for word in patterns:
            pieces = self.variables.pieces(word)
            pattern = glob_regex(pieces)
            if pieces == [("*", False)]:
                return True
            if not decided or pattern is None or any(self.variables.unclear_in(text) for text, _ in pieces):
                answer = None
            elif pattern.fullmatch(subject):
                return True if answer is False else None
        return answer

    # -- loops

    def _round(self, body: Block) -> bool:
        """One round of a loop; whether another one may follow."""
        self.loops += 1
        try:
            self.block(body)
        except Leave as leave:
            if leave.what not in ("break", "continue"):
                raise
            if leave.amount > 1:
                raise Leave(leave.what, leave.amount - 1) from None
            return leave.what == "continue"
        finally:
            self.loops -= 1
        return True

    def _for(self, node: For) -> bool | None:
        unknown = node.words is None and self.variables.positional is None
        values = ["$@"] if unknown else list(self.variables.positional or ()) if node.words is None else []
        for word in node.words or ():
            values += self.variables.fields(word)
        doubts = self.doubts
        unclear = unknown or not node.known or any(self.variables.unclear_in(value) for value in values)
        if unclear or len(values) > _ROUNDS or not self.certain:
            self.unclear(node.name, node.line, say("is the variable of a loop"))
            self._doubtful_round(node.body)
            return None
        try:
            for value in values:
                if self.certain:
                    self.variables.set(node.name, value)
                else:
                    self.unclear(node.name, node.line, say("is the variable of a loop"))
                if not self._round(node.body):
                    break
        finally:
            self.doubts = doubts
        return None

    def _counting(self, node: Counting) -> bool | None:
        if len(node.parts) != 3:
            self._doubtful_round(node.body)
            return None
        start, condition, step = node.parts
        if start.strip():
            self.arithmetic(start, node.line)

        def holds() -> bool | None:
            return self.arithmetic(condition, node.line) if condition.strip() else True

        def next_round() -> None:
            if step.strip():
                self.arithmetic(step, node.line)

        return self._looped(holds, node.body, next_round)

    def _while(self, node: While) -> bool | None:
        def holds() -> bool | None:
            status = self.block(node.condition)
            return negated(status) if node.until else status

        return self._looped(holds, node.body, lambda: None)

    def _looped(self, holds: Callable[[], bool | None], body: Block, step: Callable[[], None]) -> bool | None:
        """Rounds while a condition holds; from where it is not decided, the body is gone through once in doubt."""
        doubts = self.doubts
        try:
            for _ in range(_ROUNDS):
                again = holds()
                if again is False:
                    return None
                if again is None or not self.certain:
                    break
                if not self._round(body):
                    return None
                step()
        finally:
            self.doubts = doubts
        self._doubtful_round(body, step)
        return None

    def _doubtful_round(self, body: Block, step: Callable[[], None] = lambda: None) -> None:
        """Go once through a loop of which it is not known how often it runs."""
        doubts = self.doubts
        self.doubts, self.loops = self.doubts + 1, self.loops + 1
        try:
            self.block(body)
            step()
        finally:
            self.doubts, self.loops = doubts, self.loops - 1

    # -- groups, functions, output

    def _group(self, node: Group) -> bool | None:
        before = None if self.output is None else len(self.output)
        status = self._subshell(node.body) if node.subshell else self.block(node.body)
        if node.redirected and self.output is not None:
            self.output[before:] = [None]
        return status

    def call(self, name: str, words: Sequence[str]) -> bool | None:
        body, known = self.functions[name]
        self.called.add(name)
        outer, doubts = self.variables.positional, self.doubts
        self.variables.positional = list(words)
        self.frames.append({})
        self.doubts += not known
        try:
            return self.node(body)
        except Leave as leave:
            if leave.what != "return":
                raise
            return leave.status
        finally:
            self.doubts = doubts
            self.variables.positional = outer
            self._bring_back(self.frames.pop())

    def _bring_back(self, frame: dict[str, tuple[str | None, list[str] | None]]) -> None:
        """The variables that a function had for itself as they were before it."""
        for name, (scalar, array) in frame.items():
            self.variables.unset(name)
            if scalar is not None:
                self.variables.scalars[name] = scalar
            if array is not None:
                self.variables.arrays[name] = array

    def _substituted(self, text: str, line: int) -> str | None:
        """What the commands of `$(text)` print, without the line ends behind it; None where that is not known."""
        if counts_devices(text):
            return self.variables.get(_GPUS[-1])
        commands, warnings = len(self.script.commands), list(self.script.warnings)
        outer, asking = self.output, self.variables.asking
        self.output = []
        self.variables.asking = False
        try:
            self._subshell(parse(text, None, line))
            printed = _joined(self.output)
        except InputError:
            printed = None
        finally:
            self.output, self.variables.asking = outer, asking
            del self.script.commands[commands:]
            self.script.warnings[:] = warnings
        return None if printed is None else printed.rstrip("\n")


def _joined(texts: Sequence[str | None]) -> str | None:
    known = [text for text in texts if text is not None]
    return "".join(known) if len(known) == len(texts) else None


def _sets(nodes: Block, name: str) -> bool:
    """Whether one of the commands is an assignment to the variable."""
    words = (word for node in nodes if isinstance(node, Simple) for word in node.words)
    return any((head := assignment_head(word)) is not None and head.group(1) == name for word in words)


def _asks(node: Node) -> bool:
    """Whether the failure of a command is an answer."""
    if isinstance(node, Pipeline):
        return _asks(node.parts[-1])
    if isinstance(node, Simple):
        return bool(node.words) and (node.words[0].plain or node.words[0].parts[0].text) in _ASKS
    return not isinstance(node, Group)
