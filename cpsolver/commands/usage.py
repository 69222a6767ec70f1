"""What click itself says of options and values that there are not, in the language spoken.

click asks gettext for its words, by a name in each of its modules; here that name asks this program's catalogue.
"""

from __future__ import annotations

from io import StringIO

import click
from click import core, exceptions, parser, types

from cpsolver.inputs.language import later, say

WORDS = (
    later("Error: {message}"),
    later("Try '{command} {option}' for help."),
    later("Did you mean {possibility}?"),
    later("(Did you mean one of: {possibilities}?)"),
    later("(Possible options: {possibilities})"),
    later("No such option {name!r}."),
    later("No such option: {name}"),
    later("No such command {name!r}."),
    later("Missing command."),
    later("Missing argument"),
    later("Missing option"),
    later("Option {name!r} requires an argument."),
    later("Option {name!r} does not take a value."),
    later("Got unexpected extra argument ({args})"),
    later("Got unexpected extra arguments ({args})"),
    later("Invalid value for {param_hint}: {message}"),
    later("{value!r} is not one of {choices}."),
    later("{value!r} is not a valid {number_type}."),
    later("{value} is not in the range {range}."),
)
"""Of click's messages, since 8.2, those that this program's options can bring about."""


def _plural(one: str, several: str, number: int) -> str:
    return say(one if number == 1 else several)


for _module in (core, exceptions, parser, types):
    vars(_module).update(_=say, ngettext=_plural)


def show(error: click.UsageError) -> None:
    """What is wrong with a command line, on stderr."""
    out = StringIO()
    error.show(out)
    click.echo(out.getvalue().replace("Usage:", say("Usage:"), 1), err=True, nl=False)


def asked_language(arguments: list[str]) -> str | None:
    """What --lang says among arguments of a command that are not yet read."""
    for index, word in enumerate(arguments):
        if word.startswith("--lang="):
            return word.removeprefix("--lang=")
        if word == "--lang":
            return next(iter(arguments[index + 1 :]), None)
    return None
