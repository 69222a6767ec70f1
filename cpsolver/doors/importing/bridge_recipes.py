"""Recipes of Megatron-Bridge, read as text, as the arguments of Megatron-LM that mean the same.

A recipe is a function of a Python file that gives a ConfigContainer; those that it calls are read in the checkout
around it (the folder above the file that has megatron/bridge). Read in Megatron-Bridge 067f987: recipes, perf_recipes,
training/config.py (names), training/mixed_precision.py.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cpsolver.doors.importing.bridge_models import is_provider, provided
from cpsolver.doors.importing.catalogue_match import has_encoder, named_fields, size_arguments
from cpsolver.doors.importing.command import TrainingDevices
from cpsolver.doors.importing.framework import FrameworkGuess
from cpsolver.doors.importing.reading import Fields, Reading, as_tokens, table
from cpsolver.doors.importing.recipe_text import Module, Recipes
from cpsolver.doors.importing.recipe_values import UNCLEAR, Configured
from cpsolver.doors.importing.scope import OutOfScopeError
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import later, say
from hw_specs import chip_names

_HALF = FrameworkGuess("megatron-bridge", "megatron-bridge", later("a recipe of Megatron-Bridge, gradients in 16 bits"))
_WHOLE = FrameworkGuess("megatron-core", "megatron-bridge", later("a recipe of Megatron-Bridge, gradients in fp32"))
_OVERLAPS = ("overlap_grad_reduce", "overlap_param_gather", "tp_comm_overlap")
"""What both stacks count on."""
_DEFINES = re.compile(r"^def (\w+)\(.*\)\s*->\s*[\"']?ConfigContainer[\"']?\s*:", re.MULTILINE)
_EXPORTED = re.compile(r"^FIELDS = \{$", re.MULTILINE)
"""What `export` writes: fields by name, which its configure() sets."""
_TELLS = re.compile(r"^\s*(?:from|import) megatron\.bridge", re.MULTILINE)
_DEVICES = re.compile(r"_(\d+)gpu_([a-z0-9]+)")
_NODES = {"gb200": 4, "gb300": 4, "vr200": 4}
"""Devices of a node where they are not 8 (scripts/performance/argument_parser.py, NUM_GPUS_PER_NODE_MAP)."""
_SHAPE = {
    "num_layers": "layers",
    "hidden_size": "hidden",
    "ffn_hidden_size": "ffn",
    "num_attention_heads": "heads",
    "num_query_groups": "kv_heads",
    "vocab_size": "vocab",
}
"""Fields of a model's provider that a recipe may set over what the model has."""
_MODULES = {
    "mtp_num_layers": "mtp_layers",
    "mtp_hybrid_override_pattern": "mtp_pattern",
    "mtp_use_repeated_layer": "mtp_repeated",
}
"""Those of multi-token prediction."""
_ELSE = (*_MODULES, "position_embedding_type", "kv_channels", "hidden_dropout", "attention_dropout")
"""Others of the model that are read, or that change nothing of one that has a name."""
_PRECISION = (
    *("fp16", "fp8", "fp8_recipe", "fp4", "fp4_param_gather", "fp8_param_gather", "fp8_param"),
    *("grad_reduce_in_fp32", "fp8_dot_product_attention"),
)
_AT_ENDS = ("first_last_layers_bf16", "num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16")
"""Whether layers at the ends are left out of 8 or 4 bits, and how many."""
_COUNTED = (
    "mixed_precision",
    *(f"mixed_precision.{name}" for name in _AT_ENDS),
    *(f"mixed_precision.{name}" for name in _PRECISION),
    "ddp.use_megatron_fsdp",
    "ddp.data_parallel_sharding_strategy",
    "ddp.grad_reduce_in_fp32",
    "optimizer.use_precision_aware_optimizer",
    "optimizer.use_distributed_optimizer",
)
"""Fields that change a plan and are no argument by themselves."""
_LISTS = (
    "pipeline_model_parallel_layout",
    "cp_comm_type",
    "hierarchical_context_parallel_sizes",
    "recompute_modules",
    "offload_modules",
)
"""Fields that may be lists."""
_HALVES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "uint8": "fp8"}
_LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
_LORA = {
    "dim": "rank",
    "dropout": "dropout",
    "target_modules": "targets",
    "a2a_experimental": "all_to_all",
    "share_expert_adapters": "share_expert_adapters",
}
"""Fields of LoRA -> the spec's, whose defaults are those of peft/lora.py."""
_CLOSE = 0.92
"""How alike a misspelt field is to one that is read: a letter or two of twenty (difflib's ratio)."""
_OVERRIDE = re.compile(r"\+{0,2}([a-z_]+(?:\.[a-z_0-9]+)*)=(.*)", re.DOTALL)


