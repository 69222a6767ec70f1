"""What Megatron-Bridge's own recipes set, from stdin (JSON: the module and the function of each).

Run by `readers.read`, in an interpreter as of bridge_read.py. Models are not fetched: each is an object with whatever
the recipe sets. Prints a JSON list of the fields by section, those with plain values, or the error.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

SECTIONS = ("model", "train", "ddp", "comm_overlap", "optimizer", "mixed_precision", "dataset")


class Fetched:
    """Stands for a model of Hugging Face."""

    def to_megatron_provider(self, **_given: Any) -> SimpleNamespace:
        return SimpleNamespace()

    def get_model_config(self, **_given: Any) -> SimpleNamespace:
        return SimpleNamespace()


def plain(value: Any) -> Any:
    """A value as JSON has it; None for one that it has not, in a list of its own."""
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return [None]


def read(case: dict[str, str]) -> dict[str, Any]:
    """The sections of one recipe's configuration."""
    from megatron.bridge import AutoBridge

    with mock.patch.object(AutoBridge, "from_hf_pretrained", return_value=Fetched()):
        config = getattr(importlib.import_module(case["module"]), case["name"])()
    found = {section: getattr(config, section) for section in SECTIONS}
    return {
        section: {name: plain(value) for name, value in vars(held).items()}
        for section, held in found.items()
        if hasattr(held, "__dict__")
    }


def main() -> None:
    """Answer stdin's cases."""
    sys.path.insert(0, str(Path(__file__).parent))
    from absent import lend
    from answering import answer
    from bridge_read import ABSENT

    lend("megatron.bridge", ABSENT)
    from megatron_parse import without_accelerators

    answer(without_accelerators, read)


if __name__ == "__main__":
    main()
