"""models, chips, networks and stacks: what comes with apss-cp; init and schema: what a spec looks like."""

from __future__ import annotations

import click

from cpsolver.commands import completion
from cpsolver.commands.common import json_option, write_answer
from cpsolver.commands.help import SpokenCommand
from cpsolver.inputs.language import say


@click.command(cls=SpokenCommand)
@click.argument("name", required=False, shell_complete=completion.models)
@json_option
def models(name: str | None, as_json: bool) -> None:
    """List the catalogue's models, or show the one called NAME with its shape, sources and aliases.

    \b
    Example:
      apss-cp models llama2-70b
    """
    from cpsolver.doors.report.catalogue import models_document, models_report

    write_answer(as_json, None, lambda: models_document(name), lambda: models_report(name))


@click.command(cls=SpokenCommand)
@click.argument("name", required=False, shell_complete=completion.chips)
@json_option
def chips(name: str | None, as_json: bool) -> None:
    """List the catalogue's chips, or show the one called NAME with its efficiencies, sources and aliases.

    \b
    Example:
      apss-cp chips h800
    """
    from cpsolver.doors.report.catalogue import chips_document, chips_report

    write_answer(as_json, None, lambda: chips_document(name), lambda: chips_report(name))


@click.command(cls=SpokenCommand)
@click.argument("name", required=False, shell_complete=completion.networks)
@json_option
def networks(name: str | None, as_json: bool) -> None:
    """List the catalogue's networks, or show the one called NAME with its levels and sources.

    \b
    Example:
      apss-cp networks superpod-h100

    A spec takes one as cluster.network, `plan` as --network; docs/network.md says how to describe another.
    """
    from cpsolver.doors.report.catalogue import networks_document, networks_report

    write_answer(as_json, None, lambda: networks_document(name), lambda: networks_report(name))


@click.command(cls=SpokenCommand)
@click.argument("name", required=False, shell_complete=completion.stacks)
@json_option
def stacks(name: str | None, as_json: bool) -> None:
    """List the software-stack profiles, or show the one called NAME: every constant, how sure it is, its source.

    \b
    Example:
      apss-cp stacks megatron-core
    """
    from cpsolver.doors.report.stacks import stacks_document, stacks_report

    write_answer(as_json, None, lambda: stacks_document(name), lambda: stacks_report(name))


@click.command(cls=SpokenCommand)
@click.argument("path", default="spec.yaml")
@click.option("--force", is_flag=True, help="Replace the file when it is there.")
def init(path: str, force: bool) -> None:
    """Write a spec with every field, its default and its meaning to PATH (spec.yaml; - for stdout).

    \b
    Example:
      apss-cp init my-run.yaml

    The spec's JSON Schema goes beside it as apss-cp.schema.json, unless it is there: editors that know the first line
    of the spec then complete its fields, models, chips, launchers and stacks, and mark what is wrong.
    """
    import json
    from pathlib import Path

    from cpsolver.inputs.output import write_file, write_new_file
    from cpsolver.spec.json_schema import SCHEMA_FILE, SCHEMA_LINE, spec_json_schema
    from cpsolver.spec.starter import starter_spec

    text = SCHEMA_LINE + starter_spec()
    if path == "-":
        click.echo(text, nl=False)
        return
    write_new_file(path, text, force)
    beside = Path(path).parent / SCHEMA_FILE
    if force or not beside.exists():
        write_file(str(beside), json.dumps(spec_json_schema(), indent=2) + "\n")
    click.echo(say("wrote {path}; next: apss-cp solve {path}", path=path), err=True)


@click.command(cls=SpokenCommand)
def schema() -> None:
    """Print the JSON Schema of a spec, for editors and other programs.

    \b
    Example:
      apss-cp schema > spec.schema.json
    """
    import json

    from cpsolver.spec.json_schema import spec_json_schema

    click.echo(json.dumps(spec_json_schema(), indent=2))