def is_recipe(text: str) -> bool:
    """Whether a text is a Python file with recipes of Megatron-Bridge, or one that `export` writes for it."""
    written = _DEFINES.search(text) or _EXPORTED.search(text)
    return _TELLS.search(text) is not None and written is not None


def read_recipe(name: str, text: str, words: Sequence[str]) -> tuple[Reading, str | None]:
    """The recipe that the first of the words names (the only one without), with the overrides of the others; and the
    chip that its name says, as far as the catalogue has it.

    Raises InputError where several may be meant, and for what its text leaves unclear and a plan needs.
    """
    recipes = Recipes(_root(Path(name)), gives_its_argument={"get_mixed_precision_config"})
    module = recipes.read(Path(name), text)
    if "FIELDS" in module.values:
        exported = _exported(recipes, module)
        unread = _override(exported, words, name)
        _name_precision(exported, recipes, module)
        return replace(container_reading(name, "", exported), hint=text.partition("\n")[0], unread=unread), None
    chosen = _chosen(name, module, words)
    if has_encoder(chosen):
        told = say("is {what}: only the training of a decoder is planned", what=say("a multimodal model"))
        raise OutOfScopeError(Trouble(chosen, told, file=name))
    config = recipes.called(module, chosen)
    if not isinstance(config, Configured) or not isinstance(config.fields.get("model"), Configured):
        told = say("gives no configuration that can be read: what it calls is not in a checkout above the file")
        raise InputError(Trouble(chosen, told, allowed=say("a file in Megatron-Bridge's folder"), file=name))
    unread = _override(config, [word for word in words if word != chosen], name)
    _name_precision(config, recipes, module)
    return replace(container_reading(name, chosen, config), unread=unread), _chip(chosen)


def _exported(recipes: Recipes, module: Module) -> Configured:
    """The configuration that an exported file sets on any recipe."""
    model = recipes.called(module, "model") if "model" in module.functions else UNCLEAR
    config = Configured("ConfigContainer", {"model": model if isinstance(model, Configured) else Configured("")})
    fields, precision = recipes.constant(module, "FIELDS"), recipes.constant(module, "PRECISION")
    for name, value in (fields if isinstance(fields, dict) else {}).items():
        config.put(str(name), value)
    if not isinstance(config.fields["model"], Configured):
        config.fields["model"] = Configured("")
    _name_precision(config, recipes, module)
    named = config.fields.get("mixed_precision")
    if isinstance(named, Configured) and isinstance(precision, dict):
        named.fields |= precision
    return config


def _root(file: Path) -> Path | None:
    places = [place for folder in file.absolute().parents for place in (folder, folder / "src")]
    return next((place for place in places if (place / "megatron" / "bridge").is_dir()), None)


def _chosen(name: str, module: Module, words: Sequence[str]) -> str:
    known = [each for each in module.functions if not each.startswith("_") and each.endswith("_config")]
    asked = [word for word in words if "=" not in word]
    if asked and asked[0] in module.functions:
        return asked[0]
    if not asked and len(known) == 1:
        return known[0]
    told = say("is no recipe of the file") if asked else say("has several recipes: name one of them")
    nearest = tuple(difflib.get_close_matches(asked[0], known, n=2)) if asked else ()
    shown = say("--args NAME of: {names}", names=", ".join(known))
    raise InputError(Trouble("--args", told, asked[0] if asked else None, shown, nearest, file=name))


def _override(config: Configured, words: Sequence[str], file: str) -> tuple[str, ...]:
    """Set what `section.field=value` says, as Megatron-Bridge's command line does; the fields that nothing here uses.

    Raises InputError for a field that is close to one that is read, and is neither read nor set by the recipe.
    """
    unread: list[str] = []
    known = _known()
    for word in words:
        match = _OVERRIDE.fullmatch(word)
        if match is None:
            raise InputError(Trouble("--args", "is no override", word, "section.field=value", file=file))
        name, before = match.group(1), config.get(match.group(1))
        if isinstance(before, Configured) and name != "mixed_precision":
            raise InputError(Trouble("--args", "must hold fields", word, file=file))
        if before is None and name not in known:
            if nearest := tuple(difflib.get_close_matches(name, known, n=2, cutoff=_CLOSE)):
                raise InputError(Trouble("--args", "is no field that the recipe has", word, None, nearest, file=file))
            unread.append(name)
        if not config.put(name, written(match.group(2))):
            raise InputError(Trouble("--args", "sets a field of what has none in the recipe", word, file=file))
    return tuple(unread)


