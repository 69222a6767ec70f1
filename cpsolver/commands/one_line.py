"""plan: the best plans for a model on some chips, asked in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cpsolver.commands import completion
from cpsolver.commands.common import (
    calibration_option,
    exit_with,
    json_option,
    launcher_option,
    output_option,
    part_options,
    time_limit_option,
    verbose_option,
)
from cpsolver.commands.help import SpokenCommand
from cpsolver.commands.next_steps import Given, next_steps
from cpsolver.commands.planning import html_option, write_result

if TYPE_CHECKING:
    from cpsolver.doors.report.answer import Part


@click.command(cls=SpokenCommand)
@click.argument("model", shell_complete=completion.models)
@click.option(
    "--on",
    required=True,
    metavar="CHIP:N[,CHIP:N...]",
    help="The chips and how many of each: h100:512, or h800:64,a800:64.",
    shell_complete=completion.counted_chips,
)
@click.option("--batch", type=int, required=True, metavar="N", help="Sequences in one optimizer step.")
@click.option("--seq", type=int, required=True, metavar="TOKENS", help="Tokens in a sequence.")
@launcher_option
@click.option(
    "--stack",
    metavar="NAME",
    help="The software stack (`apss-cp stacks`); else the launcher's or the chips' own.",
    shell_complete=completion.stacks,
)
@click.option(
    "--precision",
    metavar="NAME",
    help="bf16 (the default), fp16, fp8, nvfp4 or fp32.",
    shell_complete=completion.precisions,
)
@click.option("--gpus-per-node", type=int, metavar="M", help="Devices in a node: 8, or all where there are fewer.")
@click.option(
    "--network",
    metavar="NAME",
    help="The network between nodes (`apss-cp networks`); else each chip's own.",
    shell_complete=completion.networks,
)
@click.option("--top", type=click.IntRange(1, 100), help="How many plans (3).")
@time_limit_option("Stop after so many seconds with the best plans so far.")
@verbose_option
@part_options
@click.option("--write-spec", metavar="FILE", help="Write the spec that the line stands for, to go on with.")
@calibration_option
@json_option
@output_option
@html_option
def plan(
    model: str,
    on: str,
    batch: int,
    seq: int,
    launcher: str | None,
    stack: str | None,
    precision: str | None,
    gpus_per_node: int | None,
    network: str | None,
    top: int | None,
    time_limit_s: float | None,
    verbose: bool,
    write_spec: str | None,
    calibration: str | None,
    as_json: bool,
    output: str | None,
    html: str | None,
    parts: list[Part],
) -> None:
    """Find the best plans for MODEL on some chips, asked in one line; nothing is written unless asked.

    \b
    Example:
      apss-cp plan llama3.1-70b --on h100:512 --batch 1024 --seq 8192
      apss-cp plan meta-llama/Llama-3.1-70B --on h800:64,a800:64 --batch 512 --seq 4096 --launcher megatron-lm

    MODEL: a name of `apss-cp models`, a repository on Hugging Face, or a file. The answer is that of `solve`; every
    other wish stands in a spec, which --write-spec begins. Exit codes: 0 a plan; 2 bad input; 3 proven that there is
    no plan; 4 no plan found within the time limit.
    """
    import cpsolver
    from cpsolver.doors.report.progress import Terminal
    from cpsolver.inputs.output import check_files, write_file, write_new_file
    from cpsolver.problem.flags import OneLine

    line = OneLine(model, on, batch, seq, launcher, stack, precision, gpus_per_node, network)
    problem = line.problem(calibration, top=top, time_limit_s=time_limit_s)
    check_files({"--output": output, "--html": html, "--write-spec": write_spec})
    if write_spec is not None:
        write_new_file(write_spec, line.spec_text(write_spec, top=top, time_limit_s=time_limit_s), force=False)
    found = cpsolver.plan(problem, display=Terminal(verbose))
    wishes = {"--top": top, "--time-limit": time_limit_s}
    given = Given(write_spec or "spec.yaml", calibration, wishes, () if write_spec else line.words())
    write_result(found, as_json, output, parts, lambda: next_steps(problem, found.result, given))
    if html is not None:
        write_file(html, found.to_html())
    exit_with(found.result)
