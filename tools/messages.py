"""The program's messages in Chinese: `python -m tools.messages` brings their catalogue into step with the code.

What the code says is the source: what `say` says, `later` marks, `counted` and `plural` count, what the page's scripts
say, what --help says, the starter's comments, the words of legend.yaml, of default_stacks.yaml, of flags and rules, of
what import refuses, and what stacks and networks are. The catalogue (gettext, kept with Babel) lies in
cpsolver/inputs/locale, and compiled beside it. With --check nothing is written; a test fails on what has no Chinese, or
other fields.
"""

from __future__ import annotations

import ast
import re
import string
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

from babel.messages import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po
from click import Context
from ruamel.yaml import YAML

from cpsolver.commands import COMMANDS
from cpsolver.commands.help import texts
from cpsolver.commands.main import main as main_command
from cpsolver.inputs.language import CATALOGUES, CHINESE, COUNTED, DOMAIN
from cpsolver.plans.dimensions import DIMENSIONS
from cpsolver.profiles.stack import load_stack, stack_names
from cpsolver.rules import RULES
from cpsolver.spec.search import Decisions
from cpsolver.spec.starter import comments
from hw_specs import list_networks
from models_zoo import SPECIAL_LAYERS

ROOT = Path(__file__).resolve().parents[1]
CODE = ROOT / "cpsolver"
COMMAND_LINE = CODE / "commands"
LEGEND = CODE / "doors" / "report" / "legend.yaml"
STACKS = CODE / "profiles" / "default_stacks.yaml"
SCOPE, FORMATS = (CODE / "doors" / "importing" / name for name in ("scope.yaml", "formats.yaml"))
NETWORKS = ROOT / "hw_specs" / "networks"
PO = CATALOGUES / CHINESE / "LC_MESSAGES" / f"{DOMAIN}.po"
MO = PO.with_suffix(".mo")
_SAID, _COUNTED = ("say", "later"), ("counted", "plural")
_TROUBLES = ("inputs", "spec", "problem", "commands", "doors/export", "doors/importing")
"""The rooms whose troubles with an input are in the catalogue; those of other rooms are told in English."""
_IN_SCRIPTS = re.compile(r"\bsay\('([^']*)'")
Found = tuple[str, str | None, Path]
"""A message, its context and the file that it stands in."""


def main() -> None:
    """Bring the catalogue into step and name what lags; with --check only the latter. Exit code 1 if anything does."""
    chinese = catalogue()
    if "--check" not in sys.argv[1:]:
        chinese.update(template(), no_fuzzy_matching=True)
        chinese.obsolete.clear()
        PO.write_bytes(as_text(chinese))
        MO.write_bytes(compiled(catalogue()))
    told = list(lagging())
    print("\n".join(told) or f"{len(chinese)} messages are in step")
    sys.exit(bool(told))


def catalogue() -> Catalog:
    """What there is in Chinese."""
    with PO.open("rb") as file:
        return read_po(file, locale=CHINESE)


def template() -> Catalog:
    """All messages of the code, with the files that they stand in."""
    found = Catalog(locale=CHINESE)
    for message, context, file in (*_of_code(), *_of_scripts(), *_of_data(), *_of_help()):
        found.add(message, context=context, locations=[(file.relative_to(ROOT).as_posix(), 0)])
    return found


def as_text(chinese: Catalog) -> bytes:
    """A catalogue as a file that people edit: sorted, without dates, so that branches merge."""
    chinese.header_comment = "# The program's messages in Chinese; tools/messages.py keeps them in step with the code."
    out = BytesIO()
    write_po(out, chinese, width=0, include_lineno=False, sort_by_file=True)
    lines = out.getvalue().splitlines(keepends=True)
    return b"".join(
        line for line in lines if not re.match(rb'"(POT?-|PO-|Generated|Last-T|Language-T|Report|Project)', line)
    )


def compiled(chinese: Catalog) -> bytes:
    """A catalogue as gettext reads it; the same whenever it is made."""
    chinese.creation_date = chinese.revision_date = datetime(2026, 1, 1, tzinfo=UTC)
    out = BytesIO()
    write_mo(out, chinese)
    return out.getvalue()