def _known() -> set[str]:
    """The fields that are read, as overrides name them."""
    of_sections = {_dotted(name) for name in table("bridge")["arguments"]} | set(_COUNTED)
    overlaps = {f"{section}.{name}" for section in ("ddp", "comm_overlap") for name in _OVERLAPS}
    return of_sections | overlaps | {f"model.{name}" for name in table("bridge_model")["arguments"]}


def written(text: str) -> Any:
    """The value that an override writes."""
    if text.lower() in ("true", "false", "null", "none"):
        return {"true": True, "false": False}.get(text.lower())
    if text.startswith("[") and text.endswith("]"):
        return [written(part.strip()) for part in text[1:-1].split(",") if part.strip()]
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else text.strip("\"'")


def _chip(recipe: str) -> str | None:
    match = _DEVICES.search(recipe)
    return match[2] if match is not None and match[2] in chip_names() else None


def _devices(recipe: str) -> TrainingDevices:
    match = _DEVICES.search(recipe)
    if match is None:
        return TrainingDevices(None, None)
    total = int(match[1])
    return TrainingDevices(total, min(total, _NODES.get(match[2], 8)))


def _name_precision(config: Configured, recipes: Recipes, module: Module) -> None:
    """Put what a function of training/mixed_precision.py gives in the place of its name; UNCLEAR for an unknown one."""
    name = config.fields.get("mixed_precision")
    if not isinstance(name, str):
        return
    name = name.replace("-", "_")
    path = recipes.path("megatron.bridge.training.mixed_precision")
    own = None if path is None else recipes.read(path)
    where = recipes.found(module, name) or (None if own is None or name not in own.functions else (own, name))
    known = table("bridge")["precisions"].get(name)
    config.fields["mixed_precision"] = (
        recipes.called(*where) if where is not None else UNCLEAR if known is None else Configured(name, dict(known))
    )


def container_reading(name: str, recipe: str, config: Configured) -> Reading:
    """What a ConfigContainer says, of a file and a recipe of these names. Raises InputError with all that is wrong."""
    fields = _fields(name, config)
    own = config.fields["model"] if is_provider(config.fields["model"]) else None
    model = {} if own is not None else _model(name, fields)
    fields.close()
    experts = "moe" in model or fields.data.get("num_moe_experts") is not None
    _leave_out(fields, experts)
    if own is not None:
        tokens = list(provided(own, _part(config, "tokenizer"), name))
    else:
        tokens = [token for argument, size in size_arguments(model).items() for token in as_tokens(argument, size)]
        tokens += ["--attention-dropout", "0", "--hidden-dropout", "0"]
    tokens += [*fields.mapped(), *_shares(fields), *_precision(fields)]
    adapters, refusals = _adapters(config, experts)
    fields.close()
    training: dict[str, Any] = {"lora": adapters} if adapters else {}
    if "expandable_segments:True" in str(_part(config, "env_vars").get("PYTORCH_CUDA_ALLOC_CONF", "")):
        training["expandable_segments"] = True
    if _narrow(fields) and fields.data.get("mixed_precision.fp8_dot_product_attention") is True:
        training["fp8_attention"] = True
    return Reading(
        later("recipe of Megatron-Bridge"),
        tuple(tokens),
        _WHOLE if _gradients_in_fp32(fields, config) else _HALF,
        _devices(recipe),
        model=model,
        training=training,
        refusals=tuple(refusals),
        notes=(*_overlapped(fields), *_dealt_out(fields), *_in_16_bits(fields)),
        hint=str(fields.data.get("", "")),
    )


def _fields(name: str, config: Configured) -> Fields:
    """The fields of `model` and `train`, and those of other sections with their names before; none of them UNCLEAR."""
    flat = {**_part(config, "model"), "seq_length": _sequence(config), **_part(config, "train")}
    for section in ("ddp", "comm_overlap", "optimizer", "mixed_precision"):
        flat |= {f"{section}.{key}": value for key, value in _part(config, section).items()}
    if config.fields.get("mixed_precision") is UNCLEAR:
        flat["mixed_precision"] = UNCLEAR
    fields = Fields({key: value for key, value in flat.items() if value is not UNCLEAR}, name, "bridge")
    arguments = table("bridge")["arguments"]
    for key, value in flat.items():
        if value is UNCLEAR and (key in arguments or key in _COUNTED):
            allowed = say('--args "NAME {key}=VALUE"', key=_dotted(key))
            fields.trouble(key, "is not clear from the text", allowed=allowed)
        elif isinstance(value, list | tuple | dict) and key in arguments and key not in _LISTS:
            fields.trouble(key, "must be a plain value", value)
    return fields


