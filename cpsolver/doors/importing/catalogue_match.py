"""Which model of the catalogue an architecture is, or a name is of one as on Hugging Face; and the vocabulary that a
script leaves to its tokenizer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cpsolver.doors.importing.scope import OutOfScopeError
from cpsolver.inputs.data import package_data
from cpsolver.inputs.document import read_text
from cpsolver.inputs.english_sentences import as_messages, configuration_reason
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import later, say
from models_zoo import (
    Architecture,
    UnknownModelError,
    UnsupportedConfigError,
    from_hugging_face,
    is_hugging_face,
    list_architectures,
    load_architecture,
)
from models_zoo.schema import DESCRIPTIVE_FIELDS

_NOT_COMPARED = DESCRIPTIVE_FIELDS | {"activation"}
"""Fields that change neither time nor memory here (positions are compared where they are learned)."""
_TABLE = Path(__file__).parent / "tokenizers.yaml"
_BESIDE = re.compile(r"vl(?![a-z])|vl\d|omni|vision|audio|\dv(?![a-z])|ovis|llava", re.IGNORECASE)
"""Names of models with an encoder of images or sound beside the decoder."""
_VARIANT = re.compile(r"(?:[-_](?:instruct|base|chat|it|pt|hf|fp8|bf16|thinking|\d{4}))+$", re.IGNORECASE)
"""What the name of a repository has behind that of the model: it changes no size."""
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_UNSAID = ("kv_heads", "bias_qkv", "bias_attention_out", "bias_mlp")
"""Fields that a checkpoint says where the arguments leave them out."""
_OTHER_DEFAULTS = ("activation", "gated_mlp", "norm", "position", "tied_embeddings", *_UNSAID)
"""Fields whose default is another one here than that of Megatron-LM's arguments."""
_SIZES = {"layers": "num-layers", "hidden": "hidden-size", "heads": "num-attention-heads", "vocab": "vocab-size"}


def match_model(
    fields: dict[str, Any], name: str, hint: str, notes: list[str] | None, tokenizer: str = "", kind: str = ""
) -> tuple[Architecture, Any]:
    """The architecture, and how the spec names it: as a model of the catalogue with its fields, else by the fields.

    A script may leave the vocabulary to its tokenizer. Then it is that of a model with the same shape, else what the
    `tokenizer` is known to have by its name, with a note. `kind`: the tokenizer's type; empty where nothing but the
    text may name one.
    """
    try:
        matches = catalogue_matches(fields, f"{name} {hint}")
    except ValidationError as error:
        raise InputError([Trouble(where, text, file=name) for where, text in _invalid(error)]) from None
    if "vocab" not in fields:
        vocabulary, note = _vocabulary(matches, fields.get("max_positions"), f"{name} {hint}", tokenizer, kind)
        if vocabulary is None:
            raise InputError(Trouble("--vocab-size", note, allowed="--vocab-size N", file=name))
        if notes is not None:
            notes.append(note)
        fields = {**fields, "vocab": vocabulary}
        matches = [match for match in matches if match.vocab == vocabulary]
    if matches:
        return matches[0], matches[0].name
    return Architecture.model_validate({"name": "imported", **fields}), {"name": "imported", **fields}


def _vocabulary(
    matches: Sequence[Architecture], positions: Any, hint: str, path: str, kind: str
) -> tuple[int | None, str]:
    """A vocabulary for a model without one, and where it comes from: the tokenizer, by its type (`kind`, else one that
    `hint` names) or by its name (the last of `path`), else a model of the same shape.

    None where there is none, or where equally likely models differ in it; the text then says so.
    """
    types = {each: int(entry["tokens"]) for each, entry in package_data(_TABLE)["types"].items()}
    given = kind or _COMMENT.sub("", hint)
    for tokenizer, size in types.items():
        if tokenizer in given and (not matches or size in {match.vocab for match in matches}):
            return size, say("no --vocab-size: taken as {tokenizer}'s, {size:,}", tokenizer=tokenizer, size=size)
    if (known := tokens_by_name(path)) is not None:
        told = later("no --vocab-size: taken as that of the tokenizer {tokenizer}, {known:,}")
        return known, say(told, tokenizer=path, known=known)
    if not matches:
        return None, say("is not given: the tokenizer has it, and no model of the catalogue has this shape")
    likeliest = _unlikeness(matches[0], positions, hint)
    best = [match for match in reversed(matches) if _unlikeness(match, positions, hint) == likeliest]
    vocabularies = {match.vocab: match.name for match in best}
    if len(vocabularies) > 1 or not _is_named(matches[0], hint, path):
        sizes = ", ".join(f"{size:,} ({name})" for size, name in sorted(vocabularies.items()))
        return None, say("is not given: the tokenizer has it, and models of this shape have {sizes}", sizes=sizes)
    return matches[0].vocab, say(
        "no --vocab-size: taken as {name}'s, {vocab:,}", name=matches[0].name, vocab=matches[0].vocab
    )


