"""open: the page of a plan, a sweep or a comparison in the browser, or a page that is there already."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cpsolver.commands.common import calibration_option, exit_code, known_as, time_limit_option, verbose_option
from cpsolver.commands.help import SpokenCommand
from cpsolver.inputs.language import later, say

if TYPE_CHECKING:
    from cpsolver.inputs.errors import Trouble

_PAGES = (".html", ".htm")


@click.command(cls=SpokenCommand)
@click.argument("files", nargs=-1, required=True, metavar="SPEC...|SWEEP|PAGE")
@click.option("--html", metavar="FILE", help="Keep the page that is made there; else it is a temporary file.")
@click.option("--no-browser", is_flag=True, help="Only write the page and say where it is.")
@known_as("no_browser", "--no-open", is_flag=True)
@click.option("--top", type=click.IntRange(1, 100), help="How many plans of a SPEC; replaces search.top.")
@time_limit_option("Stop each search after so many seconds with what is known; replaces search.time_limit_s.")
@verbose_option
@calibration_option
def open(files: Sequence[str], html: str | None, no_browser: bool, **options: Any) -> None:
    """Show the page of a plan, a sweep or a comparison in the browser.

    \b
    A SPEC is planned first, a SWEEP solved as by batch (and kept, as there), several SPECs weighed against
    each other as by compare; a PAGE (.html) is shown as it is.
    \b
    Example:
      apss-cp open examples/llama2-70b-a800-256.yaml --html plan.html
      apss-cp open examples/sweep.yaml
      apss-cp open on-h100.yaml on-a800.yaml
      apss-cp open plan.html

    The page is one file that needs no network; stdout says where it is. Exit codes: 0 shown; 2 bad input; 3 proven that
    there is no plan; 4 no plan found within the time limit (the page says why).
    """
    from cpsolver.inputs.output import check_files, write_file

    told = {"--html": html, "--top": options["top"], "--time-limit": options["time_limit_s"]}
    if _check(files, {**told, "--calibration": options["calibration"]}):
        _show(files[0], no_browser)
        return
    check_files({"--html": html}, *files)
    text, code = _compared(files, options) if len(files) > 1 else _solved(files[0], options)
    page = html or str(Path(tempfile.mkdtemp(prefix="apss-cp-")) / "plan.html")
    write_file(page, text)
    _show(page, no_browser)
    click.get_current_context().exit(code)


def _solved(file: str, options: dict[str, Any]) -> tuple[str, int]:
    """The page of a spec or a sweep, and the exit code."""
    from cpsolver.doors.batch.sweep import is_sweep

    limits = {name: options[name] for name in ("time_limit_s", "calibration")}
    if is_sweep(file):
        from cpsolver.commands.batch import solved_sweep, sweep_exit_code
        from cpsolver.doors.batch.page import sweep_page
        from cpsolver.doors.batch.run import SweepRequest
        from cpsolver.doors.report.html.choices import choices_page

        _only_of_one_spec(options, later("is for one spec, and this is a sweep"))
        answer = solved_sweep(SweepRequest(file, **limits))
        return choices_page(sweep_page(answer)), sweep_exit_code(answer)
    import cpsolver
    from cpsolver.doors.report.progress import Terminal

    problem = cpsolver.load_problem(file, top=options["top"], **limits)
    found = cpsolver.plan(problem, display=Terminal(options["verbose"]))
    return found.to_html(), exit_code(found.result)


def _compared(files: Sequence[str], options: dict[str, Any]) -> tuple[str, int]:
    """The page of a comparison, and the exit code."""
    from cpsolver.commands.batch import compared_exit_code
    from cpsolver.doors.batch.compare import ComparisonRequest, compare
    from cpsolver.doors.batch.comparison_page import comparison_page
    from cpsolver.doors.report.html.choices import choices_page
    from cpsolver.doors.report.progress import Terminal

    _only_of_one_spec(options, later("is for one spec, and this is a comparison"))
    limits = {name: options[name] for name in ("time_limit_s", "calibration")}
    found = compare(ComparisonRequest(tuple(files), **limits), Terminal(options["verbose"]))
    return choices_page(comparison_page(found)), compared_exit_code(found)


def _only_of_one_spec(options: dict[str, Any], told: str) -> None:
    """Raises InputError for --top, of which a sweep's cells and a comparison's options have their own."""
    from cpsolver.inputs.errors import InputError, Trouble

    if options["top"] is not None:
        raise InputError(Trouble("--top", told, options["top"]))


def _check(files: Sequence[str], options: dict[str, object]) -> bool:
    """Whether a page is shown as it is. Raises InputError for one that is not there, and what does not go with it."""
    from cpsolver.inputs.errors import InputError, Trouble

    pages = [file for file in files if Path(file).suffix.lower() in _PAGES]
    troubles: list[Trouble] = []
    for file in pages:
        given = [name for name, value in options.items() if value is not None]
        troubles += [Trouble(name, say("is for a spec, and {file} is a page already", file=file)) for name in given]
        if len(files) > 1:
            troubles.append(Trouble("", "is a page already: it is shown by itself", file=file))
        if not Path(file).is_file():
            troubles.append(Trouble("", "is no file", file=file))
    if troubles:
        raise InputError(troubles)
    return bool(pages)


def _show(page: str, no_browser: bool) -> None:
    """Say where the page is, and show it unless there is no browser to."""
    import webbrowser

    where = Path(page).resolve()
    click.echo(str(where))
    if not no_browser and not webbrowser.open(where.as_uri()):
        click.echo(say("note: no browser was found: open the file yourself"), err=True)
