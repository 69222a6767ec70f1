"""The command line: parse, call cpsolver, render, exit code. Everything heavy is imported when a command runs."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from cpsolver.errors import InputError
    from cpsolver.result import Result

EXIT_BAD_INPUT, EXIT_INFEASIBLE, EXIT_NO_PLAN_IN_TIME, EXIT_INTERRUPTED, EXIT_BUG = 2, 3, 4, 130, 70
"""The first three as in cpsolver.errors, which is not imported to print a help text."""


class _Commands(click.Group):
    """A group whose commands end with a message and an exit code, never with a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        from cpsolver.errors import InputError

        if sys.stdout is None:
            _say_error("stdout is closed: there is nowhere to write the answer")
            ctx.exit(EXIT_BAD_INPUT)
        try:
            return super().invoke(ctx)
        except InputError as error:
            _print_troubles(error, as_json=bool(ctx.obj and ctx.obj.get("json")))
            ctx.exit(EXIT_BAD_INPUT)
        except KeyboardInterrupt:
            ctx.exit(EXIT_INTERRUPTED)
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # the reader has left: click ends quietly
            _say_error(f"{error.filename}: {error.strerror}" if error.filename else str(error))
            ctx.exit(EXIT_BAD_INPUT)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if "APSS_CP_DEBUG" in os.environ:
                raise
            _say_error(f"this is a bug in apss-cp: {type(error).__name__}: {error} (APSS_CP_DEBUG=1 shows where)")
            ctx.exit(EXIT_BUG)


def _say_error(text: str) -> None:
    click.echo(f"{click.style('error:', fg='red', bold=True)} {text}", err=True)