def _is_named(model: Architecture, hint: str, path: str) -> bool:
    """Whether a text names the model's family, and its tokenizer no other: models of one shape are many."""
    own = _family(model.name)
    last = path.rstrip("/").rpartition("/")[2].lower()
    of_tokenizer = {_family(each.name) for each in list_architectures()} & set(re.findall("[a-z]+", last))
    return re.search(rf"(?<![a-z]){own}(?![a-z])", hint.lower()) is not None and of_tokenizer <= {own}


def _family(name: str) -> str:
    return re.split("[^a-z]", name.lower())[0]


def tokens_by_name(tokenizer: str) -> int | None:
    """The tokens of a tokenizer by its type, or by the last part of its path or repository; None: not known."""
    last, known = tokenizer.rstrip("/").rpartition("/")[2], package_data(_TABLE)
    if last in known["types"]:
        return int(known["types"][last]["tokens"])
    names = known["names"].items()
    return next((int(entry["tokens"]) for pattern, entry in names if re.search(pattern, last.lower())), None)


def catalogue_matches(fields: Mapping[str, Any], hint: str) -> list[Architecture]:
    """Models of the catalogue with the same shape, likeliest first; of any vocabulary where `fields` has no `vocab`.

    The likeliest has as many positions, and the most parts of its name in `hint` (a script's name and text).
    """
    probe = Architecture.model_validate({"name": "custom", "vocab": 1, **fields})
    open_vocab = "vocab" not in fields
    same_shape = [
        model
        for model in list_architectures()
        if not model.proposal and _shape(model, open_vocab) == _shape(probe, open_vocab)
    ]
    positions = fields.get("max_positions")
    return sorted(same_shape, key=lambda model: (*_unlikeness(model, positions, hint), model.name))


def checkpoint_fields(fields: Mapping[str, Any], hint: str) -> tuple[dict[str, Any], str]:
    """What --use-checkpoint-args takes from a checkpoint and the arguments need not say, and a note on it.

    Megatron-LM d98e8a6, training/checkpointing.py, load_args_from_checkpoint: heads of keys and values, biases and the
    kinds of layers are the checkpoint's in any case. Here they are those of the likeliest model of the catalogue that
    differs from the arguments in nothing else.
    """
    sizes = {key: value for key, value in fields.items() if key not in _UNSAID}
    likely = [
        (_unlikeness(model, fields.get("max_positions"), hint), model.name, model)
        for model in list_architectures()
        if not model.proposal and _same_but_unsaid(model, sizes)
    ]
    found = min(likely, default=None, key=lambda each: each[:2])
    if found is None or not found[0][1]:
        told = later(
            "--use-checkpoint-args: heads of keys and values, and biases, are the checkpoint's: taken as given"
        )
        return {}, say(told)
    model = found[2]
    told = later("--use-checkpoint-args: heads of keys and values, and biases, are the checkpoint's: taken as {name}'s")
    return {key: getattr(model, key) for key in _UNSAID}, say(told, name=model.name)


def _same_but_unsaid(model: Architecture, sizes: Mapping[str, Any]) -> bool:
    if (model.layers, model.hidden, model.heads) != tuple(sizes[key] for key in ("layers", "hidden", "heads")):
        return False
    own, open_vocab = {key: getattr(model, key) for key in _UNSAID}, "vocab" not in sizes
    try:
        probe = Architecture.model_validate({"name": "custom", "vocab": 1, **sizes, **own})
    except ValidationError:  # told of the model itself
        return False
    return _shape(model, open_vocab) == _shape(probe, open_vocab)


def _unlikeness(model: Architecture, positions: Any, hint: str) -> tuple[bool, int]:
    """How unlikely a model of the same shape is, by its positions and then by its name: the smaller the likelier."""
    words = [part for part in re.split(r"[-_.]", f"{model.name}-{model.family}") if len(part) > 1]
    parts = {*words, *(part.rstrip("0123456789") for part in words)} - {""}  # llama2-7b is a llama too
    return model.max_positions != positions, -sum(part in hint.lower() for part in parts)


