"""What `--help` says of a command, in the user's language."""

from __future__ import annotations

import os
import re
from copy import copy
from inspect import cleandoc
from unicodedata import east_asian_width

import click

from cpsolver.commands.usage import every_error
from cpsolver.inputs.language import ENGLISH, of_locale, say, speaking

LANGUAGE = "cpsolver.language"
"""Where a call keeps the language that it was asked to speak."""
_TITLE = re.compile("^(?:Usage|Options|Commands):")
_FILLER = "\ue000"
"""Stands beside a letter that is two columns wide while lines are broken: click counts letters."""


class SpokenCommand(click.Command):
    """A command whose help is in the language asked for, or in that of the locale, and that tells all wrong options."""

    def get_help(self, ctx: click.Context) -> str:
        """As click asks for it."""
        return help_of(self, ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click asks for it."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as first:
            raise every_error(self, ctx, given) or first from None


def help_of(command: click.Command, ctx: click.Context) -> str:
    """The help of a command as text."""
    language = ctx.find_root().meta.get(LANGUAGE) or of_locale(os.environ)
    formatter = ctx.make_formatter()
    formatter.width -= language != ENGLISH  # a line may end between a letter and its filler
    with speaking(language):
        (command if language == ENGLISH else _said(command, ctx)).format_help(ctx, formatter)
        titles = {"Usage:": say("Usage:"), "Options:": say("Options:"), "Commands:": say("Commands:")}
    lines = formatter.getvalue().rstrip("\n").split("\n")
    written = [line.replace(_FILLER, "") for line in lines if _FILLER not in line or line.strip(f" {_FILLER}")]
    return "\n".join(_TITLE.sub(lambda found: titles[found[0]], line) for line in written)


def texts(command: click.Command, ctx: click.Context) -> list[str]:
    """All that the help of a command says in words, as the catalogue of messages has it."""
    options = (getattr(param, "help", None) for param in command.get_params(ctx))
    return [cleandoc(text) for text in (command.help, command.epilog, *options) if text]


def wide(text: str) -> str:
    """The text with as many letters as it has columns, for what click breaks into lines."""
    return "".join(letter + _FILLER * (east_asian_width(letter) in "WF") for letter in text)


def _said(command: click.Command, ctx: click.Context) -> click.Command:
    """A copy of the command in the language spoken."""

    def said(text: str | None) -> str | None:
        return text and wide(say(cleandoc(text)))

    own = copy(command)
    own.help, own.epilog, own.params, own.add_help_option = said(command.help), said(command.epilog), [], False
    for param in command.get_params(ctx):
        own.params.append(copy(param))
        if isinstance(param, click.Option):
            vars(own.params[-1])["help"] = said(param.help)
    return own
