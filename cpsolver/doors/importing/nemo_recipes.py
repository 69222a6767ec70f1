"""Recipes of NeMo 2, read as text, as the configuration of Megatron-Bridge that says the same.

A recipe is a function of a Python file that gives run.Partial(pretrain, model=..., trainer=..., data=..., optim=...);
what it calls, and the class of the model's configuration, are read in the checkout around it. Read in NeMo v2.4.0
(2381f42f), below nemo: collections/llm/recipes, collections/llm/gpt/model, lightning/pytorch/strategies
(megatron_strategy.py), lightning/pytorch/plugins (mixed_precision.py: what it says of types replaces what others do).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cpsolver.doors.importing.bridge_recipes import container_reading, written
from cpsolver.doors.importing.command import TrainingDevices
from cpsolver.doors.importing.framework import FrameworkGuess
from cpsolver.doors.importing.reading import Reading, table
from cpsolver.doors.importing.recipe_text import Module, Recipes
from cpsolver.doors.importing.recipe_values import UNCLEAR, Configured
from cpsolver.doors.importing.scope import OutOfScopeError
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import later, say

_HALF = FrameworkGuess("nemo", None, later("a recipe of NeMo 2, gradients in 16 bits"))
_WHOLE = FrameworkGuess("megatron-core-2024", None, later("a recipe of NeMo 2, gradients in fp32, tp_comm_overlap"))
_PLAIN = FrameworkGuess("megatron-core", None, later("a recipe of NeMo 2, gradients in fp32"))
_TELLS = re.compile(r"^\s*(?:import nemo_run|from nemo_run import)\b", re.MULTILINE)
_USUAL = "pretrain_recipe"
_BASES = {
    "MLATransformerConfig": "MLAModelProvider",
    "SSMConfig": "HybridModelProvider",
    "GPTConfig": "GPTModelProvider",
}
"""Classes that a model's configuration extends -> Megatron-Bridge's with the same defaults (ssm.py has its own)."""
_GPT = "GPTConfig, SSMConfig"
_MODELS = "nemo.collections.llm.gpt.model"
_FORMULAS = {"torch.pow(F.relu(x), 2)": "squared_relu"}
"""Activations that a class writes out."""
_OVERLAPS = "MegatronCommOverlapCallback"
_OTHERS = {"DeepEPCallback": {"moe_token_dispatcher_type": "flex", "moe_enable_deepep": True}}
"""Callbacks that set fields of the model (lightning/pytorch/callbacks)."""
_OVERRIDE = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*)=(.*)", re.DOTALL)
_WINDOWS = ("MockDataModule", "PreTrainingDataModule")
"""Data in windows of one length."""
_COUNTED = (
    *(
        "trainer.strategy.",
        "trainer.plugins.",
        "trainer.num_nodes",
        "trainer.devices",
        "model.config.",
        "optim.config.",
    ),
    *("data.seq_length", "data.micro_batch_size", "data.global_batch_size", "data.packed_sequence_specs", "peft."),
)
"""Starts of overrides that are read, or told of."""
_MOST_CLASSES = 40
_NAMES = ("", "pretrained_model_name", "model_name")
"""Where a tokenizer's configuration has its name; the first is the argument by place."""


def is_nemo_recipe(text: str) -> bool:
    """Whether a text is a Python file on NeMo 2's configurations."""
    return _TELLS.search(text) is not None


