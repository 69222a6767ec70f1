"""The JSON of PaddleNLP's and PaddleFormers' trainers as the arguments of Megatron-LM that mean the same.

Read in PaddleNLP 9749ccd0: llm/config (names), paddlenlp/trainer/training_args.py (defaults, degrees, sharding). The
model is named as on Hugging Face: one of the catalogue, or a folder with its config.json beside the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cpsolver.doors.importing.catalogue_match import named_fields, size_arguments
from cpsolver.doors.importing.framework import FrameworkGuess
from cpsolver.doors.importing.reading import Fields, Reading, as_tokens
from cpsolver.inputs.language import later, say

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
    sizes = [token for argument, value in size_arguments(model).items() for token in as_tokens(argument, value)]
    tokens = [*sizes, *fields.mapped(), *_batch(fields), *_states(fields), *recomputed]
    tokens += ["--attention-dropout", "0", "--hidden-dropout", "0", "--transformer-impl", "local"]
    fields.close()
    kind = later("arguments of PaddleNLP")
    return Reading(kind, tuple(tokens), _FRAMEWORK, model=model, refusals=refusals, unread=fields.unread())


def _model(name: str, fields: Fields) -> dict[str, Any]:
    """The fields of the architecture that `model_name_or_path` names."""
    named = fields.text("model_name_or_path")
    if named is None:
        fields.trouble("model_name_or_path", "is not given: the model")
        return {}
    return named_fields(named, name, "model_name_or_path")


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