def _print_troubles(error: InputError, as_json: bool) -> None:
    for trouble in error.troubles:
        _say_error(str(trouble))
    if as_json:
        from cpsolver.report.document import dumps, trouble_document

        click.echo(dumps(trouble_document(error)))


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 a plan; 2 bad input; 3 proven infeasible; 4 no plan within the time limit.",
)
@click.version_option(package_name="apss-cp", prog_name="apss-cp")
def main() -> None:
    """Plan how to parallelise the training of a large model: the fastest legal ways, with proof.

    \b
    Start with:
      apss-cp init spec.yaml
      apss-cp solve spec.yaml
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 shows ? for a sign that it lacks


def _note_json(ctx: click.Context, _param: click.Parameter, value: bool) -> bool:
    """Errors are told as JSON too: remembered where `_Commands.invoke` finds it."""
    if value:
        ctx.find_root().ensure_object(dict)["json"] = True
    return value


_JSON = click.option(
    "--json", "as_json", is_flag=True, callback=_note_json, help="Print JSON on stdout instead of text, errors too."
)
_SPEC = click.argument("spec")


@main.command(short_help="Find the K fastest plans for a spec, with proof.")
@_SPEC
@_JSON
@click.option("--verbose", "-v", is_flag=True, help="Show every step of the search on stderr.")
@click.option("--top", type=click.IntRange(1, 100), help="How many plans; replaces search.top of the spec.")
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Stop after so many seconds with the best plans so far; replaces search.time_limit_s.",
)
@click.option("--output", "-o", metavar="FILE", help="Write the answer to FILE instead of stdout.")
def solve(
    spec: str, as_json: bool, verbose: bool, top: int | None, time_limit: float | None, output: str | None
) -> None:
    """Find the K best plans for SPEC (a YAML or JSON file, or - for standard input), and prove it.

    \b
    Example:
      apss-cp solve examples/llama2-70b-a800-256.yaml --top 5

    The best are the fastest, unless the spec's search.objective is cost or fewest_chips.
    Ctrl-C ends the search with the best plans so far and what could still be gained. Exit codes: 0 a plan;
    2 bad input; 3 proven that there is no plan; 4 no plan found within the time limit.
    """
    from cpsolver.report.commands import deliver_result, watched_search
    from cpsolver.report.output import check_writable
    from cpsolver.report.request import load_problem

    problem = load_problem(spec, top=top, time_limit_s=time_limit)
    check_writable(output, spec)
    result = watched_search(problem, verbose)
    deliver_result(problem, result, as_json, output)
    _exit(result)


@main.command(short_help="The same search with the flags and the output of the APSS tool.")
@click.option("--model-name", default="llama2-70b", show_default=True, help="Name in `apss-cp models`.")
@click.option("--num-gpus", type=int, default=256, show_default=True, help="GPUs in use, up to 1,048,576.")
@click.option(
    "--gpu-infos",
    default="a800",
    show_default=True,
    metavar="TYPE[:MAX][,...]",
    help="Chip types and the most devices of each; -1, or no number: no limit. Names in `apss-cp chips`.",
)
@click.option("--nproc-per-node", type=int, default=8, show_default=True, help="GPUs in a node.")
@click.option("--global-batch-size", type=int, default=1024, show_default=True, help="Sequences, up to 1,048,576.")
@click.option(
    "--sequence-length",
    type=int,
    default=4096,
    show_default=True,
    help="Tokens in a sequence: a multiple of 512, up to 1,048,576.",
)
@click.option("--top", type=int, default=5, show_default=True, help="How many plans, up to 100.")
@click.option("--launcher", metavar="NAME", help="Only plans that this launcher can run, megatron-lm say.")
@click.option(
    "--mode",
    type=click.Choice(["fast", "analytic"]),
    default="fast",
    show_default=True,
    help="analytic: also write a trace of each plan to ./cache (for chrome://tracing or ui.perfetto.dev).",
)
@_JSON
def search(mode: str, as_json: bool, **flags: Any) -> None:
    """Find the fastest plans with the flags of the APSS tool; one dictionary a plan, one a line, best first.

    \b
    Example:
      apss-cp search --model-name llama2-70b --num-gpus 256 --nproc-per-node 8 \\
        --gpu-infos a800:128,h800:160 --global-batch-size 512 --sequence-length 4096 --top 3

    A line is a Python literal; with --json it is JSON. The same search with a report: `apss-cp solve`.
    Exit codes: 0 a plan; 2 bad input; 3 proven that there is no plan; 4 interrupted before the first plan.
    """
    from cpsolver.report.commands import watched_search
    from cpsolver.report.document import dumps_line
    from cpsolver.report.seed_tool import Flags, plan_dictionary, problem_from_flags

    problem = problem_from_flags(Flags(**flags))
    if mode == "analytic":
        Path("cache").mkdir(exist_ok=True)
    result = watched_search(problem, verbose=False)
    for plan in result.plans:
        line = plan_dictionary(problem, plan)
        click.echo(dumps_line(line) if as_json else repr(line))
    for reason in result.reasons:
        _say_error(reason)
    if as_json and not result.plans:
        click.echo(dumps_line({"status": result.status, "reasons": list(result.reasons)}))
    if mode == "analytic":
        from cpsolver.report.plan_trace import write_traces

        for told in write_traces(problem, result, Path("cache")):
            click.echo(told, err=True)
    if result.plans and result.status != "optimal":
        click.echo(f"stopped early: another plan may be up to {result.plans[0].gap:.1%} faster", err=True)
    _exit(result)


@main.command(short_help="What a given plan gives, and which rules it breaks.")
@_SPEC
@click.option("--strategy", "-s", required=True, metavar="FILE", help="The plan: YAML, JSON or an APSS line.")
@_JSON
@click.option("--output", "-o", metavar="FILE", help="Write the answer to FILE instead of stdout.")
def evaluate(spec: str, strategy: str, as_json: bool, output: str | None) -> None:
    """Predict step time, throughput and memory of one plan for SPEC, and list every rule that it breaks.

    \b
    Example:
      apss-cp evaluate examples/seed-published.yaml --strategy examples/seed-published-strategy.yaml

    The plan's file has the shape of "strategy" in `solve --json`, or is one line of `apss-cp search`.
    Exit codes: 0 evaluated and legal; 2 bad input, or no plan that could be evaluated (its layers, degrees,
    batch or chips do not add up); 3 evaluated, but a rule refuses it (out of memory, say).
    """
    from cpsolver import evaluate as judge
    from cpsolver import rules
    from cpsolver.report.commands import deliver_evaluation
    from cpsolver.report.output import check_writable
    from cpsolver.report.request import load_problem
    from cpsolver.strategy_file import load_strategy

    problem = load_problem(spec)
    plan = load_strategy(strategy, problem)
    check_writable(output, spec, strategy)
    broken = rules.violations(problem, plan)
    sound = not rules.structure_violations(problem, plan)
    evaluation = judge.evaluate(problem, plan) if sound else None
    deliver_evaluation(problem, plan, evaluation, broken, as_json, output)
    if evaluation is None:
        for found in broken:
            _say_error(f"{strategy}: {found}")
    click.get_current_context().exit(EXIT_INFEASIBLE if sound and broken else 0 if sound else EXIT_BAD_INPUT)


@main.command(short_help="How far off the predictions are on published, measured runs.")
@click.argument("cases", required=False)
@_JSON
@click.option("--output", "-o", metavar="FILE", help="Write the answer to FILE instead of stdout.")
@click.option("--scatter", metavar="FILE.html", help="Also draw predicted against measured into FILE.html.")
@click.option(
    "--worst", type=click.IntRange(0, 1000), default=5, show_default=True, help="How many of the worst runs to show."
)
def validate(cases: str | None, as_json: bool, output: str | None, scatter: str | None, worst: int) -> None:
    """Predict the runs of CASES (a CSV file, or - for standard input) and compare with what was measured.

    \b
    Example:
      apss-cp validate --scatter predicted.html

    Without CASES: the published runs that come with apss-cp. A table of your own has the same columns. Rows that
    are wrong are told on stderr and left out. Exit codes: 0 some run was predicted; 2 none was, or bad input.
    """
    from cpsolver.report.commands import deliver_validation, validate_table

    validation = validate_table(cases, output, scatter)
    deliver_validation(validation, as_json, output, scatter, worst)
    for trouble in validation.troubles:
        _say_error(str(trouble))
    if not validation.scored:
        _say_error("none of the runs could be predicted")
    click.get_current_context().exit(0 if validation.scored else EXIT_BAD_INPUT)


@main.command(short_help="The models of the catalogue, or one of them in detail.")
@click.argument("name", required=False)
@_JSON
def models(name: str | None, as_json: bool) -> None:
    """List the catalogue's models, or show the one called NAME with its shape, sources and aliases.

    \b
    Example:
      apss-cp models llama2-70b
    """
    from cpsolver.report.commands import show_models

    show_models(name, as_json)


@main.command(short_help="The chips of the catalogue, or one of them in detail.")
@click.argument("name", required=False)
@_JSON
def chips(name: str | None, as_json: bool) -> None:
    """List the catalogue's chips, or show the one called NAME with its efficiencies, sources and aliases.

    \b
    Example:
      apss-cp chips h800
    """
    from cpsolver.report.commands import show_chips

    show_chips(name, as_json)


@main.command(short_help="The software stacks that a spec can name, or one in detail.")
@click.argument("name", required=False)
@_JSON
def stacks(name: str | None, as_json: bool) -> None:
    """List the software-stack profiles, or show the one called NAME: every constant, how sure it is, its source.

    \b
    Example:
      apss-cp stacks megatron-core
    """
    from cpsolver.report.commands import show_stacks

    show_stacks(name, as_json)


@main.command(short_help="Write a commented spec to start from.")
@click.argument("path", default="spec.yaml")
@click.option("--force", is_flag=True, help="Replace the file when it is there.")
def init(path: str, force: bool) -> None:
    """Write a spec with every field, its default and its meaning to PATH (spec.yaml; - for stdout).

    \b
    Example:
      apss-cp init my-run.yaml
    """
    from cpsolver.report.commands import write_starter
    from cpsolver.starter import starter_spec

    text = starter_spec()
    if path == "-":
        click.echo(text, nl=False)
        return
    write_starter(path, text, force)
    click.echo(f"wrote {path}; next: apss-cp solve {path}", err=True)


@main.command(short_help="Print the JSON Schema of a spec.")
def schema() -> None:
    """Print the JSON Schema of a spec, for editors and other programs.

    \b
    Example:
      apss-cp schema > spec.schema.json
    """
    import json

    from cpsolver.spec import spec_json_schema

    click.echo(json.dumps(spec_json_schema(), indent=2))


def _exit(result: Result) -> None:
    codes = {"infeasible": EXIT_INFEASIBLE, "unknown": EXIT_NO_PLAN_IN_TIME}
    click.get_current_context().exit(codes.get(result.status, 0))


if __name__ == "__main__":
    main()