def _leave_out(fields: Fields, experts: bool) -> None:
    """Drop what has no meaning beside the other fields, and put a list of chunks as the text that stands for it."""
    if layout := fields.data.get("pipeline_model_parallel_layout"):  # it says how many chunks there are
        fields.data["pipeline_model_parallel_layout"] = _layout(layout)
        fields.data.pop("virtual_pipeline_model_parallel_size", None)
    scopes = [fields.data.get(f"cuda_graph_{name}") for name in ("scope", "modules")]
    if fields.data.get("cuda_graph_impl") == "local" and "full_iteration" in str(scopes):
        fields.data["cuda_graph_impl"] = "full_iteration"  # as Megatron-Core has called it since
    left_out = [] if fields.data.get("fine_grained_activation_offloading") else ["offload_modules"]
    left_out += [] if fields.data.get("cpu_offloading") else ["cpu_offloading_num_layers"]
    left_out += [] if fields.data.get("moe_token_dispatcher_type") == "flex" else ["moe_flex_dispatcher_backend"]
    # None stands for Megatron-Core's own choice; an empty list has nothing recomputed (transformer_config.py).
    none = fields.data.get("recompute_granularity") == "selective" and fields.data.get("recompute_modules") == []
    left_out += ["recompute_granularity"] if none else []
    left_out += [] if experts else [key for key in fields.data if key.startswith("moe_")]
    for key in left_out:
        fields.data.pop(key, None)


def _dotted(key: str) -> str:
    """A field with its section, as overrides name it."""
    sections = {"micro_batch_size": "train", "global_batch_size": "train", "seq_length": "dataset"}
    return key if "." in key or key == "mixed_precision" else f"{sections.get(key, 'model')}.{key}"


def _part(config: Configured, section: str) -> dict[str, Any]:
    held = config.fields.get(section)
    return held.plain() if isinstance(held, Configured) else dict(held) if isinstance(held, dict) else {}


def _sequence(config: Configured) -> Any:
    data = _part(config, "dataset")
    given = data.get("seq_length", data.get("sequence_length", UNCLEAR))
    return _part(config, "model").get("seq_length", UNCLEAR) if given is UNCLEAR else given


def _model(name: str, fields: Fields) -> dict[str, Any]:
    """The architecture that the recipe takes from Hugging Face, with the sizes that it sets itself."""
    named = fields.data.get("")
    if not isinstance(named, str):
        fields.trouble("model", "is neither named, AutoBridge.from_hf_pretrained, nor of a provider that is read here")
        return {}
    model = named_fields(named, name, "model")
    model |= {ours: fields.data[theirs] for theirs, ours in _SHAPE.items() if isinstance(fields.data.get(theirs), int)}
    for key in table("bridge_model")["arguments"]:
        if fields.data.get(key) is not None and key not in (*_SHAPE, *_ELSE):
            fields.trouble(f"model.{key}", "changes the shape of a model that is named: that is not read")
    for theirs, ours in _MODULES.items():
        if theirs in fields.data:
            model[ours] = fields.data[theirs] or None
    return {name: value for name, value in model.items() if value is not None or name not in _MODULES.values()}


def _layout(layout: Any) -> Any:
    """A list of chunks, each of its layers' names, as Megatron-Core's text has it."""
    if not isinstance(layout, list) or not all(isinstance(chunk, list) for chunk in layout):
        return layout
    return "|".join("".join(_LETTERS.get(str(layer), "?") for layer in chunk) for chunk in layout)


def _overlapped(fields: Fields) -> list[str]:
    """Notes on overlaps that the stack counts on and the recipe has not; comm_overlap's word counts before ddp's."""
    split = fields.data.get("tensor_model_parallel_size") not in (None, 1)
    asked = [name for name in _OVERLAPS if name != "tp_comm_overlap" or split]
    said = {name: fields.data.get(f"comm_overlap.{name}") for name in asked}
    said = {name: fields.data.get(f"ddp.{name}") if value is None else value for name, value in said.items()}
    told = later("{name} is off, and the stack counts on it: time is predicted too short")
    return [say(told, name=name) for name, value in said.items() if value is False]


