"""YAML of Megatron-LM and of its kin as arguments: --yaml-cfg, the configurations of its tests, models of LoongForge.

Read in Megatron-LM core_v0.12.1 (megatron/training/yaml_arguments.py) and d98e8a6 (tests/functional_tests), and in
LoongForge c6275661 (loongforge/models/utils.py, configs/models).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from cpsolver.doors.importing.framework import FrameworkGuess
from cpsolver.doors.importing.reading import Fields, Reading, as_tokens, table
from cpsolver.doors.importing.scope import OutOfScopeError
from cpsolver.inputs.document import load_yaml
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import later, say

_MEGATRON = FrameworkGuess("megatron-core", "megatron-lm", later("Megatron-LM's own YAML"))
_PLAIN = FrameworkGuess(
    "megatron-core-plain", "megatron-lm", later("Megatron-LM's own YAML, without overlap_grad_reduce")
)
_ACTIVATIONS = {"swiglu": ("--swiglu",), "squaredrelu": ("--squared-relu",), "gelu": ()}
_MARK = re.compile("\ue000\\d+\ue001")
"""A value of the script that is not known (`variables`)."""
_NAMING = ("--model-name", "--config-file", "--yaml-cfg")
_MODELS = "configs/models/"
"""LoongForge's folder of models' files."""
_REGISTRY = "loongforge/utils/config_map.py"
"""LoongForge's table of the files of models' names."""
_NORMS_OVER_ALL = "--qk-layernorm-over-all"
"""No argument of any parser: LoongForge's MiniMax has one norm for all queries of a rank and one for all keys."""
_FREQUENCY = re.compile(r"""\$\{moe_freq:\s*["']?(.*?)["']?\s*\}""")


def read_megatron(name: str, data: dict[str, Any]) -> Reading:
    """A file for --yaml-cfg: fields of a model and of its parallelism, and all other arguments beside them."""
    sections = ("language_model", "model_parallel")
    for section in sections:
        if not isinstance(data.get(section), dict):
            raise InputError(Trouble(section, "must hold fields", data.get(section), file=name, path=(section,)))
    beside = {key: value for key, value in data.items() if key not in (*sections, "swiglu", "squared_relu")}
    fields = Fields({**beside, **data["model_parallel"], **data["language_model"]}, name, "megatron")
    fields.refuse()
    tokens = list(_tokens(fields))
    tokens += fields.choice("activation_func", _ACTIVATIONS, "gelu")
    fields.close()
    framework = _MEGATRON if "--overlap-grad-reduce" in tokens else _PLAIN
    return Reading(
        later("configuration of Megatron-LM"),
        tuple(tokens),
        framework,
        hint=str(data.get("tokenizer_type", "")),
        as_arguments=True,
    )


def read_test_case(name: str, data: dict[str, Any]) -> Reading:
    """A configuration of Megatron-LM's functional tests: the arguments as they are."""
    given = data["MODEL_ARGS"]
    if not isinstance(given, dict):
        raise InputError(Trouble("MODEL_ARGS", "must hold arguments", given, file=name, path=("MODEL_ARGS",)))
    tokens = [token for key, value in given.items() for token in as_tokens(key.lstrip("-"), value)]
    group = Path(name).absolute().parent.parent.name if name != "<stdin>" else ""
    framework = _MEGATRON if "--overlap-grad-reduce" in tokens else _PLAIN
    return Reading(
        later("test configuration of Megatron-LM"), tuple(tokens), framework, program=group, as_arguments=True
    )


def read_loongforge_model(name: str, _data: dict[str, Any]) -> Reading:
    """A model of LoongForge by itself says nothing of its training: InputError says what does."""
    allowed = say("the script that has it as --config-file")
    raise InputError(Trouble("", "is a model of LoongForge, without its training", allowed=allowed, file=name))


