"""Writes docs/support.md, who runs what, from the catalogues and profiles: `python -m tools.support_matrix`.

What a framework refuses is asked of the reader of specs itself, so that the page says what a user would be told. A test
checks that the file is what this writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from cpsolver.cost.schedules import SCHEDULES
from cpsolver.evidence.nearest import published_runs
from cpsolver.inputs.errors import InputError
from cpsolver.plans.strategy import SEARCHED_SCHEDULES, SearchedSchedule
from cpsolver.problem.resolve import resolve
from cpsolver.profiles.default_stack import choose_stack
from cpsolver.profiles.framework import Framework, launcher_names, load_launcher
from cpsolver.spec.spec import parse_spec
from hw_specs import Chip, list_chips, list_networks, unusable_reasons
from models_zoo import Architecture, active_parameters, list_architectures, total_parameters

TARGET = Path(__file__).parent.parent / "docs" / "support.md"
YES, NO = "●", "–"
_HEAD = """# Who runs what

Written by `python -m tools.support_matrix` from the catalogues and the profiles of frameworks. Of a model, chip or
framework `apss-cp models NAME`, `apss-cp chips NAME` and docs/space.md say more; what is not here can be described in a
spec (docs/specs.md) or added (docs/adding-a-model.md, docs/adding-a-chip.md, docs/adding-an-exporter.md).
"""


def page() -> str:
    """The whole file."""
    launchers = [load_launcher(name) for name in launcher_names()]
    parts = [_HEAD, *_frameworks(launchers), *_models(launchers), *_chips(), *_networks()]
    return "\n".join(parts).rstrip() + "\n"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _frameworks(launchers: list[Framework]) -> Iterator[str]:
    yield "## Frameworks\n"
    yield (
        "A name goes into a spec's `launcher:`, or behind `apss-cp export --to`. The stack is what the spec gets where "
        "it names none; degrees and sharding of each framework are in docs/space.md, what is written for it in "
        "docs/export.md.\n"
    )
    rows = [(f"`{each.name}`", each.title, f"`{each.stack}`" if each.stack else "by the chips") for each in launchers]
    yield _table(("launcher", "what it is", "stack"), rows)
    yield "### What they run\n"
    yield _table(("", *(f"`{each.name}`" for each in launchers)), list(_abilities(launchers)))
    yield "### Schedules of the pipeline\n"
    yield (
        "By their names in `search.schedules`. Without a launcher a plan may have those that its stack has; "
        "breadth-first is searched where it is asked for (docs/techniques.md).\n"
    )
    yield _table(
        ("schedule", "what it is", "launchers", "stacks"), [_schedule(name, launchers) for name in SEARCHED_SCHEDULES]
    )


def _schedule(name: SearchedSchedule, launchers: list[Framework]) -> tuple[str, ...]:
    known = SCHEDULES[name]
    having = [f"`{each.name}`" for each in launchers if each.pipeline and name in each.schedules]
    stacks = "all" if known.stacks is None else ", ".join(f"`{stack}`" for stack in sorted(known.stacks))
    return (f"`{name}`", known.label, ", ".join(having) or NO, stacks)


def _abilities(launchers: list[Framework]) -> Iterator[list[str]]:
    """Rows of what frameworks differ in, beside degrees and sharding."""
    wants: dict[str, Callable[[Framework], Any]] = {
        "pipeline": lambda each: each.pipeline,
        "interleaving": lambda each: each.interleaving,
        "stages of any number of layers": lambda each: each.uneven_layers == "any",
        "chip types mixed along the pipeline": lambda each: each.mixed_chips,
        "degrees by chip type": lambda each: each.degrees_by_chip,
        "context parallelism": lambda each: each.context_parallel,
        "expert parallelism": lambda each: each.expert_parallel,
        "adapters (LoRA)": lambda each: each.adapters != "none",
        "packed sequences": lambda each: each.packed_sequences,
        "encoders of images": lambda each: each.encoders,
        "fp8": lambda each: "fp8" in each.precisions,
    }
    for words, has in wants.items():
        yield [words, *(YES if has(each) else NO for each in launchers)]


def _models(launchers: list[Framework]) -> Iterator[str]:
    yield "## Models\n"
    yield (
        "Without a `launcher:` any of these is planned. *Not by*: the frameworks "
        "that refuse it, whatever the plan (docs/layer-kinds.md). Parameters: in all, and of a token where there are "
        "experts.\n"
    )
    rows = [
        (
            f"`{each.name}`",
            _size(each),
            _kind(each),
            _refused(each, launchers) or NO,
        )
        for each in list_architectures()
    ]
    yield _table(("model", "parameters", "attention", "not by"), rows)


def _size(model: Architecture) -> str:
    whole = f"{total_parameters(model) / 1e9:,.1f} B"
    return f"{whole}, {active_parameters(model) / 1e9:,.1f} B" if model.moe else whole


def _kind(model: Architecture) -> str:
    return model.attention.kind.upper() + (", experts" if model.moe else "")


def _refused(model: Architecture, launchers: list[Framework]) -> str:
    """The launchers that no spec of the model may name."""
    refused = [each.name for each in launchers if not _takes(model, each)]
    if len(refused) == len(launchers):
        return "any of them"
    taking = [f"`{each.name}`" for each in launchers if each.name not in refused]
    return f"all but {', '.join(taking)}" if len(taking) < len(refused) else ", ".join(f"`{name}`" for name in refused)


def _takes(model: Architecture, launcher: Framework) -> bool:
    """Whether a plain spec of the model for that launcher is accepted."""
    spec = {
        "model": model.name,
        "cluster": {"num_gpus": 1024, "chips": "h100"},
        "training": {
            "global_batch_size": 1024,
            "sequence_length": 2048,
            "precision": "bf16" if "bf16" in launcher.precisions else launcher.precisions[0],
        },
        "launcher": launcher.name,
    }
    try:
        resolve(parse_spec(spec))
    except InputError:
        return False
    return True


def _chips() -> Iterator[str]:
    runs = Counter(run.chip for run in published_runs())
    yield "## Chips\n"
    yield (
        "*Runs*: published, measured runs on the chip, which come with the package (docs/accuracy.md); where there are "
        "none, predictions rest on data sheets and on chips of the same kind, and every report says so.\n"
    )
    for vendor, chips in groupby(sorted(list_chips(), key=lambda chip: chip.vendor), lambda chip: chip.vendor):
        yield f"### {vendor}\n"
        yield _table(("chip", "bf16, TFLOP/s", "memory", "stack", "runs"), [_chip(chip, runs) for chip in chips])


def _chip(chip: Chip, runs: Counter[str]) -> tuple[str, ...]:
    reasons = unusable_reasons(chip)
    stack = f"not planned: {'; '.join(reasons)}" if reasons else f"`{choose_stack(None, None, [chip]).name}`"
    peak, memory = chip.peak_tflops.bf16, chip.memory.capacity_gb
    sizes = (f"{peak:g}" if peak else NO, f"{memory:g} GB" if memory else NO)
    return (f"`{chip.name}`", *sizes, stack, str(runs[chip.name] or NO))


def _networks() -> Iterator[str]:
    yield "## Networks\n"
    yield "A name goes into `cluster: {network: …}`; docs/network.md has how to describe another.\n"
    rows = [(f"`{each.name}`", ", ".join(f"`{chip}`" for chip in each.chips)) for each in list_networks()]
    yield _table(("network", "built with"), rows)


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
