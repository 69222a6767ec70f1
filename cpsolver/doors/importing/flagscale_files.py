"""FlagScale's YAML: the settings of its `train` section are its Megatron-LM's arguments, whatever they are nested in.

Read in FlagScale da4935ec: flagscale/runner/utils.py (flatten_dict_to_args), flagscale/train/arguments.py (meshes), the
patch of Megatron-LM's arguments (multiple_of). An experiment names its train section by Hydra's `defaults`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cpsolver.doors.importing.command import TrainingDevices
from cpsolver.doors.importing.deepspeed_file import host_slots
from cpsolver.doors.importing.framework import FrameworkGuess
from cpsolver.doors.importing.reading import Fields, Reading, as_tokens, flattened
from cpsolver.inputs.document import load_yaml, read_text
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import later, say

_FRAMEWORK = FrameworkGuess("megatron-core", "flagscale", later("a configuration of FlagScale"))
_REFERENCE = re.compile(r"\$\{([^{}:]+)\}")
_SECTIONS = ("system", "model", "data")
_BATCHED = ("recompute_granularity", "recompute_method", "recompute_num_layers")


def read_flagscale(name: str, data: dict[str, Any]) -> Reading:
    """An experiment with its train section beside it, or a train section alone."""
    experiment = data if "experiment" in data else {}
    section = _train_section(name, data)
    whole = {**data, "train": section}
    settings = dict(_settings(section, whole))
    unclear = [key for key, value in settings.items() if isinstance(value, str) and "${" in value]
    fields = Fields({key: value for key, value in settings.items() if key not in unclear}, name, "flagscale")
    fields.refuse()
    tokens = [token for key, value in _plain(fields) for token in as_tokens(key.replace("_", "-"), value)]
    width = _width(fields)
    meshes, refusals = _meshes(fields)
    runner = _section(_section(experiment, "experiment"), "runner")
    fields.close()
    return Reading(
        later("configuration of FlagScale"),
        (*tokens, *width, *meshes),
        _FRAMEWORK,
        _devices(name, runner),
        str(_section(_section(experiment, "experiment"), "task").get("entrypoint", "")),
        refusals=refusals,
        as_arguments=True,
        unread=tuple(say("{key} (${{...}} is not known)", key=key) for key in unclear if not _names_files(key)),
    )


def _section(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = data.get(name)
    return value if isinstance(value, dict) else {}


def _train_section(name: str, data: dict[str, Any]) -> dict[str, Any]:
    """The section itself, or the file that `defaults` names for it."""
    if "experiment" not in data:
        return data
    if isinstance(data.get("train"), dict):
        return _section(data, "train")
    task = _section(_section(data, "experiment"), "task")
    if task.get("type", "train") != "train" or task.get("backend", "megatron") != "megatron":
        allowed = "task.type train with task.backend megatron"
        said = say("is no training of a decoder by Megatron-LM")
        raise InputError(Trouble("experiment.task", said, allowed=allowed, file=name))
    listed = data.get("defaults")
    file = next((found for item in (listed if isinstance(listed, list) else []) if (found := _default(item))), None)
    if file is None:
        raise InputError(Trouble("defaults", "name no train section", allowed="train: NAME", file=name))
    path = Path(name).parent / file
    if name == "<stdin>" or not path.is_file():
        allowed = say("the train section itself, {file}", file=file)
        raise InputError(
            Trouble("defaults", say("{file} is not beside the file", file=file), allowed=allowed, file=name)
        )
    return load_yaml(path).data


def _default(item: Any) -> str | None:
    """The file of Hydra's `train: NAME`, or of `NAME@train`."""
    if isinstance(item, dict) and isinstance(item.get("train"), str):
        return f"train/{item['train']}.yaml"
    if isinstance(item, str) and item.endswith("@train"):
        return f"{item.removesuffix('@train')}.yaml"
    return None


def _settings(section: Mapping[str, Any], whole: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """All settings by their last name, references to others replaced by what these are."""
    for part in _SECTIONS:
        for path, value in flattened(_section(section, part), (part,)):
            yield path[-1], _resolved(value, whole)


def _resolved(value: Any, whole: Mapping[str, Any]) -> Any:
    """`${experiment.seed}` as what stands there; what stands nowhere stays a reference."""
    match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    found: Any = whole
    for part in match.group(1).split("."):
        if not isinstance(found, dict) or part not in found:
            return value
        found = found[part]
    return value if isinstance(found, dict) else found


def _plain(fields: Fields) -> Iterator[tuple[str, Any]]:
    """Settings that are arguments of Megatron-LM's; those of FlagScale alone are read elsewhere."""
    own = fields.known["own"].split()
    for name, value in fields.data.items():
        if name not in own and not name.startswith("hetero_") and not name.endswith("_per_stage_micro_batch"):
            yield name, value


def _width(fields: Fields) -> tuple[str, ...]:
    """--ffn-hidden-size by multiple_of and hidden_dim_multiplier."""
    if not fields.has("multiple_of") or fields.has("ffn_hidden_size"):
        return ()
    multiple, hidden = fields.number("multiple_of"), fields.number("hidden_size")
    if multiple is None or hidden is None:
        return ()
    width = int(4 * hidden * 2 / 3)
    if fields.has("hidden_dim_multiplier"):
        width = int(width * fields.real("hidden_dim_multiplier", 1.0))
    return as_tokens("ffn-hidden-size", multiple * -(-width // multiple))


def _meshes(fields: Fields) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Layers by stage of one mesh, and why several meshes, or numbers by stage, have no words here."""
    refusals = [
        say("{name}_per_stage_micro_batch: recomputation by stage and microbatch is not read", name=name)
        for name in _BATCHED
        if fields.has(f"{name}_per_stage_micro_batch")
    ]
    if not fields.has("enable_hetero") or not fields.flag("enable_hetero"):
        return (), tuple(refusals)
    meshes, layers = fields.data.get("hetero_process_meshes"), fields.data.get("hetero_pipeline_layer_split")
    if isinstance(meshes, list) and len(meshes) > 5:
        return (), (*refusals, say("hetero_process_meshes: several meshes are not read"))
    split = ",".join(map(str, layers)) if isinstance(layers, list) else None
    return (as_tokens("num-layer-list", split) if split else ()), tuple(refusals)


def _devices(name: str, runner: Mapping[str, Any]) -> TrainingDevices:
    """By the runner's numbers, or by its file of hosts where that is beside the configuration."""
    per_node, nodes = runner.get("nproc_per_node"), runner.get("nnodes")
    hosts = runner.get("hostfile")
    listed = _hosts(Path(name).parent / hosts) if isinstance(hosts, str) and name != "<stdin>" else ()
    if listed:
        return TrainingDevices(sum(listed), max(listed))
    if isinstance(per_node, int) and not isinstance(per_node, bool) and per_node > 0:
        count = nodes if isinstance(nodes, int) and not isinstance(nodes, bool) and nodes > 0 else 1
        return TrainingDevices(per_node * count, per_node)
    return TrainingDevices(None, None)


def _hosts(path: Path) -> tuple[int, ...]:
    """Devices of each host of a file with `slots=` in its lines."""
    if not path.is_file():
        return ()
    _, text = read_text(path)
    return host_slots(text)


def _names_files(key: str) -> bool:
    return key.endswith(("_path", "_file", "_dir", "load", "save", "_name", "_project")) or key == "wandb_exp_name"
