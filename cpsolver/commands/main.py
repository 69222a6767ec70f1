"""The command line: a group of commands that are loaded when they run, and that never end in a traceback."""

from __future__ import annotations

import errno
import gc
import os
import sys
from difflib import get_close_matches
from importlib import import_module
from keyword import iskeyword
from typing import Any

import click

from cpsolver.commands import COMMANDS
from cpsolver.commands.common import EXIT_BAD_INPUT, EXIT_BUG, EXIT_INTERRUPTED, print_json, print_troubles, say_error
from cpsolver.commands.help import LANGUAGE, help_of, wide
from cpsolver.commands.usage import as_input_error, asked_language, show
from cpsolver.inputs.language import ENGLISH, LANGUAGES, later, of_locale, say, speaking

_OBJECTS = 50_000
"""New objects after which garbage is collected: imports make that many, hardly any of which are garbage."""
_JSON = "cpsolver.json"
"""Where a call keeps whether --json is among its arguments, which may be wrong before they are read."""
SPEAKS = (
    *("plan", "solve", "open", "evaluate", "check", "explain", "serve", "batch", "compare", "replicas"),
    *("export", "ranks", "import", "init", "schema", "models", "chips", "networks", "stacks"),
    *("tune", "profile", "calibrate", "validate"),
)
"""The commands that speak the user's language; all others, what they write for machines above all, speak English but
for their help."""


class _Commands(click.Group):
    """Loads a command by its name; ends what goes wrong in it with a message and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _ = COMMANDS[name]
        function = f"{name}_" if iskeyword(name) else name
        command = getattr(import_module(f"cpsolver.commands.{module}"), function)
        assert isinstance(command, click.Command)
        if name in SPEAKS and language_option not in command.params:
            command.params.append(language_option)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        ctx.meta[_JSON] = "--json" in args
        if ctx.meta[_JSON] or (args[0] in COMMANDS and args[0] not in SPEAKS):
            ctx.with_resource(speaking(ENGLISH))
        elif (asked := asked_language(args)) in LANGUAGES:
            ctx.with_resource(speaking(asked))
        near = [] if args[0] in COMMANDS else get_close_matches(args[0], COMMANDS, 1)
        if near:
            ctx.fail(say("No such command {name!r}. Did you mean {near!r}?", name=args[0], near=near[0]))
        return super().resolve_command(ctx, args)

    def get_help(self, ctx: click.Context) -> str:
        return help_of(self, ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, wide(say(line))) for name, (_, line) in COMMANDS.items()])

    def make_context(self, *given: Any, **more: Any) -> click.Context:
        """As click makes it, and prints help; what goes wrong meanwhile ends the command as it does later."""
        try:
            return super().make_context(*given, **more)
        except KeyboardInterrupt:
            sys.exit(EXIT_INTERRUPTED)
        except OSError as error:
            _say_where(error)
            sys.exit(EXIT_BAD_INPUT)

    def invoke(self, ctx: click.Context) -> Any:
        from cpsolver.inputs.errors import InputError

        if sys.stdout is None:
            say_error(say("stdout is closed: there is nowhere to write the answer"))
            ctx.exit(EXIT_BAD_INPUT)
        try:
            return super().invoke(ctx)
        except InputError as error:
            print_troubles(error, as_json=bool(ctx.obj and ctx.obj.get("json")))
            ctx.exit(EXIT_BAD_INPUT)
        except KeyboardInterrupt:
            ctx.exit(EXIT_INTERRUPTED)
        except OSError as error:
            _say_where(error)
            ctx.exit(EXIT_BAD_INPUT)
        except click.UsageError as error:
            show(error)
            if ctx.meta.get(_JSON):
                print_json(as_input_error(error))
            ctx.exit(error.exit_code)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if "APSS_CP_DEBUG" in os.environ:
                raise
            told = later("this is a bug in apss-cp: {kind}: {error} (APSS_CP_DEBUG=1 shows where)")
            say_error(say(told, kind=type(error).__name__, error=error))
            ctx.exit(EXIT_BUG)


def _say_where(error: OSError) -> None:
    """What the system says of a file, or of stdout. Raises the error where the reader has left: click ends quietly."""
    if error.errno == errno.EPIPE:
        raise error
    told = error.strerror or str(error)
    say_error(f"{error.filename}: {told}" if error.filename else told)


def _speak(ctx: click.Context, _param: click.Parameter, asked: str | None) -> None:
    """To the end of the program, so that errors are told so too; what stands behind the command's name holds."""
    if asked is not None or ctx.parent is None:
        language = ctx.find_root().meta[LANGUAGE] = asked or of_locale(os.environ)
        ctx.find_root().with_resource(speaking(language))


language_option = click.Option(
    ["--lang"],
    type=click.Choice(LANGUAGES),
    expose_value=False,
    is_eager=True,
    callback=_speak,
    help="What to speak: English or Chinese; by default what the locale says (LC_ALL, LC_MESSAGES, LANG).",
)


@click.group(
    cls=_Commands,
    params=[language_option],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 a plan; 2 bad input; 3 proven infeasible; 4 no plan within the time limit.",
)
@click.version_option(package_name="apss-cp", prog_name="apss-cp")
def main() -> None:
    """Plan how to parallelise the training of a large model: the fastest legal ways, with proof.

    \b
    Start with:
      apss-cp plan llama3.1-70b --on h100:512 --batch 1024 --seq 8192
    or, with every wish in a file:
      apss-cp init spec.yaml
      apss-cp solve spec.yaml
    """
    gc.set_threshold(_OBJECTS)
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # to look for plugins, all packages are searched
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 shows ? for a sign that it lacks
