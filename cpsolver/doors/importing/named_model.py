"""A model that a source names as on Hugging Face: one of the catalogue, or a folder with its config.json beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cpsolver.inputs.document import read_text
from cpsolver.inputs.english_sentences import configuration_reason
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import say
from models_zoo import UnknownModelError, UnsupportedConfigError, from_hugging_face, is_hugging_face, load_architecture
from models_zoo.schema import DESCRIPTIVE_FIELDS

_SIZES = {"layers": "num-layers", "hidden": "hidden-size", "heads": "num-attention-heads", "vocab": "vocab-size"}


def named_fields(name: str, file: str, where: str, others: Sequence[str] = ()) -> dict[str, Any]:
    """The architecture's fields. `others`: what the name may stand for too; `where`: the field of the file that has it.

    Raises InputError with the nearest names, and for a config.json that cannot be read.
    """
    config = Path(file).parent / name / "config.json"
    if file != "<stdin>" and config.is_file():
        return _config(config)
    nearest: tuple[str, ...] = ()
    for each in dict.fromkeys((name, *others)):
        try:
            found = load_architecture(each)
        except UnknownModelError as error:
            nearest = error.nearest
        else:
            return found.model_dump(exclude_none=True, exclude=set(DESCRIPTIVE_FIELDS) - {"max_positions"} | {"name"})
    allowed = say("a name of the catalogue (`apss-cp models`), or a folder beside the file with a config.json")
    raise InputError(Trouble(where, say("is not a model of the catalogue"), name, allowed, nearest, file=file))


def size_arguments(model: dict[str, Any]) -> dict[str, Any]:
    """Megatron-LM's arguments that every model has, by their names without dashes, as far as the fields say them."""
    return {argument: model.get(field) for field, argument in _SIZES.items()}


def _config(file: Path) -> dict[str, Any]:
    _, text = read_text(file)
    try:
        config = json.loads(text)
        if not is_hugging_face(config):
            raise InputError(Trouble("", "is no configuration of a model", file=str(file)))
        return {key: value for key, value in from_hugging_face(config).items() if key != "name"}
    except (ValueError, RecursionError) as error:
        raise InputError(Trouble("", say("is not JSON: {error}", error=error), file=str(file))) from None
    except UnsupportedConfigError as error:
        raise InputError(
            [Trouble(error.where, configuration_reason(reason), file=str(file)) for reason in error.reasons]
        ) from None