def model_tokens(tokens: Sequence[str], script: str) -> tuple[str, ...]:
    """The arguments that LoongForge's --model-name or --config-file stand for, by the model's file; none without. Those
    of Megatron-LM's --yaml-cfg, all of the training's.

    The file is looked for beside the script and in the folders above it. Raises InputError where it is not found,
    OutOfScopeError where it is of no decoder.
    """
    named = {before: after for before, after in pairwise(tokens) if before in _NAMING}
    if settings := named.pop("--yaml-cfg", None):
        tail = _MARK.split(settings)[-1].lstrip("/") if _MARK.search(settings) else settings
        file = None if script == "<stdin>" else above(Path(script).absolute().parent, tail)
        return () if file is None else read_megatron(str(file), load_yaml(file).data).tokens
    if not named:
        return ()
    option, value = next(iter(sorted(named.items())))
    folder = None if script == "<stdin>" else Path(script).absolute().parent
    wanted = _wanted(option, value, folder)
    path = None if folder is None else above(folder, wanted)
    if path is None and option == "--model-name" and {"--num-layers", "--hidden-size"} <= set(tokens):
        return ()  # another framework's: the sizes are there
    if path is None:
        message, allowed = (
            say("{wanted} is not in the script's folder or above it", wanted=wanted),
            say("a script in LoongForge's folder"),
        )
        raise InputError(Trouble(option, message, _MARK.sub("$...", value), allowed, file=script))
    return _file_tokens(path)


def _wanted(option: str, value: str, folder: Path | None) -> str:
    """The file of the model, or a pattern of it, below the script's folder or below one above it."""
    if option == "--model-name":
        return _registered(value, folder) or f"configs/models/*/{re.sub(r'[^A-Za-z0-9]', '_', value)}.yaml"
    known = _MARK.split(value)[-1]
    own = known.find(_MODELS)
    return known[own:] if own >= 0 else known.lstrip("/") if known != value else known


def _registered(model: str, folder: Path | None) -> str | None:
    """The file that LoongForge's own table, where it stands above the script, has for a model's name, in small letters
    as there. The table is read as text; nothing of it runs."""
    table_file = None if folder is None else above(folder, _REGISTRY)
    try:
        body = [] if table_file is None else ast.parse(table_file.read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None  # another release's table: by the name alone
    for node in body:
        entry = _literal(node).get(model.lower())
        if isinstance(entry, dict) and {"config_path", "config_name"} <= entry.keys():
            return f"{entry['config_path']}/{entry['config_name']}.yaml"
    return None


def _literal(node: ast.stmt) -> dict[Any, Any]:
    """The dictionary that a statement assigns; an empty one where it is none."""
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    try:
        found = None if value is None else ast.literal_eval(value)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return {}
    return found if isinstance(found, dict) else {}


def above(folder: Path, pattern: str) -> Path | None:
    """The file of that name, or of that pattern, in a folder or in the nearest one above it."""
    for place in (folder, *folder.parents):
        found = sorted(place.glob(pattern)) if "*" in pattern else [place / pattern]
        if file := next((one for one in found if one.is_file()), None):
            return file
    return None


def _file_tokens(path: Path) -> tuple[str, ...]:
    data = load_yaml(path).data
    fields = Fields(data, str(path), "loongforge")
    target = str(data.get("_target_", ""))
    if not target.startswith("loongforge.models.foundation."):
        said = say("is a multimodal model, or an encoder: only the training of a decoder is planned")
        raise OutOfScopeError(
            Trouble("_target_", said, target or None, "loongforge.models.foundation...", file=str(path))
        )
    fields.refuse()
    tokens = tuple(_tokens(fields))
    fields.close()
    return (*tokens, _NORMS_OVER_ALL) if target.endswith(".MinimaxConfig") else tokens


def _tokens(fields: Fields) -> Iterator[str]:
    """The arguments of a configuration class's fields: the same names, those that differ by formats.yaml."""
    renamed: Mapping[str, str] = table("config")["arguments"]
    inverted: Mapping[str, str] = table("config")["inverted"]
    ignored = tuple(table("config")["ignored"].split())
    for name, value in fields.data.items():
        if name in inverted:
            if value is False:
                yield f"--{inverted[name]}"
            continue
        if name.startswith(ignored) or isinstance(value, dict) or str(value).startswith("${oc."):
            continue
        if name == "num_query_groups" and value is not None and value != fields.data.get("num_attention_heads"):
            yield "--group-query-attention"
        if isinstance(value, str) and (match := _FREQUENCY.fullmatch(value)):
            value = match.group(1)
        yield from as_tokens(renamed.get(name, name.replace("_", "-")), value)
