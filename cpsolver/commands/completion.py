"""What a shell may complete: names of the catalogues. Nothing is read before somebody asks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

import click
from click.shell_completion import CompletionItem

Items = list[CompletionItem]


def files(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """A file's path, which the shell completes."""
    return [CompletionItem(incomplete, type="file")]


def models(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Names of models; repositories on Hugging Face where none begins so."""
    from models_zoo import architecture_names, list_architectures

    named = _of(architecture_names(), incomplete)
    return named or _of((name for arch in list_architectures() for name in arch.hugging_face), incomplete)


def chips(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Names of chips."""
    from hw_specs import chip_names

    return _of(chip_names(), incomplete)


def networks(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Names of networks."""
    from hw_specs import network_names

    return _of(network_names(), incomplete)


def counted_chips(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """The last chip of `h800:64,a800:64`, with the colon before its number."""
    from hw_specs import chip_names

    before, comma, last = incomplete.rpartition(",")
    return _of((f"{before}{comma}{name}:" for name in chip_names()), f"{before}{comma}{last}")


def launchers(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Names of launchers, which are the targets of exports too."""
    from cpsolver.profiles.framework import launcher_names

    return _of(launcher_names(), incomplete)


def precisions(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Types of the matrix products."""
    from cpsolver.profiles.switches import Precision

    return _of(get_args(Precision), incomplete)


def stacks(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Names of software stacks."""
    from cpsolver.profiles.stack import stack_names

    return _of(stack_names(), incomplete)


def _of(names: Iterable[str], incomplete: str) -> Items:
    """The names that begin so, in whatever case."""
    return [CompletionItem(name) for name in names if name.lower().startswith(incomplete.lower())]
