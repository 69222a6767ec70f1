"""import: a spec and today's plan from what is there already."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from cpsolver.commands import completion
from cpsolver.commands.common import json_option
from cpsolver.commands.help import SpokenCommand
from cpsolver.inputs.language import say

if TYPE_CHECKING:
    from cpsolver.doors.importing.imported import Imported


@click.command("import", cls=SpokenCommand)
@click.argument("source")
@click.option(
    "--chip",
    metavar="NAME",
    help="The chip that it trains on, as `apss-cp chips` names it; several in the nodes' order: h800:64,a800:64.",
    shell_complete=completion.chips,
)
@click.option("--num-gpus", type=click.IntRange(1), metavar="N", help="Devices; replaces what the script says.")
@click.option("--gpus-per-node", type=click.IntRange(1), metavar="M", help="Devices in a node; likewise.")
@click.option("--global-batch-size", type=click.IntRange(1), metavar="N", help="Sequences of a step; likewise.")
@click.option("--sequence-length", type=click.IntRange(1), metavar="N", help="Tokens of a sequence; likewise.")
@click.option("--vocab-size", type=click.IntRange(1), metavar="N", help="The vocabulary, where a tokenizer has it.")
@click.option(
    "--stack",
    metavar="NAME",
    help="The software stack (`apss-cp stacks`); replaces the guess.",
    shell_complete=completion.stacks,
)
@click.option(
    "--launcher",
    metavar="NAME",
    help="The launcher profile, or any; replaces the guess.",
    shell_complete=completion.launchers,
)
@click.option("--set", "given", multiple=True, metavar="NAME=VALUE", help="A shell variable's value; may be repeated.")
@click.option("--args", "arguments", metavar="TEXT", help="The script's own arguments, as on its command line.")
@click.option("--output", "-o", metavar="FILE", help="Write the spec to FILE; without it, to stdout.")
@click.option("--strategy-output", metavar="FILE", help="Write the plan that the script runs today to FILE.")
@click.option("--force", is_flag=True, help="Replace files that are there.")
@json_option
def import_(
    source: str,
    given: tuple[str, ...],
    arguments: str | None,
    output: str | None,
    strategy_output: str | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Read SOURCE: a training script of Megatron-LM, DeepSpeed, MindSpeed, LoongForge or ms-swift (or its arguments in
    a file, - for standard input), a recipe of Megatron-Bridge or NeMo 2, a configuration file of FlagScale, GPT-NeoX,
    Megatron-LM, MindFormers, NeMo 1, PaddleNLP, Primus or torchtitan, or a Hugging Face config.json. Nothing is run.

    \b
    Example:
      apss-cp import examples/mindspeed-llama-7b.sh --chip ascend_910b -o spec.yaml --strategy-output plan.yaml
      apss-cp evaluate spec.yaml --strategy plan.yaml
      apss-cp solve spec.yaml

    Without -o the spec goes to stdout, and what was read to stderr. docs/import.md says what is read and what is not.
    Exit codes: 0 imported; 2 bad input, every problem listed.
    """
    from cpsolver.doors.importing.imported import ImportOptions, import_source
    from cpsolver.doors.importing.output import import_document, import_report, wrapped
    from cpsolver.doors.importing.variables import parse_given

    _check_files(source, output, strategy_output)
    imported = import_source(source, ImportOptions(given=parse_given(given), arguments=_words(arguments), **options))
    spec = _write(imported, output, strategy_output, force)
    if as_json:
        from cpsolver.doors.report.document import dumps

        click.echo(dumps(import_document(imported)))
        return
    if output is None:
        click.echo(spec, nl=False)
    report = import_report(imported, output, strategy_output)
    stream = sys.stderr if output is None else sys.stdout
    click.echo(wrapped(report) if stream.isatty() else report, err=output is None)


def _words(text: str | None) -> tuple[str, ...] | None:
    """The words of a command line; raises InputError for quotes that never close."""
    import shlex

    from cpsolver.inputs.errors import InputError, Trouble

    try:
        return None if text is None else tuple(shlex.split(text))
    except ValueError as error:
        raise InputError(Trouble("--args", say("is no command line: {error}", error=error), text)) from None


def _check_files(source: str, output: str | None, strategy_output: str | None) -> None:
    """Raises InputError for files that cannot be written, before anything is read."""
    from cpsolver.inputs.errors import InputError, Trouble
    from cpsolver.inputs.output import check_writable

    for path in (output, strategy_output):
        check_writable(path, source)
    if output is not None and output == strategy_output:
        raise InputError(Trouble("", "is the file of --output and of --strategy-output: give two", file=output))


def _write(imported: Imported, output: str | None, strategy_output: str | None, force: bool) -> str:
    """Write the files that are asked for; returns the spec's text. Raises InputError for a plan that is not there, once
    the spec is written."""
    from cpsolver.doors.importing.output import spec_text, strategy_text
    from cpsolver.inputs.errors import InputError, Trouble
    from cpsolver.inputs.output import write_new_file

    spec = spec_text(imported)
    if output is not None:
        write_new_file(output, spec, force)
    if strategy_output is not None and imported.strategy is None:
        reasons = imported.refusals or (say("a configuration says nothing of how it is trained"),)
        told = [say("there is no plan to write: {reason}", reason=reason) for reason in reasons]
        raise InputError([Trouble("--strategy-output", each) for each in told])
    if strategy_output is not None and imported.strategy is not None:
        write_new_file(strategy_output, strategy_text(imported.strategy, imported.source), force)
    return spec
