"""What functions of a Python file make of a configuration, read as text: nothing of it runs.

Followed are assignments, calls of functions that the file or the modules beside it define, and what constants decide.
Whatever else a value comes from is UNCLEAR, and so is all that it decides.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpsolver.doors.importing.recipe_values import (
    FUNCTIONS,
    LONGEST,
    METHODS,
    TYPES,
    UNCLEAR,
    Configured,
    applied,
    from_library,
    item,
    tried,
    truth,
)
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import say

_DEEPEST = 30
"""Calls inside calls that are followed."""
_MOST = 1_000_000
"""Expressions that are followed: a text that asks for more is refused."""


@dataclass
class Module:
    """A file with its functions, constants and imports by name."""

    path: Path
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    values: dict[str, ast.expr] = field(default_factory=dict)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class Recipes:
    """Modules of a package, read where they are asked for. `root`: the folder that the package stands in.

    gives_its_argument: functions that are not followed, and taken to give their first argument; kept: to give an
    object of their own with their arguments.
    """

    def __init__(self, root: Path | None, gives_its_argument: Collection[str] = (), kept: Collection[str] = ()) -> None:
        self.gives_its_argument, self.kept = gives_its_argument, kept
        self._root, self._modules, self._depth, self._followed = root, dict[Path, Module](), 0, 0

    def read(self, path: Path, text: str | None = None) -> Module:
        """A file's names. Raises InputError for one that is no Python."""
        if path not in self._modules:
            try:
                body = ast.parse(path.read_text(encoding="utf-8") if text is None else text).body
            except (OSError, ValueError, SyntaxError, RecursionError, MemoryError) as error:
                told = say("is not Python that can be read: {error}", error=error)
                raise InputError(Trouble("", told, file=str(path))) from None
            self._modules[path] = module = Module(path)
            for node in _statements(body):
                _note(node, module)
        return self._modules[path]

    def called(self, module: Module, name: str, named: Mapping[str, Any] | None = None) -> Any:
        """What a function of a module gives, with arguments by name. Raises InputError where following has no end."""
        try:
            found = self.function(module, module.functions[name], (), named or {})
            if isinstance(found, Configured):
                found.plain()  # no part of it holds the whole
            return found
        except RecursionError:
            raise self.endless(module) from None

    def constant(self, module: Module, name: str) -> Any:
        """What a name of a module stands for; UNCLEAR for one that it has not."""
        value = module.values.get(name)
        return UNCLEAR if value is None else _Steps(self, module, {}).value(value)

    def class_named(self, name: str, module: Module | None = None) -> tuple[Module, ast.ClassDef] | None:
        """Where a class is defined, by the imports of a module, or of any that was read; None: not in the package."""
        for start in [module] if module is not None else list(self._modules.values()):
            at: Module | None = start
            wanted = name
            for _ in range(_DEEPEST):
                if at is None or wanted in at.classes:
                    break
                target, wanted = at.imported.get(wanted, ("", ""))
                path = self.path(target) if wanted else None
                at = None if path is None else self.read(path)
            if at is not None and wanted in at.classes:
                return at, at.classes[wanted]
        return None

    def value(self, module: Module, node: ast.expr) -> Any:
        """What an expression of a module gives."""
        return _Steps(self, module, {}).value(node)

    def count(self, module: Module) -> None:
        """One more expression is followed."""
        self._followed += 1
        if self._followed > _MOST:
            raise self.endless(module)

    def endless(self, module: Module) -> InputError:
        """What is wrong with a text that following does not come to an end of."""
        return InputError(Trouble("", say("is too long a text to follow"), file=str(module.path)))

    def function(self, module: Module, node: ast.FunctionDef, given: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """What a function gives on arguments by place and by name."""
        if self._depth >= _DEEPEST:
            return UNCLEAR
        frame = self.frame(module, node, given, named)
        self._depth += 1
        try:
            frame.run(node.body)
        except _Return as done:
            return UNCLEAR if frame.may_have_ended else done.value
        finally:
            self._depth -= 1
        return UNCLEAR if frame.may_have_ended else None

    def forgotten(self, module: Module, node: ast.FunctionDef, given: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Whatever a function may set of its arguments is not clear from here on."""
        if self._depth < _DEEPEST:
            self._depth += 1
            self.frame(module, node, given, named).forget(node.body)
            self._depth -= 1

    def frame(self, module: Module, node: ast.FunctionDef, given: Sequence[Any], named: Mapping[str, Any]) -> _Steps:
        """A function's names before its first statement."""
        names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
        own: dict[str, Any] = dict.fromkeys([*names, *(argument.arg for argument in node.args.kwonlyargs)], UNCLEAR)
        frame = _Steps(self, module, own)
        defaults = zip(reversed(names), reversed(node.args.defaults), strict=False)
        own |= {name: frame.value(default) for name, default in defaults}
        only = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        own |= {argument.arg: frame.value(default) for argument, default in only if default is not None}
        own |= dict(zip(names, given, strict=False)) | {name: value for name, value in named.items() if name in own}
        if node.args.kwarg is not None:
            own[node.args.kwarg.arg] = {name: value for name, value in named.items() if name not in own}
        return frame

    def found(self, module: Module, name: str) -> tuple[Module, str] | None:
        """Where a name is defined, through imports; None: outside of what can be read."""
        for _ in range(_DEEPEST):
            if name in module.functions or name in module.values:
                return module, name
            if name not in module.imported:
                return None
            target, name = module.imported[name]
            path = self.path(target)
            if path is None:
                return None
            module = self.read(path)
        return None

    def path(self, dotted: str) -> Path | None:
        """The file of a module of the package; None: it is not there."""
        if self._root is None:
            return None
        place = self._root.joinpath(*dotted.split("."))
        found = (place.with_suffix(".py"), place / "__init__.py")
        return next((path for path in found if path.is_file()), None)


class _Steps:
    """A function at work: its names, `own`, and the module around it.

    may_have_ended: what is not clear decides whether it returned before where it is.
    """

    def __init__(self, recipes: Recipes, module: Module, own: dict[str, Any]) -> None:
        self._recipes, self._module, self._own = recipes, module, own
        self.may_have_ended = False

    def run(self, body: Sequence[ast.stmt]) -> None:
        """Follow statements; raises _Return."""
        for node in body:
            if self.may_have_ended:
                self.forget([node])
            else:
                self._step(node)

    def _step(self, node: ast.stmt) -> None:
        match node:
            case ast.Return(value=value):
                raise _Return(None if value is None else self.value(value))
            case ast.Assign(targets=targets, value=value):
                found = self.value(value)
                for target in targets:
                    self._assign(target, found)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                self._assign(target, self.value(value))
            case ast.Expr(value=value):
                self.value(value)
            case ast.Import() | ast.ImportFrom():
                _note(node, self._module)
            case ast.Raise():
                raise _Return(UNCLEAR)
            case ast.FunctionDef() | ast.ClassDef() | ast.Assert() | ast.Pass():
                pass
            case _:
                self._block(node)

    def _block(self, node: ast.stmt) -> None:
        """A statement with statements inside; one of another kind is not followed."""
        match node:
            case ast.If(test=test, body=body, orelse=other):
                chosen = truth(self.value(test))
                if chosen is None:
                    self.forget([*body, *other])
                else:
                    self.run(body if chosen else other)
            case ast.For():
                self._for(node)
            case ast.Try(body=body, orelse=other, finalbody=last):
                self.run([*body, *other, *last])
            case ast.With(body=body):
                self.run(body)
            case _:
                self.forget([node])

    def _for(self, node: ast.For) -> None:
        many = self.value(node.iter)
        leaves = any(isinstance(inner, ast.Break | ast.Continue) for inner in ast.walk(node))
        if leaves or not isinstance(many, list | tuple):
            self.forget([node])
            return
        for each in many:
            self._assign(node.target, each)
            self.run(node.body)

    def forget(self, nodes: Sequence[ast.stmt]) -> None:
        """Whatever these may set, or return, is not clear from here on."""
        for node in nodes:
            for inner in ast.walk(node):
                self._recipes.count(self._module)
                if isinstance(inner, ast.Return):
                    self.may_have_ended = True
                elif isinstance(inner, ast.Call):
                    self._forget_call(inner)
                elif isinstance(inner, ast.expr) and isinstance(getattr(inner, "ctx", None), ast.Store):
                    self._assign(inner, UNCLEAR)

    def _forget_call(self, node: ast.Call) -> None:
        given, named = self._arguments(node)
        match node.func:
            case ast.Name(id="setattr") if given and isinstance(given[0], Configured):
                name = given[1] if len(given) > 1 else UNCLEAR
                given[0].fields |= dict.fromkeys([name] if isinstance(name, str) else given[0].fields, UNCLEAR)
            case ast.Name(id=name):
                found = self._recipes.found(self._module, name)
                if found is not None and found[1] in found[0].functions:
                    self._recipes.forgotten(found[0], found[0].functions[found[1]], given, named)
            case ast.Attribute(value=owner) if isinstance(held := self.value(owner), list):
                held.append(UNCLEAR)

    def _assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name(id=name):
                self._own[name] = value
            case ast.Attribute(value=owner, attr=name):
                held = self.value(owner)
                if isinstance(held, Configured):
                    held.fields[name] = value
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                each = list(value) if isinstance(value, tuple | list) and len(value) == len(parts) else None
                for at, part in enumerate(parts):
                    self._assign(part, UNCLEAR if each is None else each[at])
            case ast.Subscript(value=owner, slice=key):
                held, at = self.value(owner), self.value(key)
                if isinstance(held, dict) and isinstance(at, str | int):
                    held[at] = value
                elif isinstance(held, list):
                    held.append(UNCLEAR)

    def value(self, node: ast.expr) -> Any:
        """What an expression gives; UNCLEAR for whatever is not followed."""
        self._recipes.count(self._module)
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self._named(name)
            case ast.Attribute(value=owner, attr=name):
                return self._field(self.value(owner), name)
            case ast.List(elts=parts):
                return [self.value(part) for part in parts]
            case ast.Tuple(elts=parts):
                return tuple(self.value(part) for part in parts)
            case ast.Dict(keys=keys, values=values):
                return self._dictionary(keys, values)
            case ast.Call():
                return self._call(node)
        return self._worked_out(node)

    def _worked_out(self, node: ast.expr) -> Any:
        """What operators, choices and places give."""
        match node:
            case ast.IfExp(test=test, body=body, orelse=other):
                chosen = truth(self.value(test))
                return UNCLEAR if chosen is None else self.value(body if chosen else other)
            case ast.BoolOp(op=op, values=values):
                return self._joined(isinstance(op, ast.And), values)
            case ast.BinOp(left=left, op=op, right=right) | ast.Compare(left=left, ops=[op], comparators=[right]):
                return applied(op, self.value(left), self.value(right))
            case ast.UnaryOp(op=op, operand=operand):
                return applied(op, self.value(operand))
            case ast.ListComp(elt=each, generators=[ast.comprehension(target=target, iter=many, ifs=[])]):
                return self._each(each, target, self.value(many))
            case ast.Subscript(value=owner, slice=key):
                return item(self.value(owner), self.value(key))
        return UNCLEAR

    def _each(self, each: ast.expr, target: ast.expr, many: Any) -> Any:
        """What an expression gives for each of a list."""
        if not isinstance(many, list | tuple):
            return UNCLEAR
        found = []
        for one in many:
            self._assign(target, one)
            found.append(self.value(each))
        return found

    def _named(self, name: str) -> Any:
        if name in self._own:
            return self._own[name]
        found = self._recipes.found(self._module, name)
        if found is None or found[1] not in found[0].values:
            return Configured(name) if name in self._module.imported else UNCLEAR
        module, inner = found
        return _Steps(self._recipes, module, {}).value(module.values[inner])

    def _field(self, owner: Any, name: str) -> Any:
        if isinstance(owner, str):  # a module's name: texts have no fields
            return name
        if not isinstance(owner, Configured):
            return UNCLEAR
        if self._module.imported.get(owner.kind, ("", "a name"))[1] == "" and not owner.fields:
            return name  # of a module: a type, a function
        return owner.fields.get(name, UNCLEAR)

    def _dictionary(self, keys: Sequence[ast.expr | None], values: Sequence[ast.expr]) -> Any:
        found: dict[Any, Any] = {}
        for key, value in zip(keys, values, strict=True):
            inner = self.value(value)
            if key is None:
                if not isinstance(inner, dict):
                    return UNCLEAR
                found |= inner
            elif isinstance(at := self.value(key), str | int | tuple):
                found[at] = inner
        return found

    def _joined(self, every: bool, values: Sequence[ast.expr]) -> Any:
        found: Any = UNCLEAR
        for value in values:
            found = self.value(value)
            chosen = truth(found)
            if chosen is None:
                return UNCLEAR
            if chosen != every:
                return found
        return found

    def _arguments(self, node: ast.Call) -> tuple[list[Any], dict[str, Any]]:
        given = [self.value(argument) for argument in node.args if not isinstance(argument, ast.Starred)]
        named: dict[str, Any] = {}
        for each in node.keywords:
            held = self.value(each.value)
            if each.arg is not None:
                named[each.arg] = held
            elif isinstance(held, dict):
                named |= {str(name): value for name, value in held.items()}
        return given, named

    def _call(self, node: ast.Call) -> Any:
        given, named = self._arguments(node)
        match node.func:
            case ast.Name(id="getattr") if len(given) > 1 and isinstance(given[1], str):
                found = self._field(given[0], given[1])
                missing = isinstance(given[0], Configured) and given[1] not in given[0].fields
                return given[2] if missing and len(given) > 2 else found
            case ast.Name(id="setattr") if len(given) == 3 and isinstance(given[0], Configured):
                self._forget_call(node)
                if isinstance(given[1], str):
                    given[0].fields[given[1]] = given[2]
                return None
            case ast.Name(id="hasattr") if len(given) == 2:
                known = isinstance(given[0], Configured) and given[1] in given[0].fields
                return True if known else UNCLEAR
            case ast.Name(id="isinstance") if len(given) == 2:
                named_type = node.args[1].id if isinstance(node.args[1], ast.Name) else ""
                known = given[0] is not UNCLEAR and named_type in TYPES
                return isinstance(given[0], TYPES[named_type]) if known else UNCLEAR
            case ast.Name(id=name):
                return self._called(name, given, named)
            case ast.Attribute(value=ast.Name(id=owner), attr="Config" | "Partial") if self._is_run(owner):
                first = {"": given[1]} if len(given) > 1 and isinstance(given[1], str) else {}
                return Configured(_class_name(node, given), first | named)
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if inner := self._of_module(owner, name):
                return self._recipes.function(*inner, given, named)
            case ast.Attribute(value=owner, attr=name):
                return self._method(self.value(owner), name, given, named)
        return UNCLEAR

    def _of_module(self, owner: str, name: str) -> tuple[Module, ast.FunctionDef] | None:
        """A function of a module of the package that is imported by name."""
        source, inner = self._module.imported.get(owner, ("", "")) if owner not in self._own else ("", "")
        path = self._recipes.path(f"{source}.{inner}" if inner else source) if source else None
        module = None if path is None else self._recipes.read(path)
        return None if module is None or name not in module.functions else (module, module.functions[name])

    def _is_run(self, name: str) -> bool:
        """Whether a name is of nemo_run, whose Config and Partial hold a class or a function with its arguments."""
        return self._module.imported.get(name) == ("nemo_run", "")

    def _called(self, name: str, given: list[Any], named: dict[str, Any]) -> Any:
        found = self._recipes.found(self._module, name)
        if name in self._recipes.gives_its_argument and given:
            return given[0]
        if name in self._recipes.kept:
            return Configured(name, {**({"": given[0]} if given else {}), **named})
        if found is not None and found[1] in found[0].functions:
            return self._recipes.function(found[0], found[0].functions[found[1]], given, named)
        if name in self._module.imported:
            return from_library(name, given, named)
        if name in FUNCTIONS:
            return tried(FUNCTIONS[name], given)
        if name == "dict":
            return {**given[0], **named} if given and isinstance(given[0], dict) else UNCLEAR if given else named
        return UNCLEAR if name[:1].islower() else Configured(name, named)

    def _method(self, owner: Any, name: str, given: list[Any], named: dict[str, Any]) -> Any:
        if isinstance(owner, Configured) and owner.kind in ("copy", "dataclasses"):
            return from_library(name, given, named)
        if isinstance(owner, Configured):  # of a class: what its methods make has what they are given
            first = {"": given[0]} if given and isinstance(given[0], str) else {}
            kind = owner.kind if name == "Config" else name
            return Configured(kind, {**owner.fields, **first, **named})
        if name == "update" and isinstance(owner, dict):
            owner |= named
        if name not in METHODS.get(type(owner), ()) or len(owner) > LONGEST:
            return UNCLEAR
        if UNCLEAR in given and not isinstance(owner, list):
            return UNCLEAR
        found = tried(getattr(owner, name), given)
        return list(found) if name in ("items", "keys", "values") else found


def _class_name(node: ast.Call, given: Sequence[Any]) -> str:
    """The name of the class or the function that a call has in the first place."""
    match node.args:
        case [ast.Name(id=name), *_] if not (given and isinstance(given[0], Configured)):
            return name
        case [ast.Attribute(attr=name), *_]:
            return name
    return given[0].kind if given and isinstance(given[0], Configured) else ""


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """A module's statements, those that `try` or `if` holds too."""
    for node in body:
        yield node
        if isinstance(node, ast.Try | ast.If):
            yield from _statements(node.body)


def _note(node: ast.stmt, module: Module) -> None:
    """Keep what a statement of a module defines."""
    match node:
        case ast.FunctionDef(name=name):
            module.functions[name] = node
        case ast.ClassDef(name=name):
            module.classes[name] = node
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            module.values[name] = value
        case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
            module.values[name] = value
        case ast.ImportFrom(module=source, names=names, level=0) if source is not None:
            module.imported |= {each.asname or each.name: (source, each.name) for each in names}
        case ast.Import(names=names):
            module.imported |= {each.asname or each.name: (each.name, "") for each in names}
