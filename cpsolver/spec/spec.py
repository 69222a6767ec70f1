"""What the user asks for, as written: model, cluster, training, software stack and search.

Names of models, chips and stacks stay names here; looking them up in the catalogues comes later. Bad input
raises one InputError that lists every problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, PlainValidator, ValidationError, WithJsonSchema
from pydantic_core import ErrorDetails

from cpsolver.inputs.document import Document, load_yaml
from cpsolver.inputs.errors import InputError, Trouble, dotted, validation_trouble
from cpsolver.inputs.errors import Path as KeyPath
from cpsolver.inputs.language import later
from cpsolver.spec.cluster import ChipRequest, Cluster, price_troubles, wrong
from cpsolver.spec.network import NETWORK, Network, network_troubles
from cpsolver.spec.network import fields_at as network_fields_at
from cpsolver.spec.search import (
    NOTHING,
    Deadline,
    Decisions,
    Search,
    deadline_troubles,
    pin_contradictions,
    pin_lengths,
    unknown_chips,
)
from cpsolver.spec.training import Images, Length, Lora, Name, Part, Training
from cpsolver.spec.training_conflicts import against_pins, contradictions

FILE_ENDINGS = (".yaml", ".yml", ".json")
"""A model whose text ends so is a file, not a catalogue name."""


def _model(value: Any) -> Any:
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, Mapping) and value and all(isinstance(key, str) for key in value):
        return dict(value)
    raise wrong("must be a catalogue name, a file or a mapping of the model's fields")


_MODEL_SCHEMA: dict[str, Any] = {"anyOf": [{"type": "string", "minLength": 1}, {"type": "object", "minProperties": 1}]}


class Spec(Part):
    """The whole request. Frozen, no unknown fields; `model_dump(mode="json")` parses to an equal spec."""

    model: Annotated[str | dict[str, Any], PlainValidator(_model), WithJsonSchema(_MODEL_SCHEMA)] = Field(
        description="a catalogue name, a repository on Hugging Face, a .yaml or .json file, or the model's fields"
    )
    cluster: Cluster = Field(description="the devices")
    training: Training = Field(description="batch, sequence and precision")
    stack: Name | None = Field(
        default=None,
        description="name of the software-stack profile; null: the launcher's own, else the one measured on the chips",
    )
    launcher: Name | None = Field(
        default=None, description="name of the launcher that must be able to run the plan; null: any"
    )
    search: Annotated[Search, NOTHING] = Field(default=Search(), description="what to search for")

    @property
    def tokens(self) -> float | None:
        """Tokens of the whole training, given with it or with the deadline; None: not known."""
        deadline = self.search.deadline
        return self.training.tokens if deadline is None or deadline.tokens is None else deadline.tokens

    @property
    def deadline(self) -> Deadline | None:
        """The deadline with its tokens, wherever they are given."""
        given = self.search.deadline
        return None if given is None else given.model_copy(update={"tokens": self.tokens})


def load_spec(path: str | Path) -> Spec:
    """The spec in a YAML or JSON file ("-": standard input); files that it names are relative to its folder.

    Raises InputError with every problem: unreadable file, syntax, duplicate and unknown keys, wrong values.
    """
    base = None if str(path) == "-" else Path(path).parent
    document = load_yaml(path, collect=True)
    return parse_spec(document.data, document, base)


def parse_spec(data: Mapping[str, Any], document: Document | None = None, base_dir: Path | None = None) -> Spec:
    """The spec in plain values; `document` gives lines and columns, `base_dir` the folder of files it names.

    Raises InputError with every problem.
    """
    found = list(document.troubles) if document else []
    spec: Spec | None = None
    try:
        spec = Spec.model_validate(data)
        found += _cross_checks(spec)
    except ValidationError as error:
        found += _troubles(error.errors(include_url=False), data)
        found += _checks_on_the_rest(data, [trouble.path for trouble in found])
    except RecursionError:
        found.append(Trouble("", "is nested too deeply"))
    if found or spec is None:
        raise InputError(document.in_order(found) if document else found)
    if base_dir is None:
        return spec
    model, chips = with_files_in(base_dir, spec.model, spec.cluster.chips)
    return spec.model_copy(update={"model": model, "cluster": spec.cluster.model_copy(update={"chips": chips})})


def names_a_file(model: str) -> bool:
    """Whether a model's text is a file (it ends in .yaml, .yml or .json) rather than a catalogue name."""
    return model.lower().endswith(FILE_ENDINGS)


