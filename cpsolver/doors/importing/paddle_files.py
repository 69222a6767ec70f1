"""The JSON of PaddleNLP's and PaddleFormers' trainers as the arguments of Megatron-LM that mean the same.

Read in PaddleNLP 9749ccd0: llm/config (names), paddlenlp/trainer/training_args.py (defaults, degrees, sharding). The
model is named as on Hugging Face: one of the catalogue, or a folder with its config.json beside the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cpsolver.doors.importing.framework import FrameworkGuess
from cpsolver.doors.importing.reading import Fields, Reading, as_tokens
from cpsolver.inputs.document import read_text
from cpsolver.inputs.english_sentences import configuration_reason
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import later, say
from models_zoo import UnknownModelError, UnsupportedConfigError, from_hugging_face, is_hugging_face, load_architecture
from models_zoo.schema import DESCRIPTIVE_FIELDS

_FRAMEWORK = FrameworkGuess("paddlenlp", None, later("arguments of PaddleNLP's or PaddleFormers' trainer"))
_STAGES = {"": 0, "stage1": 1, "stage2": 2, "stage3": 3}
_WHOLE = ("full", "--recompute-method", "uniform", "--recompute-num-layers", "1")
_RECOMPUTED = {"full": _WHOLE, "core_attn": ("selective",)}


def read_paddle(name: str, data: dict[str, Any]) -> Reading:
    """A file of trainer arguments with the model that it names."""
    fields = Fields(data, name, "paddle")
    fields.refuse()
    model = _model(name, fields)
    recomputed, refusals = _recomputation(fields)
    if (fields.number("data_parallel_degree", 1, least=-1) or 1) > 1 and fields.has("sharding_parallel_degree"):
        refusals += (say("data_parallel_degree beside sharding_parallel_degree: groups of replicas are not read"),)
    sizes = [token for key, argument in _SIZES.items() for token in as_tokens(argument, model.get(key))]
    tokens = [*sizes, *fields.mapped(), *_batch(fields), *_states(fields), *recomputed]
    tokens += ["--attention-dropout", "0", "--hidden-dropout", "0", "--transformer-impl", "local"]
    fields.close()
    kind = later("arguments of PaddleNLP")
    return Reading(kind, tuple(tokens), _FRAMEWORK, model=model, refusals=refusals, unread=fields.unread())


_SIZES = {"layers": "num-layers", "hidden": "hidden-size", "heads": "num-attention-heads", "vocab": "vocab-size"}


def _model(name: str, fields: Fields) -> dict[str, Any]:
    """The fields of the architecture that `model_name_or_path` names."""
    named = fields.text("model_name_or_path")
    if named is None:
        fields.trouble("model_name_or_path", "is not given: the model")
        return {}
    file = Path(name).parent / named / "config.json"
    if name != "<stdin>" and file.is_file():
        return _config(file)
    try:
        found = load_architecture(named)
    except UnknownModelError as error:
        allowed = say("a name of the catalogue (`apss-cp models`), or a folder beside the file with a config.json")
        where, said = "model_name_or_path", say("is not a model of the catalogue")
        raise InputError(Trouble(where, said, named, allowed, error.nearest, file=name)) from None
    return found.model_dump(exclude_none=True, exclude=set(DESCRIPTIVE_FIELDS) - {"max_positions"} | {"name"})


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


def _batch(fields: Fields) -> Iterator[str]:
    """Sequences of a microbatch and of a step; PaddleNLP accumulates where it has no pipeline too."""
    mbs = fields.number("per_device_train_batch_size", 8)
    steps = fields.number("gradient_accumulation_steps", 1)
    yield from as_tokens("micro-batch-size", mbs)
    whole = fields.number("global_train_batch_size", None, least=-1)
    if whole is not None and whole > 0:
        yield from as_tokens("global-batch-size", whole)
    else:
        yield from as_tokens("gradient-accumulation-steps", steps)


def _states(fields: Fields) -> Iterator[str]:
    """Precision, what replicas share out, and attention's kernel."""
    sharding = (fields.text("sharding", "") or "").split()
    stage = next((one for one in sharding if one != "offload"), "")
    if stage not in _STAGES:
        fields.trouble("sharding", "is not planned for", stage, ", ".join(filter(None, _STAGES)))
    yield from as_tokens("zero-stage", _STAGES.get(stage, 0) or None)
    fields.has("sharding_parallel_degree")  # all replicas but where data_parallel_degree has some of them
    if (chunks := fields.number("virtual_pp_degree", 1) or 1) > 1:
        yield from as_tokens("num-virtual-stages-per-pipeline-rank", chunks)
    if "offload" in sharding:
        yield "--optimizer-cpu-offload"
    for half in ("bf16", "fp16"):
        if fields.flag(half):
            yield f"--{half}"
    if fields.flag("use_flash_attention"):
        yield "--use-flash-attn"
    if fields.has("sequence_parallel") and fields.data["sequence_parallel"] in (True, 1):
        yield "--sequence-parallel"


def _recomputation(fields: Fields) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Whole layers or attention's core; what else PaddleNLP recomputes has no words here."""
    granularity = fields.text("recompute_granularity", "full") or "full"
    if not fields.has("recompute") or fields.data["recompute"] in (False, 0):
        return (), ()
    if granularity not in _RECOMPUTED:
        return (), (
            say("recompute_granularity {granularity}: no plan says what is recomputed", granularity=granularity),
        )
    return ("--recompute-granularity", *_RECOMPUTED[granularity]), ()
