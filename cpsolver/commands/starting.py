"""init and schema: what a spec looks like."""

from __future__ import annotations

import click


@click.command()
@click.argument("path", default="spec.yaml")
@click.option("--force", is_flag=True, help="Replace the file when it is there.")
def init(path: str, force: bool) -> None:
    """Write a spec with every field, its default and its meaning to PATH (spec.yaml; - for stdout).

    \b
    Example:
      apss-cp init my-run.yaml
    """
    from cpsolver.commands.answers import write_starter
    from cpsolver.spec.starter import starter_spec

    text = starter_spec()
    if path == "-":
        click.echo(text, nl=False)
        return
    write_starter(path, text, force)
    click.echo(f"wrote {path}; next: apss-cp solve {path}", err=True)


@click.command()
def schema() -> None:
    """Print the JSON Schema of a spec, for editors and other programs.

    \b
    Example:
      apss-cp schema > spec.schema.json
    """
    import json

    from cpsolver.spec.spec import spec_json_schema

    click.echo(json.dumps(spec_json_schema(), indent=2))