def read_nemo_recipe(name: str, text: str, words: Sequence[str]) -> Reading:
    """The recipe that the first of the words names, else the one that trains from the start; `NAME=VALUE` of the others
    are its arguments, and `section.field=VALUE` overrides.

    Raises InputError for what its text leaves unclear and a plan needs.
    """
    recipes = Recipes(_root(Path(name)))
    module = recipes.read(Path(name), text)
    chosen, rest = _chosen(name, module, words)
    arguments, overrides = _split(name, module.functions[chosen], rest)
    recipe = recipes.called(module, chosen, arguments)
    if not isinstance(recipe, Configured) or not isinstance(recipe.fields.get("model"), Configured):
        told = say("gives no configuration that can be read: what it calls is not in a checkout above the file")
        raise InputError(Trouble(chosen, told, allowed=say("a file in NeMo's folder"), file=name))
    for field, value in overrides.items():
        if field.partition(".")[0] not in recipe.fields or not recipe.put(field, value):
            raise InputError(Trouble("--args", "sets a field of what has none in the recipe", field, file=name))
    config = _container(name, recipe, recipes)
    overlapped = config.get("comm_overlap.tp_comm_overlap") is True
    narrow = config.get("mixed_precision.grad_reduce_in_fp32") is False
    _clear(name, config)
    config.put("comm_overlap.tp_comm_overlap", overlapped or None if not narrow else overlapped)
    reading = container_reading(name, chosen, config)
    return replace(
        reading,
        kind=later("recipe of NeMo 2"),
        framework=_HALF if narrow else _WHOLE if overlapped else _PLAIN,
        launched=_devices(recipe),
        refusals=(*reading.refusals, *_refusals(recipe)),
        notes=(*_padded(recipe), *reading.notes),
        unread=(*_unread(recipe, config), *(field for field in overrides if not field.startswith(_COUNTED))),
        hint=f"{Path(name).stem} {chosen}",
    )


def _root(file: Path) -> Path | None:
    places = file.absolute().parents
    return next((place for place in places if (place / "nemo" / "collections" / "llm").is_dir()), None)


