"""Primus' YAML: an experiment on presets of its checkout, with Megatron-LM's arguments as settings of the same names.

Read in AMD-AGI/Primus fd1eeabb, below primus: core/launcher/parser.py (module, model, then overrides),
core/config/yaml_loader.py (`extends`, `${NAME:default}`), backends/megatron/patches (args/rocm_arg_validation.py,
turbo/moe_dispatcher_patches.py), configs/modules/megatron (zero_bubble.yaml, primus_pipeline.yaml).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cpsolver.doors.importing import arguments
from cpsolver.doors.importing.command import TrainingDevices
from cpsolver.doors.importing.framework import FrameworkGuess
from cpsolver.doors.importing.hydra import merged
from cpsolver.doors.importing.reading import Fields, Reading, as_scalar, as_tokens
from cpsolver.doors.importing.scope import OutOfScopeError, names_with_words
from cpsolver.inputs.document import load_yaml
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import later, say

_NARROW = FrameworkGuess("primus", None, later("a configuration of Primus, with gradients in 16 bits"))
_WIDE = FrameworkGuess("megatron-core", None, later("a configuration of Primus, with gradients in fp32"))
_PRESETS = Path("primus") / "configs"
_NODE = 8
"""Devices of a node that examples/run_pretrain.sh starts by default."""
_VARIABLE = re.compile(r"\$\{([^:{}]+)(?::([^}]*))?\}")
_SCALARS: dict[str, Any] = {"true": True, "false": False, "null": None, "none": None}
_SWITCHES = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
"""Texts that PyYAML takes for truth values."""
GIVEN = "="
"""Before the name of a variable whose value the user gives (`imported._with_given`)."""
_ALGORITHMS = ("1f1b", "1f1b-interleaved", "zero-bubble", "zero-bubble-heuristic", "zbv-formatted", "v-half", "v-min")
_CHUNKS = ("num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size")
_RECOMPUTATION = ("recompute_granularity", "recompute_method", "recompute_num_layers")
_V_SETUPS = {"zbv-formatted": "zb", "v-half": "half", "v-min": "min"}
"""Algorithms of Primus' own pipeline, and the setup of the authors' fork that each is."""
_DEEPEP_FROM = 2
"""Stage of experts without waiting for the host from which Turbo's DeepEP is on."""


def read_primus(name: str, data: dict[str, Any]) -> Reading:
    """An experiment, whose presets are in the checkout that it stands in."""
    module = _module(name, data)
    taken: dict[str, str] = {}
    presets = _checkout(name)
    preset = _text(_known(module.get("config"), taken), "config", name)
    model = _text(_known(module.get("model"), taken), "model", name)
    read = _Presets(presets, taken, name)
    base = read.settings(Path("models", "megatron", model)) | read.settings(Path("modules", "megatron", preset))
    overrides = _known(module.get("overrides") or {}, taken)
    if not isinstance(overrides, dict):
        raise InputError(Trouble("overrides", "must hold fields", overrides, file=name))
    settings = merged(base, overrides)
    if settings.get("pipeline_model_parallel_layout"):  # which says the number of chunks
        settings |= dict.fromkeys(_CHUNKS)
    if settings.get("recompute_layer_ids"):  # which no plan knows: its method need not be named
        settings |= dict.fromkeys(_RECOMPUTATION)
    if (kind := settings.get("model_type", "gpt")) != "gpt":
        said = say("is a model of type {kind}: only Megatron's GPT is read from Primus", kind=kind)
        raise OutOfScopeError(Trouble("model_type", said, file=name))
    fields = Fields(settings, name, "primus")
    fields.refuse()
    tokens = (*_plain(fields), *fields.mapped(), *_own(fields))
    fields.close()
    return Reading(
        later("configuration of Primus"),
        tokens,
        _NARROW if _sums_narrow(fields) else _WIDE,
        TrainingDevices(None, _NODE),
        refusals=tuple(_refusals(fields)),
        notes=(*_notes(taken), *_beside(fields)),
        unread=tuple(key for key in fields.unread() if key in overrides),
        hint=model.removesuffix(".yaml"),
    )


