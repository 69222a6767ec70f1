"""serve: a plan's page with the spec beside it, to edit and to plan again, in this machine's browser."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cpsolver.commands import completion
from cpsolver.commands.common import calibration_option, known_as, time_limit_option
from cpsolver.commands.help import SpokenCommand
from cpsolver.inputs.language import say

if TYPE_CHECKING:
    from cpsolver import Problem

_NEEDED = ("starlette", "uvicorn", "h11")
_TIME_LIMIT_S = 60.0


@click.command(cls=SpokenCommand)
@click.argument("spec", required=False, shell_complete=completion.files)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="The port; 0: any that is free."
)
@click.option("--no-open", is_flag=True, help="Only say where the page is.")
@known_as("no_open", "--no-browser", is_flag=True)
@time_limit_option(
    f"The longest that a search may take; {_TIME_LIMIT_S:g} without it. A spec's own limit may be shorter."
)
@calibration_option
def serve(spec: str | None, port: int, no_open: bool, time_limit_s: float | None, calibration: str | None) -> None:
    """Edit SPEC in the browser and plan it again and again; without SPEC, the one that `init` writes.

    \b
    Example:
      apss-cp serve examples/llama2-70b-a800-256.yaml
      apss-cp serve --no-open --port 8765

    The server listens on 127.0.0.1 only, and answers whoever knows the address that stdout says: keep it to
    yourself. It writes no file, and reads none but those in SPEC's folder that a spec names. Ctrl-C ends it.
    Exit codes: 0 ended; 2 bad input, or a port that is taken.
    """
    from cpsolver.inputs.errors import InputError, Trouble

    if any(find_spec(name) is None for name in _NEEDED):
        raise InputError(Trouble("serve", "needs a web server: pip install 'apss-cp[serve]'"))
    from cpsolver.doors.report.html.editing import edit_page
    from cpsolver.doors.serve.guard import Keys
    from cpsolver.doors.serve.planner import Planner
    from cpsolver.doors.serve.server import Served, application, listening, server
    from cpsolver.doors.serve.spec_text import PageLimits

    served = Served(*_start(spec), edit_page)
    if calibration is not None:
        from cpsolver.profiles.constants import load_overlay

        load_overlay(calibration)  # what is wrong with it is said now, not by every plan
    folder = None if spec in (None, "-") else Path(str(spec)).parent
    limits = PageLimits(time_limit_s or _TIME_LIMIT_S, folder, calibration)
    keys, planner, socket = Keys(), Planner(page_of, limits), listening(port)
    at = socket.getsockname()[1]
    click.echo(keys.address(at))
    click.echo(say("Ctrl-C ends the server."), err=True)
    if no_open:
        keys.code = None
    else:
        _show(keys.first_address(at))
    try:
        server(application(served, planner, keys, at), planner).run(sockets=[socket])
    except KeyboardInterrupt:
        pass  # the way to end it
    finally:
        planner.close()
        socket.close()


def page_of(problem: Problem, tell: Callable[[str], None]) -> tuple[str, str]:
    """A problem's answer: its status, and its page. It runs in the server's worker."""
    import cpsolver
    from cpsolver.doors.report.progress import Telling

    found = cpsolver.PlanAnswer(problem, cpsolver.solve(problem, display=Telling(tell)))
    return found.status, found.to_html()


def _start(spec: str | None) -> tuple[str, str]:
    """The text to start from, and its name. Whether it is a sound spec the page says. Raises InputError."""
    from cpsolver.inputs.document import read_text
    from cpsolver.inputs.limits import MOST_DOCUMENT_BYTES
    from cpsolver.spec.starter import starter_spec

    if spec is None:
        return starter_spec(), "spec.yaml"
    name, text = read_text(spec, MOST_DOCUMENT_BYTES)
    return text, "spec.yaml" if spec == "-" else Path(name).name


def _show(address: str) -> None:
    """Show the page, in a thread: a browser in the terminal comes back only when it is left."""
    import threading
    import webbrowser

    def show() -> None:
        if not webbrowser.open(address):
            click.echo(say("note: no browser was found: open the address yourself"), err=True)

    threading.Thread(target=show, daemon=True).start()
