"""tune: plans tried on the user's own cluster, one after the other, with the user's own training command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cpsolver.commands import completion
from cpsolver.commands.common import Finite, json_option, spec_argument, write_answer
from cpsolver.commands.help import SpokenCommand
from cpsolver.inputs.language import say

if TYPE_CHECKING:
    from cpsolver.doors.tune.request import OpenTuning, TuneRequest

EXIT_NOTHING_MEASURED = 4
_positive = Finite(min=0, min_open=True)


@click.command(cls=SpokenCommand)
@spec_argument
@click.option("--run", "template", metavar="TEMPLATE", help="The command that trains, with fields: {arguments}, {tp} …")
@click.option("--shell", is_flag=True, help="Run TEMPLATE with /bin/sh; values in it are quoted.")
@click.option(
    "--to",
    "target",
    metavar="TARGET",
    help="What {arguments} and the files are for, as in `export`.",
    shell_complete=completion.launchers,
)
@click.option("--state", metavar="DIR", help="Where trials are kept; by default SPEC with the ending .tune.")
@click.option("--policy", metavar="NAME", help="Who chooses: thompson, or top: the search's plans in order.")
@click.option("--top", type=click.IntRange(1, 100), help="Plans of a search; policy top: replaces search.top.")
@click.option("--gain", type=Finite(0, 50), metavar="PERCENT", help="A gain worth another trial (3).")
@click.option("--chance", type=Finite(0, 100), metavar="PERCENT", help="Stop when it is less likely (10).")
@click.option("--runs", metavar="RUNS.csv", help="Measured runs from before, to learn from too; as for calibrate.")
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, help="Of what is drawn.")
@click.option("--max-trials", type=click.IntRange(min=0), metavar="N", help="Stop at N trials; 0: only report.")
@click.option("--max-hours", type=_positive, metavar="H", help="Stop when all trials together took H hours.")
@click.option("--trial-time-limit", type=_positive, metavar="SECONDS", help="End a trial that takes longer.")
@click.option("--skip-iterations", type=click.IntRange(min=0), metavar="N", help="Iterations left out as warm-up (2).")
@click.option("--iterations", type=click.IntRange(min=1), metavar="N", help="End a trial after N measured iterations.")
@click.option("--ask", is_flag=True, help="Print the next plan to try, with its files; run nothing.")
@click.option("--count", type=click.IntRange(1, 100), metavar="N", help="With --ask: N new plans.")
@click.option("--tell", type=click.IntRange(min=1), metavar="NUMBER", help="Keep what came of a plan of --ask.")
@click.option("--log", metavar="FILE", help="With --tell: its training log.")
@click.option("--step-time", type=float, metavar="S", help="With --tell: seconds of a step.")
@click.option("--peak-memory", type=float, metavar="GIB", help="With --tell: peak memory of a device.")
@click.option("--memory-kind", type=click.Choice(["allocated", "reserved", "device"]), help="Who counted it.")
@click.option("--oom", is_flag=True, help="With --tell: it ran out of device memory.")
@click.option("--failed", metavar="WHY", help="With --tell: it failed otherwise.")
@click.option("--runs-csv", metavar="FILE", help="Also write the trials as measured runs, for calibrate and validate.")
@json_option
def tune(spec: str, as_json: bool, **options: Any) -> None:
    """Try plans for SPEC on your cluster: choose one, run your command, read its log, keep what it says, repeat.

    \b
    Example:
      apss-cp tune spec.yaml --to megatron-lm --iterations 10 \\
        --run 'torchrun --nproc-per-node 8 pretrain_gpt.py {arguments} --mock-data --train-iters 20'

    Fields of TEMPLATE: {arguments} (many words), {plan}, {directory}, {trial}, {tp} {pp} {dp} {cp} {ep} {etp} {vpp}
    {mbs} {gbs} {num_gpus} {nodes} {gpus_per_node} {seq_length}; {{ and }} are braces. docs/tune.md has what logs are
    read, and how to go on after a kill: give the same command again. Ctrl-C ends the running trial and reports.
    Needs scipy (apss-cp[tune]). Exit codes: 0 a plan was measured; 2 bad input; 4 no trial succeeded.
    """
    from cpsolver.doors.tune.request import TuneRequest

    click.get_current_context().exit(_run(TuneRequest(spec=spec, **options), as_json))


_Answer = tuple[Any, dict[str, Any], int]
"""What came of it, as text and as JSON, and the exit code that goes with it."""


def _run(request: TuneRequest, as_json: bool) -> int:
    from cpsolver.doors.tune.request import opened

    request.check()
    with opened(request) as tuning:
        run = _asked if request.ask else _tuned if request.tell is None else _reported
        report, document, code = run(tuning)
        write_answer(as_json, None, lambda: document, lambda: report)
        for note in tuning.write_runs():
            click.echo(say("note: {text}", text=note), err=True)
    return code


def _asked(tuning: OpenTuning) -> _Answer:
    from cpsolver.doors.tune.report import asked_report
    from cpsolver.doors.tune.result import asked_document

    trials, reason = tuning.ask()
    document = asked_document(trials, reason, tuning.state.folder)
    return asked_report(trials, reason), document, 0 if trials or tuning.measured else EXIT_NOTHING_MEASURED


def _reported(tuning: OpenTuning) -> _Answer:
    from cpsolver.doors.tune.report import one_trial_report
    from cpsolver.doors.tune.result import trial_document

    trial = tuning.tell()
    return one_trial_report(trial), {"status": "told", "trial": trial_document(trial)}, 0


def _tuned(tuning: OpenTuning) -> _Answer:
    from cpsolver.doors.tune.report import tuning_report
    from cpsolver.doors.tune.result import document

    answer = tuning.tune()
    return tuning_report(answer), document(answer), 0 if tuning.measured else EXIT_NOTHING_MEASURED
