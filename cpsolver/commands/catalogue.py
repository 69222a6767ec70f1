"""models, chips and stacks: what comes with apss-cp."""

from __future__ import annotations

import click

from cpsolver.commands.common import json_option


@click.command()
@click.argument("name", required=False)
@json_option
def models(name: str | None, as_json: bool) -> None:
    """List the catalogue's models, or show the one called NAME with its shape, sources and aliases.

    \b
    Example:
      apss-cp models llama2-70b
    """
    from cpsolver.commands.answers import show_models

    show_models(name, as_json)


@click.command()
@click.argument("name", required=False)
@json_option
def chips(name: str | None, as_json: bool) -> None:
    """List the catalogue's chips, or show the one called NAME with its efficiencies, sources and aliases.

    \b
    Example:
      apss-cp chips h800
    """
    from cpsolver.commands.answers import show_chips

    show_chips(name, as_json)


@click.command()
@click.argument("name", required=False)
@json_option
def stacks(name: str | None, as_json: bool) -> None:
    """List the software-stack profiles, or show the one called NAME: every constant, how sure it is, its source.

    \b
    Example:
      apss-cp stacks megatron-core
    """
    from cpsolver.commands.answers import show_stacks

    show_stacks(name, as_json)
