"""torchtitan's configurations as Python functions (since 0.3), read as text, as the sections of its TOML.

A function of a config_registry.py gives a Trainer.Config. Read in torchtitan b5bcd76c: config/configs.py (names and
defaults: tokens of a microbatch for sequences, microbatches for the replica's batch), trainer.py, models/*/
config_registry.py. Before that release converters are a section, and what is recomputed is named as in the TOML of 0.2
(felipemello1/torchtitan fa8e6ccc, trainer.py and config/configs.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cpsolver.doors.importing.bridge_recipes import written
from cpsolver.doors.importing.framework import FrameworkGuess
from cpsolver.doors.importing.reading import Reading
from cpsolver.doors.importing.recipe_text import Module, Recipes
from cpsolver.doors.importing.recipe_values import UNCLEAR, Configured
from cpsolver.doors.importing.torchtitan_files import read_torchtitan
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import later, say

_TELLS = re.compile(r"^\s*(?:from|import) torchtitan\b", re.MULTILINE)
_FRAMEWORK = FrameworkGuess("torchtitan-2026", "torchtitan", later("a configuration of torchtitan"))
_DEFINES = re.compile(r"^def (\w+)\([^)]*\)\s*->\s*[\"']?\w*Trainer\.Config[\"']?\s*:", re.MULTILINE)
_KEPT = ("model_registry", "default_adamw")
"""Functions that are not followed: their first argument is the flavor, the others say what is changed in it."""
_MODES = {
    "FullAC": {"mode": "full"},
    "SelectiveAC": {"mode": "selective", "selective_ac_option": "op"},
    "none": {"mode": "none"},
}
_FORMER_POLICY = "ActivationCheckpointConfig"
_UNSAID = {"selective_ac_option": "2 or op"}
"""Its default; the latter since April 2026 (PraMamba/torchtitan 8d6e1828)."""
_FORMER = ("local_batch_size", "seq_len")
"""Fields of the training before 0.3."""
_IMPLEMENTED = ("fused", "foreach", "for-loop")
_OVERRIDE = re.compile(r"(?:--)?([A-Za-z_]\w*(?:\.\w+)+)=(.*)", re.DOTALL)
_TOKENS, _LENGTH = "num_tokens_per_microbatch_per_dp_rank", "max_context_length"
_STEP = "num_tokens_per_train_step"
_DEFAULTS = {_TOKENS: 16384, _LENGTH: 2048, _STEP: -1}
_PIPED = ("num_pp_microbatches", "pipeline_parallel_degree")


def is_registry(text: str) -> bool:
    """Whether a text is a Python file with configurations of torchtitan."""
    return _TELLS.search(text) is not None and _DEFINES.search(text) is not None


def read_registry(name: str, text: str, words: Sequence[str]) -> Reading:
    """The configuration that the first of the words names (the only one without), with the overrides of the others.

    Raises InputError where several may be meant, and for what its text leaves unclear and a plan needs.
    """
    recipes = Recipes(None, kept=_KEPT)
    module = recipes.read(Path(name), text)
    chosen, rest = _chosen(name, module, _DEFINES.findall(text), words)
    config = recipes.called(module, chosen)
    if not isinstance(config, Configured):
        raise InputError(Trouble(chosen, say("gives no configuration that can be read"), file=name))
    for word in rest:
        match = _OVERRIDE.fullmatch(word)
        if match is None or not config.put(match[1], written(match[2])):
            raise InputError(Trouble("--args", "sets a field of what has none in the recipe", word, file=name))
    return replace(read_torchtitan(name, _sections(name, config)), framework=_FRAMEWORK)


def _chosen(name: str, module: Module, known: Sequence[str], words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The configuration's function, and the words that are not its name."""
    if words and "=" not in words[0]:
        if words[0] in module.functions:
            return words[0], words[1:]
        shown = say("--args NAME of: {names}", names=", ".join(known))
        raise InputError(Trouble("--args", "is no recipe of the file", words[0], shown, file=name))
    if len(known) == 1:
        return known[0], words
    told = say("has several recipes: name one of them")
    raise InputError(Trouble("--args", told, None, say("--args NAME of: {names}", names=", ".join(known)), file=name))