def lagging() -> Iterator[str]:
    """A line for each message without Chinese or with other fields, and for what the catalogue has in vain."""
    wanted, chinese = template(), catalogue()
    for message in wanted:
        there = chinese.get(message.id, message.context) if message.id else None
        if message.id and (there is None or not there.string):
            yield f"{message.locations[0][0]}: without Chinese: {message.id}"
        elif there is not None and fields(str(there.string)) != fields(str(message.id)):
            yield f"{message.locations[0][0]}: the Chinese of “{message.id}” has other fields: {there.string}"
    yield from (f"no longer said: {one.id}" for one in chinese if one.id and wanted.get(one.id, one.context) is None)
    if MO.read_bytes() != compiled(chinese):
        yield f"{MO.name} is not {PO.name}, compiled: python -m tools.messages writes it"


def fields(text: str) -> list[tuple[str, str]]:
    """The fields of a message, each with its format."""
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError:  # braces of something else, in a message without fields
        return []
    return sorted({(name, form or "") for _, name, form, _ in parts if name is not None})


def _of_code() -> Iterator[Found]:
    for file in sorted(CODE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = _called(node.func)
                if name in ("Trouble", "file_error", "trouble"):
                    there = any(file.is_relative_to(CODE / room) for room in _TROUBLES)
                    yield from ((text, None, file) for text in _texts(node.args[1:2]) if there)
                elif name == "wrong" or name in _SAID:
                    yield from ((text, None, file) for text in _texts(node.args[:1]))
                elif name in _COUNTED:
                    yield from ((text, COUNTED, file) for text in _texts(node.args[1:2]))


def _called(function: ast.expr) -> str:
    """The name of a function; of methods that of `trouble`, with which readers note what is wrong."""
    if isinstance(function, ast.Attribute) and function.attr == "trouble":
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _texts(arguments: list[ast.expr]) -> Iterator[str]:
    yield from (one.value for one in arguments if isinstance(one, ast.Constant) and isinstance(one.value, str))


def _of_scripts() -> Iterator[Found]:
    for file in sorted(CODE.rglob("*.js")):
        if file.parent.name != "uplot":
            yield from ((text, None, file) for text in _IN_SCRIPTS.findall(file.read_text(encoding="utf-8")))


def _of_help() -> Iterator[Found]:
    """What --help says of the program and of each command."""
    # With the program's settings: a command keeps the help option that it is first asked for.
    ctx = Context(main_command, **main_command.context_settings)
    yield from ((text, None, COMMAND_LINE / "main.py") for text in texts(main_command, ctx))
    for name, (module, line) in COMMANDS.items():
        command = main_command.get_command(ctx, name)
        yield line, None, COMMAND_LINE / "__init__.py"
        for text in () if command is None else texts(command, Context(command, ctx, name)):
            yield text, None, COMMAND_LINE / f"{module}.py"


def _of_data() -> Iterator[Found]:
    """The legend's words and meanings, labels of flags and what pins are, comments of the starter, why a stack is the
    default, what rules ask for in short, what import refuses by name; what stacks, networks and special layers are."""
    words = _yaml(LEGEND)
    yield from ((text, None, LEGEND) for text in dict.fromkeys((*words, *words.values())))
    flags = (one.label for one in DIMENSIONS.values() if one.label)
    pins = (DIMENSIONS[name].about for name in Decisions.model_fields)
    yield from ((text, None, CODE / "plans" / "dimensions.py") for text in (*flags, *pins))
    yield from ((text, None, CODE / "spec" / "starter.py") for text in dict.fromkeys(comments()))
    yield from ((entry["why"], None, STACKS) for entry in _yaml(STACKS).values())
    for name in stack_names():
        yield load_stack(name).title, None, STACKS.parent / "stacks" / f"{name}.yaml"
    for network in list_networks():
        yield network.about, None, NETWORKS / f"{network.name}.yaml"
    yield from ((words, None, ROOT / "models_zoo" / "schema.py") for words in SPECIAL_LAYERS.values())
    yield from ((rule.words, None, CODE / "rules" / "base.py") for rule in RULES.values())
    sections = ("refused", "plan", "beside", "scope", "elsewhere")
    refused = [one.get(section, {}) for one in _yaml(FORMATS).values() for section in sections]
    for file, parts in ((SCOPE, [*_yaml(SCOPE).values()]), (FORMATS, refused)):
        yield from ((text, None, file) for text in dict.fromkeys(text for part in parts for text in part.values()))


def _yaml(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load(file.read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    main()