def with_files_in(
    folder: Path, model: str | dict[str, Any], chips: Mapping[str, ChipRequest]
) -> tuple[str | dict[str, Any], dict[str, ChipRequest]]:
    """A spec's model and chips with the files that they name found from `folder`."""
    model = str(folder / model) if isinstance(model, str) and names_a_file(model) else model
    return model, {
        name: chip if chip.file is None else chip.model_copy(update={"file": str(folder / chip.file)})
        for name, chip in chips.items()
    }


_PARTS: dict[KeyPath, type[BaseModel]] = {
    (): Spec,
    ("cluster",): Cluster,
    NETWORK: Network,
    ("training",): Training,
    ("training", "lora"): Lora,
    ("training", "images"): Images,
    ("search",): Search,
    ("search", "deadline"): Deadline,
    ("search", "pin"): Decisions,
    ("search", "forbid"): Decisions,
}


def _fields_at(path: KeyPath) -> Mapping[str, Any]:
    if path[:2] == NETWORK:
        return network_fields_at(path[2:])
    items: dict[KeyPath, type[BaseModel]] = {_CHIPS: ChipRequest, _LENGTHS: Length}
    part = items.get(path[:2]) if len(path) == 3 and path[:2] in items else _PARTS.get(path)
    return part.model_fields if part else {}


def _troubles(details: Iterable[ErrorDetails], data: Any) -> Iterator[Trouble]:
    for detail in details:
        trouble = validation_trouble(detail, data, _fields_at)
        if detail["type"] == "too_short" and trouble.value:
            continue  # it is only short of the items that are listed as wrong
        if detail["type"] == "extra_forbidden" and not trouble.nearest:
            key = str(detail["loc"][-1])
            homes = [dotted((*section, key)) for section in _PARTS if key in _fields_at(section)]
            homes = homes or _known_as(detail["loc"][:-1], key, trouble.value)
            trouble = replace(trouble, nearest=tuple(homes), allowed=None if homes else trouble.allowed)
        yield trouble


_OTHER_NAMES = {
    "gbs": "global_batch_size",
    "batch": "global_batch_size",
    "batch_size": "global_batch_size",
    "train_batch_size": "global_batch_size",
    "seq": "sequence_length",
    "seq_len": "sequence_length",
    "seq_length": "sequence_length",
    "max_seq_len": "sequence_length",
    "dtype": "precision",
    "gpus": "num_gpus",
    "devices": "num_gpus",
    "world_size": "num_gpus",
    "nproc_per_node": "gpus_per_node",
    "framework": "launcher",
    "micro_batch_size": "mbs",
    "micro_batch": "mbs",
    "sp": "sequence_parallel",
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
}
"""What other tools and papers call a field of the spec."""
_ZERO_STAGES = {
    0: "distributed_optimizer: false",
    1: "sharded: optimizer",
    2: "sharded: gradients",
    3: "sharded: parameters",
}
"""DeepSpeed's stages of ZeRO as decisions of a plan."""


def _known_as(section: KeyPath, key: str, value: object) -> list[str]:
    """What a field is called here that other tools call `key`, with its section where that is another one."""
    plain = key.lower().replace("-", "_")
    if plain in ("zero", "zero_stage"):
        stage = _ZERO_STAGES.get(value) if type(value) is int else None
        told, field = stage or "sharded: optimizer, gradients or parameters", "sharded"
    else:
        told = field = _OTHER_NAMES.get(plain, "")
    if field in _fields_at(section):
        return [told]
    home = next((place for place in _PARTS if field in _fields_at(place)), None)
    return [] if home is None else [dotted((*home, told))]


def _node_size(spec: Spec) -> Iterator[Trouble]:
    total, node = spec.cluster.num_gpus, spec.cluster.gpus_per_node
    if total % node:
        origin = "" if "gpus_per_node" in spec.cluster.model_fields_set else later(" (the default)")
        message = later(
            "is not a multiple of cluster.gpus_per_node = {node}{origin}: nodes are used whole",
            node=node,
            origin=origin,
        )
        below = total - total % node
        allowed = later("{below:,} or {above:,}", below=below, above=below + node) if below else f"{node:,}"
        yield Trouble(
            "cluster.num_gpus",
            message,
            total,
            later("{allowed}, or another gpus_per_node", allowed=allowed),
            path=_NUM_GPUS,
        )


def _enough_chips(spec: Spec) -> Iterator[Trouble]:
    total, limits = spec.cluster.num_gpus, {name: chip.max for name, chip in spec.cluster.chips.items()}
    have = sum(limit or 0 for limit in limits.values())
    if None not in limits.values() and have < total:
        listed = ", ".join(f"{name}: {limit:,}" for name, limit in limits.items())
        message = later("is more than cluster.chips has: {have:,} in all ({listed})", have=have, listed=listed)
        yield Trouble("cluster.num_gpus", message, total, later("at most {have:,}", have=have), path=_NUM_GPUS)