def _dealt_out(fields: Fields) -> Iterator[str]:
    """A note where an optimizer of whole weights goes without the distributed optimizer's buffers."""
    shared = any(fields.data.get(f"{section}.use_distributed_optimizer") is True for section in ("ddp", "optimizer"))
    if fields.data.get("optimizer.optimizer") == "dist_muon" and not shared:
        yield say(
            "dist_muon without ddp.use_distributed_optimizer deals out whole weights and sums gradients everywhere, "
            "which no plan says: memory is predicted too high"
        )


def _in_16_bits(fields: Fields) -> Iterator[str]:
    """A note where more layers than one at either end, the usual ones, are left out of 8 or 4 bits."""
    on, *counts = (fields.data.get(f"mixed_precision.{name}") for name in _AT_ENDS)
    left_out = sum(count for count in counts if isinstance(count, int))
    if on is True and _narrow(fields) and left_out > 2:
        told = later("{count} layers at the ends stay in 16 bits: time is predicted too short")
        yield say(told, count=left_out)


def _narrow(fields: Fields) -> bool:
    """Products of layers are in 8 or 4 bits."""
    return any(isinstance(fields.data.get(f"mixed_precision.{name}"), str) for name in ("fp8", "fp4"))


def _shares(fields: Fields) -> Iterator[str]:
    """What replicas share out, and the precision of what they keep."""
    if fields.data.get("optimizer.use_distributed_optimizer") is True:  # either section says it for both
        yield "--use-distributed-optimizer"
    if fields.data.get("ddp.use_megatron_fsdp") is True:
        yield "--use-megatron-fsdp"
        yield from as_tokens("data-parallel-sharding-strategy", fields.data.get("ddp.data_parallel_sharding_strategy"))
    if fields.data.get("optimizer.use_precision_aware_optimizer") is True:
        yield "--use-precision-aware-optimizer"
        for name in ("main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"):  # main_params_dtype: fp32 everywhere
            if (half := _HALVES.get(str(fields.data.get(f"optimizer.{name}")))) is not None:
                yield from (f"--{name.replace('_', '-')}", half)


def _precision(fields: Fields) -> Iterator[str]:
    held = {name: fields.data.get(f"mixed_precision.{name}") for name in _PRECISION}
    yield "--fp16" if held["fp16"] is True else "--bf16"
    if isinstance(held["fp8"], str):
        yield from as_tokens("fp8-format", held["fp8"])
        yield from as_tokens("fp8-recipe", held["fp8_recipe"] or "tensorwise")  # MixedPrecisionConfig's own
    if isinstance(held["fp4"], str):
        yield from as_tokens("fp4-format", held["fp4"])
        if held["fp4_param_gather"] is True:
            yield "--fp4-param-gather"
    if held["fp8_param_gather"] is True or held["fp8_param"] is True:
        yield "--fp8-param-gather"


def _gradients_in_fp32(fields: Fields, config: Configured) -> bool:
    """What the setup of mixed precision says, over what ddp has."""
    said = fields.data.get("ddp.grad_reduce_in_fp32")
    if isinstance(config.fields.get("mixed_precision"), Configured):
        said = fields.data.get("mixed_precision.grad_reduce_in_fp32", True)
    return said is not False


def _adapters(config: Configured, experts: bool) -> tuple[dict[str, Any], list[str]]:
    """The spec's `lora`; why no plan says what is trained."""
    peft = config.fields.get("peft")
    if peft is None or peft is UNCLEAR:
        return {}, []
    if not isinstance(peft, Configured) or peft.kind != "LoRA":
        kind = peft.kind if isinstance(peft, Configured) else str(peft)
        return {}, [say("peft {kind}: no plan says what is trained", kind=kind)]
    unclear = [name for name, value in peft.plain().items() if value is UNCLEAR and name in _LORA]
    if unclear or peft.fields.get("experts_shared_outer_loras") is True:
        kind = ", ".join(unclear) or "experts_shared_outer_loras"
        return {}, [say("peft {kind}: no plan says what is trained", kind=kind)]
    given = {ours: peft.fields[theirs] for theirs, ours in _LORA.items() if peft.fields.get(theirs) is not None}
    lora = {"rank": 32, "dropout": 0.0, **given}
    if not experts or lora.get("share_expert_adapters") is True:
        lora.pop("share_expert_adapters", None)
    return lora, []