def _chosen(name: str, module: Module, words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The recipe, and the words that are not its name."""
    known = [each for each in module.functions if each.endswith("recipe")]
    if words and "=" not in words[0]:
        if words[0] in module.functions:
            return words[0], words[1:]
        shown = say("--args NAME of: {names}", names=", ".join(known))
        raise InputError(Trouble("--args", "is no recipe of the file", words[0], shown, file=name))
    if _USUAL in known or len(known) == 1:
        return _USUAL if _USUAL in known else known[0], words
    told = (
        say("has several recipes: name one of them") if known else say("has no function that gives a recipe of NeMo 2")
    )
    allowed = (
        say("--args NAME of: {names}", names=", ".join(known))
        if known
        else say("a file of nemo/collections/llm/recipes")
    )
    raise InputError(Trouble("--args" if known else "", told, None, allowed, file=name))


def _split(name: str, node: ast.FunctionDef, words: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of the recipe's function, and overrides of fields."""
    own = {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
    arguments: dict[str, Any] = {}
    overrides: dict[str, Any] = {}
    for word in words:
        match = _OVERRIDE.fullmatch(word)
        if match is None or ("." not in match[1] and match[1] not in own):
            shown = say("section.field=value, or an argument of the recipe: {names}", names=", ".join(sorted(own)))
            raise InputError(Trouble("--args", "is no override", word, shown, file=name))
        (overrides if "." in match[1] else arguments)[match[1]] = written(match[2])
    return arguments, overrides


def _container(name: str, recipe: Configured, recipes: Recipes) -> Configured:
    """The recipe's parts where Megatron-Bridge has them."""
    strategy, plugin = recipe.get("trainer.strategy"), recipe.get("trainer.plugins")
    if not isinstance(strategy, Configured) or strategy.kind != "MegatronStrategy":
        kind = strategy.kind if isinstance(strategy, Configured) else None
        told = say("is no MegatronStrategy: only training by Megatron-Core is read from NeMo 2")
        raise InputError(Trouble("trainer.strategy", told, kind, "MegatronStrategy", file=name))
    callbacks = recipe.get("trainer.callbacks")
    called = [each for each in callbacks if isinstance(each, Configured)] if isinstance(callbacks, list) else []
    overlap: dict[str, Any] = {}
    for each in called:
        overlap |= each.fields if each.kind == _OVERLAPS else {}
    model = _model(name, recipe, recipes)
    model.fields |= {key: value for each in called for key, value in _OTHERS.get(each.kind, {}).items()}
    parallel = table("nemo2")["parallel"].split()
    model.fields |= {key: strategy.fields[key] for key in parallel if strategy.fields.get(key) is not None}
    data, ddp = recipe.get("data"), strategy.fields.get("ddp")
    found = data.fields if isinstance(data, Configured) else {}
    tokenizer = found.get("tokenizer")
    names = [tokenizer.fields.get(key) for key in _NAMES] if isinstance(tokenizer, Configured) else []
    named = next((name for name in names if isinstance(name, str)), None)
    sizes = {key: found.get(key, UNCLEAR) for key in ("micro_batch_size", "global_batch_size")}
    return Configured(
        "ConfigContainer",
        {
            "model": model,
            "train": Configured("", sizes),
            "dataset": Configured("", {"seq_length": found.get("seq_length", UNCLEAR)}),
            "tokenizer": Configured("", {} if named is None else {"tokenizer_model": named}),
            "ddp": Configured("", _ddp(ddp.fields) if isinstance(ddp, Configured) else {}),
            "optimizer": _optimizer(recipe),
            "mixed_precision": _precision(plugin),
            "comm_overlap": Configured("", overlap),
            "strategy": strategy,
            **({"peft": recipe.fields["peft"]} if recipe.fields.get("peft") is not None else {}),
        },
    )


def _clear(name: str, config: Configured) -> None:
    """Raises InputError with the fields that a plan needs and the text leaves open, by their places in the recipe."""
    parallel = table("nemo2")["parallel"].split()
    read = {*table("bridge")["arguments"], *table("bridge_model")["arguments"]}
    open_ = ["trainer.plugins"] if config.fields["mixed_precision"] is UNCLEAR else []
    for section in ("train", "dataset"):
        open_ += [f"data.{key}" for key, value in config.fields[section].fields.items() if value is UNCLEAR]
    for key, value in config.fields["model"].fields.items():
        if value is UNCLEAR and key in read:
            open_.append(f"{'trainer.strategy' if key in parallel else 'model.config'}.{key}")
    for section, place in (("ddp", "trainer.strategy.ddp"), ("optimizer", "optim.config")):
        held = config.fields[section].fields.items()
        open_ += [f"{place}.{key}" for key, value in held if value is UNCLEAR and f"{section}.{key}" in read]
    told = "is not clear from the text"
    if open_:
        raise InputError(
            [Trouble(key, told, allowed=say('--args "NAME {key}=VALUE"', key=key), file=name) for key in open_]
        )


def _ddp(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of what replicas share out: FSDP by its former name, and how it shards only beside it."""
    found = dict(fields)
    if found.pop("use_custom_fsdp", False) or found.get("use_megatron_fsdp"):
        return {**found, "use_megatron_fsdp": True}
    found.pop("data_parallel_sharding_strategy", None)
    return found


def _optimizer(recipe: Configured) -> Configured:
    config = recipe.get("optim.config")
    return config if isinstance(config, Configured) else Configured("", {"optimizer": UNCLEAR})


def _precision(plugin: Any) -> Any:
    """The plugin's fields by Megatron-Bridge's names, with NeMo's defaults where they are others."""
    for each in plugin if isinstance(plugin, list) else ():
        plugin = each if isinstance(each, Configured) and each.kind == "MegatronMixedPrecision" else plugin
    if not isinstance(plugin, Configured) or plugin.fields.get("precision") not in ("bf16-mixed", "16-mixed"):
        return UNCLEAR
    fields = {"fp8_recipe": "delayed", "grad_reduce_in_fp32": True, **plugin.fields}
    fields["fp16"] = plugin.fields["precision"] == "16-mixed"
    if fields.get("fp8_param_gather") is None:
        fields["fp8_param_gather"] = fields.get("fp8_params") or False
    return Configured(plugin.kind, fields)


def _model(name: str, recipe: Configured, recipes: Recipes) -> Configured:
    """The fields of the model's configuration, on those of its class. Raises InputError for one that is no GPT's."""
    config = recipe.get("model.config")
    kind = config.kind if isinstance(config, Configured) else ""
    for pattern, what in table("nemo2")["scope"].items():
        if re.search(pattern, kind):
            told = say("is {what}: only the training of a decoder is planned", what=say(what))
            raise OutOfScopeError(Trouble("model.config", told, kind, file=name))
    names: list[str] = []
    path = recipes.path(_MODELS)
    if path is not None:  # names of classes that a recipe does not import itself
        recipes.read(path)
    fields = dict(_inherited(recipes, kind, None, names)) if kind else {}
    provider = next((ours for theirs, ours in _BASES.items() if theirs in names), None)
    if not isinstance(config, Configured) or provider is None or not fields:
        told = say("is of no class that is read here: those on {base}, in the checkout above the file", base=_GPT)
        raise InputError(Trouble("model.config", told, kind or None, file=name))
    return Configured(provider, {**fields, **config.fields})


def _inherited(recipes: Recipes, name: str, module: Module | None, names: list[str]) -> Iterator[tuple[str, Any]]:
    """The fields of a class, after those of the classes that it extends; the names of all go to `names`."""
    names.append(name)
    found = recipes.class_named(name, module)
    if found is None or len(names) > _MOST_CLASSES:
        return
    module, node = found
    for base in reversed(node.bases):
        if isinstance(base, ast.Name):
            yield from _inherited(recipes, base.id, module, names)
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.value is not None:
            yield each.target.id, recipes.value(module, _default(each.value))


def _default(node: ast.expr) -> ast.expr:
    """The expression of a field's default, inside dataclasses' field() too."""
    match node:
        case ast.Call(
            func=ast.Name(id="field"), keywords=[ast.keyword(arg="default_factory", value=ast.Lambda(body=inner))]
        ):
            return inner
        case ast.Call(func=ast.Name(id="field"), keywords=[ast.keyword(arg="default", value=inner)]):
            return inner
        case ast.Lambda(body=body) if (named := _FORMULAS.get(ast.unparse(body))) is not None:
            return ast.Constant(named)
    return node


def _devices(recipe: Configured) -> TrainingDevices:
    nodes, each = recipe.get("trainer.num_nodes"), recipe.get("trainer.devices")
    each = each if isinstance(each, int) and each > 0 else None
    return TrainingDevices(nodes * each if isinstance(nodes, int) and each else None, each)


def _refusals(recipe: Configured) -> Iterator[str]:
    for field in ("fsdp", "moe_extended_tp", "use_tp_pp_dp_mapping"):
        if recipe.get(f"trainer.strategy.{field}") not in (None, False):
            yield say(
                "{name}: {what}, which no plan knows",
                name=f"trainer.strategy.{field}",
                what=say("what it does in NeMo 2"),
            )


def _padded(recipe: Configured) -> Iterator[str]:
    """A note where sequences are not cut to one length: data of tunings, not packed."""
    data = recipe.get("data")
    if isinstance(data, Configured) and data.kind not in _WINDOWS and not data.fields.get("packed_sequence_specs"):
        told = later("sequences are as long as their data; they are taken as long as {name} here")
        yield say(told, name="data.seq_length")


def _unread(recipe: Configured, config: Configured) -> Iterator[str]:
    """Fields that the recipe sets and nothing here reads."""
    known = {*table("bridge")["arguments"], *table("bridge_model")["arguments"], *table("nemo2")["parallel"].split()}
    harmless = tuple(table("nemo2")["harmless"].split())
    strategy: Mapping[str, Any] = config.fields["strategy"].fields
    own: Mapping[str, Any] = recipe.fields["model"].fields["config"].fields
    named = [(key, value) for key, value in (*strategy.items(), *own.items()) if key != "ddp"]
    for section in ("ddp", "optimizer"):
        named += [(f"{section}.{key}", value) for key, value in config.fields[section].fields.items()]
    for key, value in named:
        counted = key in known or key.startswith(harmless) or key.startswith("optimizer.use_") or value in (None, False)
        if not counted:
            yield key