def _known_chips(spec: Spec) -> Iterator[Trouble]:
    chips = list(spec.cluster.chips)
    yield from unknown_chips(spec.search.pin, "pin", chips)
    yield from unknown_chips(spec.search.forbid, "forbid", chips)


def _network(spec: Spec) -> Iterator[Trouble]:
    cluster = spec.cluster
    yield from network_troubles(cluster.network, cluster.num_gpus, cluster.gpus_per_node, list(cluster.chips))


def _pins(spec: Spec) -> Iterator[Trouble]:
    yield from pin_contradictions(spec.search.pin, spec.search.forbid)
    yield from pin_lengths(spec.search.pin)


def _switches_against_pins(spec: Spec) -> Iterator[Trouble]:
    flags = ("distributed_optimizer", "flash_attention")
    left = ([value for value in (True, False) if spec.search.allows(name, value)] for name in flags)
    yield from against_pins(spec.training, *left)


def _goals(spec: Spec) -> Iterator[Trouble]:
    yield from price_troubles(spec.cluster, spec.search.objective)
    yield from deadline_troubles(spec.search.deadline, spec.search.objective, spec.training.tokens)


_LENGTHS = ("training", "lengths")
_NUM_GPUS, _NODE, _CHIPS = ("cluster", "num_gpus"), ("cluster", "gpus_per_node"), ("cluster", "chips")
_CHECKS: tuple[tuple[Callable[[Spec], Iterator[Trouble]], tuple[KeyPath, ...]], ...] = (
    (_node_size, (_NUM_GPUS, _NODE)),
    (_enough_chips, (_NUM_GPUS, _CHIPS)),
    (_known_chips, (_CHIPS,)),
    (_network, (_NUM_GPUS, _CHIPS, _NODE)),
    (_pins, ()),
    (_goals, (_CHIPS, ("cluster", "prices"), ("search", "objective"), ("search", "deadline"), ("training", "tokens"))),
    (lambda spec: contradictions(spec.training), (("training",),)),
    (_switches_against_pins, (("training",), ("search",))),
)
_STAND_IN_SIZES = {"global_batch_size": 1, "sequence_length": 1}


def _cross_checks(spec: Spec, bad: Iterable[KeyPath] = ()) -> list[Trouble]:
    """The checks none of whose fields is among the `bad`."""
    found: list[Trouble] = []
    for check, needs in _CHECKS:
        if not any(need[: len(path)] == path[: len(need)] for need in needs for path in bad):
            found += check(spec)
    return found


def _sound_network(network: Any, bad: list[KeyPath]) -> Any:
    """What of a network is not among the `bad`."""
    if not isinstance(network, Mapping):
        return None if NETWORK in bad else network
    return {key: item for key, item in network.items() if not any(path[:3] == (*NETWORK, key) for path in bad)}


def _checks_on_the_rest(data: Any, bad: list[KeyPath]) -> list[Trouble]:
    """The cross-checks on what is sound in a spec with mistakes, so that all problems are listed at once."""
    if () in bad or not isinstance(data, Mapping):
        return []
    cluster, search, training = data.get("cluster"), data.get("search"), data.get("training")
    rest: dict[str, Any] = {"model": "-", "cluster": {}, "search": {}, "training": dict(_STAND_IN_SIZES)}
    if isinstance(training, Mapping) and "tokens" in training and ("training", "tokens") not in bad:
        rest["training"]["tokens"] = training["tokens"]
    if isinstance(cluster, Mapping):
        wrong = {path[:2] for path in bad if path[:2] != NETWORK}
        rest["cluster"] = {key: item for key, item in cluster.items() if ("cluster", key) not in wrong}
        rest["cluster"]["network"] = _sound_network(cluster.get("network"), bad)
    rest["cluster"] = {"num_gpus": 1, "chips": "-", **rest["cluster"]}
    if isinstance(search, Mapping):
        sound = {key for key in ("objective", "deadline") if not any(path[:2] == ("search", key) for path in bad)}
        rest["search"] = {key: search[key] for key in sound & set(search)}
    for part in ("pin", "forbid"):
        values = search.get(part) if isinstance(search, Mapping) else None
        if isinstance(values, Mapping):
            wrong = {path[:3] for path in bad}
            rest["search"][part] = {key: item for key, item in values.items() if ("search", part, key) not in wrong}
    try:
        return _cross_checks(Spec.model_validate(rest), bad)
    except ValidationError:
        return []
