"""What a script leaves to others: is there a number of devices, or a length of sequences, that the rules allow?

LoongForge's say `NNODES=${WORLD_SIZE:-1}`, and some beside it that they need two nodes or more: the degrees, the micro
batch and the recomputation are the script's, the replicas the user's. Others say no devices at all, or train on
sequences that are as long as their data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from cpsolver.doors.importing.imported import Imported, ImportOptions, import_source
from cpsolver.inputs.errors import InputError

_DEFAULT = re.compile(r"(\w+)=([1-9]\d*)(?=,|$)")
"""A number among the defaults that a note of the import lists."""
_MOST = 4096
"""Devices that a script is tried on."""
_SHORTEST = 512
"""Tokens of the shortest sequences that data is taken to have."""


def wider(outcome: Any) -> Iterator[Imported]:
    """The script on twice the devices, four times and so on; nothing where it says itself how many train."""
    if "devices" not in outcome.helped and not any(_sets_devices(outcome, given) for given in _doubled(outcome)):
        return
    cluster = outcome.imported.spec["cluster"]
    devices = 2 * cluster["num_gpus"]
    while devices <= _MOST:
        more = replace(outcome.options, num_gpus=devices, gpus_per_node=cluster["gpus_per_node"])
        if (imported := _read(outcome, more)) is not None and imported.strategy is not None:
            yield imported
        devices *= 2


def shorter(imported: Imported) -> Iterator[Imported]:
    """The same with sequences of half the length, a quarter and so on."""
    training = imported.spec["training"]
    length = training["sequence_length"]
    while (length := length // 2) >= _SHORTEST:
        yield replace(imported, spec={**imported.spec, "training": {**training, "sequence_length": length}})


def _doubled(outcome: Any) -> Iterator[Mapping[str, str]]:
    """A variable that the environment may set, at twice its default."""
    for note in outcome.imported.notes:
        if note.startswith("defaults are taken"):
            yield from ({name: str(2 * int(number))} for name, number in _DEFAULT.findall(note))


def _sets_devices(outcome: Any, given: Mapping[str, str]) -> bool:
    imported = _read(outcome, replace(outcome.options, given={**outcome.options.given, **given}))
    return imported is not None and imported.spec["cluster"]["num_gpus"] != outcome.imported.spec["cluster"]["num_gpus"]


def _read(outcome: Any, options: ImportOptions) -> Imported | None:
    try:
        return import_source(str(outcome.file), options)
    except InputError:
        return None