def _sections(name: str, config: Configured) -> dict[str, dict[str, Any]]:
    """What the configuration says, as the sections of a TOML of 0.2."""
    plain = config.plain()
    training, parallelism = (_part(name, plain, section) for section in ("training", "parallelism"))
    spec = config.fields.get("model_spec")
    if not isinstance(spec, Configured):
        raise InputError(Trouble("model_spec", "is not clear from the text", file=name))
    return {
        "model": {
            "name": Path(name).absolute().parent.name,
            "flavor": str(spec.fields.get("", "")),
            "converters": _converters(config, spec),
        },
        "training": _batch(name, training, parallelism),
        "parallelism": parallelism,
        "activation_checkpoint": _recomputed(name, config, any(field in training for field in _FORMER)),
        "optimizer": {"name": _optimizer(config.fields.get("optimizer", Configured("default_adamw")))},
    }


def _converters(config: Configured, spec: Configured) -> list[str]:
    """What converts layers to another precision: of the model, or before 0.3 in a section of its own."""
    section = config.fields.get("model_converters")
    former = section.fields.get("converters") if isinstance(section, Configured) else section
    return [str(given) for given in (spec.fields.get("converters"), former) if given is UNCLEAR or given]


def _optimizer(given: Any) -> str:
    """The optimizer, or what makes it another than the usual: its class, or how it keeps its states."""
    if not isinstance(given, Configured) or given.kind not in ("default_adamw", "OptimizersContainer"):
        return given.kind if isinstance(given, Configured) else "?"
    name, kept = (given.fields.get(field, usual) for field, usual in (("name", "AdamW"), ("implementation", "fused")))
    if name is UNCLEAR or kept is UNCLEAR:
        return "?"
    return str(name if kept in _IMPLEMENTED else kept)


def _recomputed(name: str, config: Configured, former: bool) -> dict[str, Any]:
    """The section of a TOML that says what is recomputed. Raises InputError where the text leaves it open."""
    usual = Configured(_FORMER_POLICY if former else "SelectiveAC")
    policy = config.fields.get("activation_checkpoint", usual)
    given = policy.fields if isinstance(policy, Configured) else {}
    if policy is UNCLEAR or UNCLEAR in given.values():
        raise InputError(Trouble("activation_checkpoint", "is not clear from the text", file=name))
    kind = policy.kind if isinstance(policy, Configured) else "none"
    if kind == _FORMER_POLICY:
        return {**_UNSAID, **{key: given[key] for key in ("mode", "selective_ac_option") if key in given}}
    return _MODES.get(kind, {"mode": kind})


def _part(name: str, plain: dict[str, Any], section: str) -> dict[str, Any]:
    """A section's fields; raises InputError for those that the text leaves open."""
    part = plain.get(section, {})
    open_ones = [section] if not isinstance(part, dict) else [key for key, value in part.items() if value is UNCLEAR]
    if open_ones:
        where = section if open_ones == [section] else f"{section}.{open_ones[0]}"
        raise InputError(Trouble(where, "is not clear from the text", file=name))
    return dict(part)


def _batch(name: str, training: dict[str, Any], parallelism: dict[str, Any]) -> dict[str, Any]:
    """Tokens as sequences of the longest, and microbatches as the replica's batch. Raises InputError for no numbers."""
    if any(field in training for field in _FORMER):
        return training
    given = {**_DEFAULTS, **training, **{key: parallelism.get(key, 1) for key in _PIPED}}
    wrong = [key for key in (*_DEFAULTS, *_PIPED) if type(given[key]) is not int]
    wrong += [key for key in (_TOKENS, _LENGTH, *_PIPED) if key not in wrong and given[key] < 1]
    if wrong:
        where = f"{'parallelism' if wrong[0] in _PIPED else 'training'}.{wrong[0]}"
        raise InputError(Trouble(where, "must be a whole number", given[wrong[0]], file=name))
    length, whole, count = given[_LENGTH], given[_STEP], given[_PIPED[0]]
    each = given[_TOKENS] // length
    parallelism.pop(_PIPED[0], None)
    piped = given[_PIPED[1]] > 1
    if piped:
        parallelism["pipeline_parallel_microbatch_size"] = each
    rest = {key: value for key, value in training.items() if key not in _DEFAULTS}
    step = {"global_batch_size": whole // length} if whole > 0 else {}
    return {**rest, "seq_len": length, "local_batch_size": each * count if piped else each, **step}
