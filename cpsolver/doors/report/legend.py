"""The words on the first screen, explained: those that are on it, as docs/glossary.md has them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from cpsolver.doors.report.layout import section

TITLE = "What the words mean"
WORDS: Mapping[str, str] = {
    "tp": "tensor parallel size: ranks that split every layer's matrices",
    "pp": "pipeline parallel size: one rank of the pipeline is a stage, with layers of its own",
    "vpp": "interleaving: each stage holds vpp parts of the model, its chunks",
    "dp": "data parallel size: how many pipelines train side by side",
    "cp": "context parallel size: ranks that share a sequence",
    "p2p": "how keys and values reach the other cp ranks: passed around, or gathered",
    "allgather": "how keys and values reach the other cp ranks: passed around, or gathered",
    "a2a": "of the cp ranks, neighbours that swap heads for tokens, all-to-all",
    "ep": "expert parallel size: experts are sharded over ep groups, each expert over etp ranks",
    "etp": "expert parallel size: experts are sharded over ep groups, each expert over etp ranks",
    "mbs": "sequences that a pipeline takes in at once; a step has many",
    "sequence parallel": "Megatron's: norms and dropout sharded over the tp ranks along the sequence",
    "ZeRO": "replicas keep a part each: of the optimizer's state (ZeRO-1), gradients (2), parameters (3, FSDP)",
    "recompute": "activations dropped and computed again in the backward: selective, full blocks, full uniform",
    "80 % sure": "80 %: the true time lies inside four times in five",
    "MFU": "model FLOP utilisation: the model's own FLOP, recomputation not counted, over the peak",
    "proven": "every candidate ended in a rule, in a bound or at the solver, so that none was missed; it is about "
    "predictions",
    "idle": "the part of a step in which stages wait for each other",
    "transfers": "the part of a step in which data moves between chips and no computing hides it",
    "usable": "device memory less the margin that is kept free (cluster.memory_margin)",
    "P(OOM)": "the chance that the fullest device runs out of memory, by the errors on published runs",
    "P(best)": "the chance that a plan is truly the best of those shown, by the errors on published runs",
    "run this": "the best plan on average, of those unlikely to run out of memory (search.risk)",
    "fastest": "the best plan by the predictions",
    "cheapest": "the best plan by the predictions",
    "safest": "the best plan with next to no chance of running out of memory, and all of it measured",
    "simplest": "the best plan with every optional decision at its default and layers split evenly",
    "unmeasured": "what of a plan no published run has had",
}
"""Word -> what it means. Some are parts of words of the screen."""


def legend(screen: str) -> list[RenderableType]:
    """A section with those of the words that stand on the screen, given as text."""
    table = Table.grid(Column(style="bold", no_wrap=True), Column(), padding=(0, 2, 0, 0))
    for word, meaning in on_screen(screen):
        table.add_row(word, Text(meaning))
    return section(TITLE, table)


def on_screen(screen: str) -> Iterator[tuple[str, str]]:
    """Words that stand there, with what they mean; words of the same meaning in one."""
    there: dict[str, list[str]] = {}
    for word, meaning in WORDS.items():
        if re.search(rf"(?<![a-z]){re.escape(word)}", screen, re.IGNORECASE):
            there.setdefault(meaning, []).append(word)
    yield from ((", ".join(words), meaning) for meaning, words in there.items())