def _module(name: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """The section of what trains."""
    modules = data.get("modules")
    found = [each for each in (modules if isinstance(modules, dict) else {}).values() if isinstance(each, dict)]
    for each in found:
        if each.get("framework") == "megatron":
            return each
    frameworks = ", ".join(str(each.get("framework")) for each in found)
    raise OutOfScopeError(Trouble("modules", say("none trains by Megatron-LM"), frameworks, "megatron", file=name))


def _checkout(name: str) -> Path:
    """The folder of the presets, above the experiment."""
    above = [] if name == "<stdin>" else Path(name).absolute().parents
    for folder in above:
        if (folder / _PRESETS).is_dir():
            return folder / _PRESETS
    allowed = say("the file in its checkout of Primus")
    raise InputError(Trouble("", say("needs the presets in {folder}", folder=_PRESETS), allowed=allowed, file=name))


def _text(value: Any, field: str, name: str) -> str:
    """The file of a preset, which is named with or without its ending."""
    if not isinstance(value, str) or not value:
        raise InputError(Trouble(field, "must be a text", value, file=name))
    return value if value.endswith((".yaml", ".yml")) else f"{value}.yaml"


_EXTENDED = {"includes": -1, "bases": -1, "extends": 1}
"""How a preset names others, of which the last counts (1) or the first; until 2025 by the two names before `extends`
(AMD-AIG-AIMA/Primus 2d42400: primus/core/utils/yaml_utils.py)."""


class _Presets:
    """The presets of a checkout, each read once; `taken`: as `_known`, `name`: the experiment's."""

    def __init__(self, folder: Path, taken: dict[str, str], name: str) -> None:
        self._folder, self._taken, self._name = folder, taken, name
        self._read: dict[Path, dict[str, Any] | None] = {}

    def settings(self, preset: Path) -> dict[str, Any]:
        """A preset's settings, on those that it extends."""
        path = self._file(preset)
        if path is None or self._read.get(path, {}) is None:  # the latter extends itself
            raise InputError(Trouble(preset.name, say("is no preset beside the others"), file=self._name))
        if (known := self._read.get(path)) is not None:
            return known
        self._read[path] = None
        data: dict[str, Any] = _known(load_yaml(path).data, self._taken)
        found: dict[str, Any] = {}
        for extended, step in [(data.pop(name, None) or [], step) for name, step in _EXTENDED.items()]:
            for each in (extended if isinstance(extended, list) else [extended])[::step]:
                found = merged(found, self.settings(preset.parent / str(each)))
        self._read[path] = found = merged(found, data)
        return found

    def _file(self, preset: Path) -> Path | None:
        """The file of a preset; None where there is none in the folder."""
        try:
            path, folder = (self._folder / preset).resolve(), self._folder.resolve()
            return path if path.is_relative_to(folder) and path.is_file() else None
        except (OSError, RuntimeError, ValueError):  # what no file can be named, or names itself
            return None


def _known(value: Any, taken: dict[str, str]) -> Any:
    """A setting with the defaults of what the environment may set, which go to `taken`."""
    if isinstance(value, dict):
        return {key: _known(part, taken) for key, part in value.items()}
    if isinstance(value, list):
        return [_known(part, taken) for part in value]
    if not isinstance(value, str) or not _VARIABLE.search(value):
        return value
    taken |= {found[1]: found[2] or "" for found in _VARIABLE.finditer(value) if not found[1].startswith(GIVEN)}
    return as_scalar(_VARIABLE.sub(lambda found: found[2] or "", value), _SCALARS)


def _plain(fields: Fields) -> Iterator[str]:
    """Settings that are arguments under the same name, of those that import uses; presets give every one there is."""
    names, elsewhere = arguments.table(), {*fields.known["arguments"], *fields.known["own"].split()}
    for switch, of_it in fields.known["only_with"].items():
        if fields.data.get(switch) in (None, False):
            elsewhere |= set(of_it.split())
    for key, value in fields.data.items():
        argument = key.replace("_", "-")
        if key in elsewhere or argument not in names["used"] | names_with_words():
            continue
        fields.has(key)
        if isinstance(value, list) and argument in names["one"]:
            value = _listed(fields, key, value)
        if isinstance(value, dict):
            fields.trouble(key, "must be a plain value", value)
            continue
        yield from as_tokens(argument, _switch(fields, key, value) if argument in names["flag"] else value)


def _switch(fields: Fields, key: str, value: Any) -> bool:
    """A setting that is on or off."""
    if isinstance(value, str) and value.lower() not in _SWITCHES:
        fields.trouble(key, "must be true or false", value)
    return _SWITCHES.get(value.lower(), False) if isinstance(value, str) else bool(value)


def _listed(fields: Fields, key: str, value: list[Any]) -> Any:
    """A list for an argument of one value: kinds of layers one by one, or the first of a window's sides."""
    if key == "window_size":
        return value[0] if value else None
    if key != "window_attn_skip_freq":
        return str(value)
    every = value.index(0) + 1 if 0 in value else 0
    if every < 2 or value != [int((layer + 1) % every > 0) for layer in range(len(value))]:
        fields.trouble(key, say("layers with windows in no regular order: that is not planned for"), value)
    return every


def _sums_narrow(fields: Fields) -> bool:
    """Gradients are summed in 16 bits, as stack primus has it."""
    aware = fields.flag("use_precision_aware_optimizer") and fields.text("main_grads_dtype") == "bf16"
    return fields.flag("grad_reduce_in_bf16") or aware


def _own(fields: Fields) -> Iterator[str]:
    """Settings that Primus alone has, or whose argument is their opposite."""
    if fields.has("add_bias_linear") and not fields.flag("add_bias_linear"):
        yield "--disable-bias-linear"
    stage = fields.number("turbo_sync_free_moe_stage", 0, least=0) or 0
    if fields.flag("use_turbo_deepep") or stage >= _DEEPEP_FROM:
        yield from ("--moe-token-dispatcher-type", "flex", "--moe-enable-deepep")
    if fields.flag("use_sink_attention"):
        yield from ("--softmax-type", "learnable")
        every_second = fields.flag("sink_window_even_layers_only", True)
        name = "interleave-sliding-window" if every_second else "sliding-window-size"
        yield from as_tokens(name, fields.number("sink_sliding_window", 0, least=0) or None)
    yield from _adapters(fields)
    if fields.flag("patch_zero_bubble"):
        setup = fields.text("zero_bubble_v_schedule_mem_setup", "zb") if fields.flag("zero_bubble_v_schedule") else None
        yield from _zero_bubble(setup)
    if fields.flag("patch_primus_pipeline"):
        algorithm = fields.choice("pp_algorithm", dict(zip(_ALGORITHMS, _ALGORITHMS, strict=True)), "1f1b")
        if algorithm.startswith("zero-bubble") or algorithm in _V_SETUPS:
            yield from _zero_bubble(_V_SETUPS.get(algorithm))


def _adapters(fields: Fields) -> Iterator[str]:
    """LoRA, as MindSpeed-LLM's arguments have it."""
    lora = fields.section("lora")
    if not lora.get("enabled"):
        return
    targets = lora.get("target_modules")
    if not isinstance(targets, list) or not targets:
        fields.trouble("lora", say("names no target_modules"), lora)
        return
    yield from as_tokens("lora-r", lora.get("dim"))
    yield from as_tokens("lora-target-modules", targets)


def _zero_bubble(setup: str | None) -> Iterator[str]:
    """The arguments of the authors' fork; `setup`: of stages placed as a V."""
    yield "--enable-zero-bubble"
    if setup is not None:
        yield from ("--zero-bubble-v-schedule", "--zero-bubble-v-schedule-mem-setup", setup)


def _refusals(fields: Fields) -> Iterator[str]:
    """Why no plan says what these settings do."""
    for name, what in fields.known["plan"].items():
        if fields.has(name) and fields.data[name] not in (False, 0, [], ""):
            yield say("{name}: {what}, which no plan knows", name=name, what=say(what))


def _beside(fields: Fields) -> Iterator[str]:
    """What the plan does not hold, and which way predictions err."""
    for name, what in fields.known["beside"].items():
        if fields.has(name) and fields.data[name] not in (False, 0):
            yield say("{names} is not in the plan: {what}", names=name, what=say(what))


def _notes(taken: Mapping[str, str]) -> tuple[str, ...]:
    """What the environment may set, and is taken for."""
    if not taken:
        return ()
    shown = ", ".join(f"{name}={value}" for name, value in taken.items() if not name.startswith(_ELSEWHERE))
    told = say("defaults are taken for what the environment or the command line may set: {shown}", shown=shown)
    return (told,) if shown else ()


_ELSEWHERE = ("PRIMUS_TEAM", "PRIMUS_USER", "PRIMUS_EXP", "PRIMUS_WORKSPACE", "PRIMUS_TOKENIZED")
"""Variables that name runs and files."""