def _shape(model: Architecture, open_vocab: bool) -> dict[str, Any]:
    shape = model.model_dump(exclude={*_NOT_COMPARED, *(("vocab",) if open_vocab else ())})
    if model.position == "learned":
        shape["positions"] = model.max_positions
    if model.attention.kind == "mla":  # these do not count there
        shape["kv_heads"] = shape["head_dim"] = None
    if model.moe is not None:  # scripts often leave the router's groups out, and the model is the same one
        shape["moe"]["groups"] = shape["moe"]["top_groups"] = None
    if model.moe is not None:  # shared experts run as one block
        shape["moe"]["shared_experts"], shape["moe"]["shared_ffn"] = None, model.moe.shared_width
    dense = "-" in model.layer_pattern if model.layer_pattern else not all(map(model.has_experts, range(model.layers)))
    if model.moe is not None and not dense:
        shape["ffn"] = None  # no layer has that width
    return shape


def named_fields(name: str, file: str, where: str) -> dict[str, Any]:
    """The fields of the architecture that a source names. `where`: the field of the file that has the name.

    Raises InputError with the nearest names, and for a config.json that cannot be read; OutOfScopeError for a model
    that has an encoder beside its decoder, by its name.
    """
    config = Path(file).parent / name / "config.json"
    if file != "<stdin>" and config.is_file():
        return _config(config)
    plain = name.rstrip("/").rpartition("/")[2]
    nearest: tuple[str, ...] = ()
    for each in dict.fromkeys((name, plain, _VARIANT.sub("", plain))):
        try:
            found = load_architecture(each)
        except UnknownModelError as error:
            nearest = error.nearest
        else:
            return said_fields(found)
    if has_encoder(plain):
        told = say("is {what}: only the training of a decoder is planned", what=say("a multimodal model"))
        raise OutOfScopeError(Trouble(where, told, name, file=file))
    allowed = say("a name of the catalogue (`apss-cp models`), or a folder beside the file with a config.json")
    raise InputError(Trouble(where, say("is not a model of the catalogue"), name, allowed, nearest, file=file))


def has_encoder(name: str) -> bool:
    """Whether a model has an encoder of images or sound beside its decoder, by its name."""
    return _BESIDE.search(name) is not None


def size_arguments(model: dict[str, Any]) -> dict[str, Any]:
    """Megatron-LM's arguments that every model has, by their names without dashes, as far as the fields say them."""
    return {argument: model.get(field) for field, argument in _SIZES.items()}


def said_fields(model: Architecture) -> dict[str, Any]:
    """What a spec would say of an architecture, and the fields that Megatron-LM has another default for."""
    excluded = set(DESCRIPTIVE_FIELDS) - {"max_positions"} | {"name"}
    said = model.model_dump(exclude_none=True, exclude_defaults=True, exclude=excluded)
    return {**said, **{name: getattr(model, name) for name in _OTHER_DEFAULTS}}


def architecture_fields(config: Mapping[str, Any], file: str) -> dict[str, Any]:
    """The fields of the architecture that a config.json describes, with those that Megatron-LM's arguments have another
    default for.

    Raises InputError for what no field can say, and for sizes that no model has.
    """
    try:
        fields = {key: value for key, value in from_hugging_face(config).items() if key != "name"}
        found = Architecture.model_validate({"name": "named", **fields})
    except UnsupportedConfigError as error:
        told = [(error.where, configuration_reason(reason)) for reason in error.reasons]
    except ValidationError as error:
        told = _invalid(error)
    else:
        return {**fields, **{name: getattr(found, name) for name in _OTHER_DEFAULTS}}
    raise InputError([Trouble(where, text, file=file) for where, text in told])


def _invalid(error: ValidationError) -> list[tuple[str, str]]:
    """Where in the model something is wrong, and what."""
    return [
        (".".join(("model", *map(str, each["loc"]))), as_messages(each["msg"].removeprefix("Value error, ")))
        for each in error.errors(include_url=False)
    ]


def _config(file: Path) -> dict[str, Any]:
    _, text = read_text(file)
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(Trouble("", say("is not JSON: {error}", error=error), file=str(file))) from None
    if not is_hugging_face(config):
        raise InputError(Trouble("", "is no configuration of a model", file=str(file)))
    return architecture_fields(config, str(file))
