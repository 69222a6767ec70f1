"""What click itself says of options and values that there are not, in the language spoken.

click asks gettext for its words, by a name in each of its modules; here that name asks this program's catalogue.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any

import click
from click import core, exceptions, parser, types

from cpsolver.inputs.language import later, say

if TYPE_CHECKING:
    from cpsolver.inputs.errors import InputError

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


class UsageErrors(click.UsageError):
    """All that is wrong with the options and arguments of a command line."""

    def __init__(self, errors: Sequence[click.UsageError]) -> None:
        super().__init__("\n".join(error.format_message() for error in errors), errors[0].ctx)
        self.errors = tuple(errors)


def every_error(command: click.Command, ctx: click.Context, arguments: list[str]) -> UsageErrors | None:
    """What is wrong with each option and argument by itself, of which click tells the first; None: nothing is.

    Raises UsageError for a line that cannot be taken apart: an option that there is not, or without its value.
    """
    options, _, _ = command.make_parser(ctx).parse_args(args=list(arguments))
    found: list[click.UsageError] = []
    for param in command.get_params(ctx):
        if param.is_eager:
            continue  # --help and --lang have been seen to
        try:
            param.process_value(ctx, param.consume_value(ctx, options)[0])
        except click.MissingParameter as error:
            found.append(click.MissingParameter(error.message, ctx, param, error.param_hint))
        except click.BadParameter as error:
            found.append(click.BadParameter(_with_range(error.message, param.type), ctx, param, error.param_hint))
    return UsageErrors(found) if found else None


def _with_range(message: str, kind: Any) -> str:
    """A number that is none, told with what is allowed; click's own words call it no valid integer range."""
    if not isinstance(kind, click.IntRange | click.FloatRange) or kind.name not in message:
        return message
    plain = "integer" if isinstance(kind, click.IntRange) else "float"
    whole = message.replace(kind.name, plain)
    return whole.rstrip(".。") + say(" (allowed: {allowed})", allowed=_range(kind)) + whole[len(whole.rstrip(".。")) :]


def _range(kind: click.IntRange | click.FloatRange) -> str:
    if kind.min is not None and kind.max is not None:
        return say("{least} to {most}", least=f"{kind.min:,}", most=f"{kind.max:,}")
    return say("more than {number}", number=kind.min) if kind.min_open else say("{number} or more", number=kind.min)


def show(error: click.UsageError) -> None:
    """What is wrong with a command line, on stderr."""
    errors = error.errors if isinstance(error, UsageErrors) else (error,)
    out = StringIO()
    errors[0].show(out)
    click.echo(out.getvalue().replace("Usage:", say("Usage:"), 1), err=True, nl=False)
    for other in errors[1:]:
        click.echo(say("Error: {message}", message=other.format_message()), err=True)


def as_input_error(error: click.UsageError) -> InputError:
    """The same for machines, as all other wrong input is told."""
    from cpsolver.inputs.errors import InputError, Trouble

    errors = error.errors if isinstance(error, UsageErrors) else (error,)
    return InputError(Trouble(_name(each), _alone(each)) for each in errors)


def _alone(error: click.UsageError) -> str:
    """What is wrong, without the option's name where a value is."""
    of_value = isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter)
    return error.message if of_value else error.format_message()


def _name(error: click.UsageError) -> str:
    """The option or argument that is wrong, where it is one."""
    param = getattr(error, "param", None)
    if isinstance(param, click.Option):
        return max(param.opts, key=len)
    return param.human_readable_name if param is not None else getattr(error, "option_name", None) or ""


def asked_language(arguments: list[str]) -> str | None:
    """What --lang says among arguments of a command that are not yet read."""
    for index, word in enumerate(arguments):
        if word.startswith("--lang="):
            return word.removeprefix("--lang=")
        if word == "--lang":
            return next(iter(arguments[index + 1 :]), None)
    return None
