"""What commands share: exit codes, options, and how they tell what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cpsolver.commands import completion
from cpsolver.inputs.language import ENGLISH, say, speaking

if TYPE_CHECKING:
    from cpsolver import InputError, Result

EXIT_BAD_INPUT, EXIT_INFEASIBLE, EXIT_NO_PLAN_IN_TIME, EXIT_INTERRUPTED, EXIT_BUG = 2, 3, 4, 130, 70
"""The first three as in cpsolver.inputs.errors, which is not imported to print a help text."""


def say_error(text: str) -> None:
    """One line on stderr."""
    click.echo(f"{click.style(say('error:'), fg='red', bold=True)} {text}", err=True)


def print_troubles(error: InputError, as_json: bool) -> None:
    """All that is wrong with an input, on stderr; as JSON on stdout too."""
    for trouble in error.troubles:
        say_error(str(trouble))
    if as_json:
        print_json(error)


def print_json(error: InputError) -> None:
    """All that is wrong with an input, as JSON on stdout."""
    from cpsolver.doors.report.document import dumps, trouble_document

    click.echo(dumps(trouble_document(error)))


def write_answer(as_json: bool, output: str | None, document: Callable[[], Any], report: Callable[[], Any]) -> None:
    """Write an answer to the file or stdout: a document of plain values as JSON, or a report that rich renders.

    Of the two functions only the one that is needed is called, so that neither's modules are imported in vain.
    """
    from cpsolver.inputs.output import deliver, deliver_report

    if as_json:
        from cpsolver.doors.report.document import dumps

        deliver(dumps(document()), output)
    else:
        deliver_report(report(), output)


def exit_code(result: Result) -> int:
    """The exit code of a search's answer; of one that a second opinion contradicts that of a bug, which is told."""
    codes = {"infeasible": EXIT_INFEASIBLE, "unknown": EXIT_NO_PLAN_IN_TIME}
    if result.verification is not None and result.verification.verdict == "contradicted":
        say_error(say("a second opinion contradicts this answer: please report it, with the spec"))
        return EXIT_BUG
    return codes.get(result.status, 0)


def exit_with(result: Result) -> None:
    """End the command with the exit code of a search's answer."""
    click.get_current_context().exit(exit_code(result))


def _note_json(ctx: click.Context, _param: click.Parameter, value: bool) -> bool:
    """Errors are told as JSON too: remembered where the group finds it. Machines are spoken to in English."""
    if value:
        ctx.find_root().ensure_object(dict)["json"] = True
        ctx.find_root().with_resource(speaking(ENGLISH))
    return value


Decorated = TypeVar("Decorated", bound=Callable[..., Any])

launcher_option = click.option(
    "--launcher",
    metavar="NAME",
    help="Only plans that this launcher can run, megatron-lm say.",
    shell_complete=completion.launchers,
)
verbose_option = click.option("--verbose", "-v", is_flag=True, help="Show every step of the search on stderr.")


_PARTS = {
    "full": "The whole report in place of the first screen: plans side by side and all of the below.",
    "time": "Also where the time of a step goes.",
    "memory": "Also where the memory goes, stage by stage.",
    "proof": "Also how every candidate ended.",
    "evidence": "Also the published runs nearest to the plan, and what the numbers rest on.",
    "legend": "Also what the words on the screen mean.",
}
"""Parts of the answer that may be asked for (cpsolver.doors.report.answer.Part), and the help of their flags."""


def _note_part(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    asked = ctx.params.setdefault("parts", [])
    if value:
        asked.append(param.name)


def part_options(command: Decorated) -> Decorated:
    """A flag for each part of the answer, as a list of their names: `parts`."""
    for name, text in reversed(_PARTS.items()):
        flag = click.option(f"--{name}", is_flag=True, expose_value=False, callback=_note_part, help=text)
        command = flag(command)
    return command


class Finite(click.FloatRange):
    """A number in a range; neither NaN, which no range keeps out, nor one without end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number."""
        number = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(say("{value!r} is not a finite number.", value=value), param, ctx)
        return number


def time_limit_option(text: str) -> Callable[[Decorated], Decorated]:
    """--time-limit, as `time_limit_s`, with that text."""
    positive = Finite(min=0, min_open=True)
    return click.option("--time-limit", "time_limit_s", type=positive, metavar="SECONDS", help=text)


def known_as(name: str, *others: str, **more: Any) -> Callable[[Decorated], Decorated]:
    """Other names of an option, which other commands have for the same: known, and not shown."""
    return click.option(*others, name, hidden=True, **more)


json_option = click.option(
    "--json", "as_json", is_flag=True, callback=_note_json, help="Print JSON on stdout instead of text, errors too."
)
output_option = click.option(
    "--output",
    "-o",
    metavar="FILE",
    callback=lambda _ctx, _param, value: None if value == "-" else value,
    help="Write the answer to FILE instead of stdout (-).",
)
spec_argument = click.argument("spec", shell_complete=completion.files)
rank_option = click.option(
    "--plan-rank", type=click.IntRange(min=1), default=1, show_default=True, help="Which plan of `solve --json`."
)
set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A decision of the plan, tp=8 say, in place of a file; may be repeated.",
)
calibration_option = click.option(
    "--calibration", metavar="FILE", help="Constants learnt from your own runs: what `apss-cp calibrate` wrote."
)
