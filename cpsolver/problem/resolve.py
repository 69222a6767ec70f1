"""How a problem comes to be: every name of a spec looked up, and all that is unknown or unusable told at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from cpsolver.inputs.document import load_yaml
from cpsolver.inputs.english_sentences import as_messages, configuration_reason
from cpsolver.inputs.errors import InputError, Trouble, dotted, validation_trouble
from cpsolver.inputs.errors import Path as KeyPath
from cpsolver.inputs.language import later, say
from cpsolver.plans.strategy import Sharded
from cpsolver.problem.against_model import against_model
from cpsolver.problem.chip_changes import change_troubles, changed_chip, drops_fabric
from cpsolver.problem.network import ClusterNetwork
from cpsolver.problem.problem import Problem, Supply, encoder_family
from cpsolver.profiles.constants import Overlay, load_calibration
from cpsolver.profiles.default_stack import choose_stack
from cpsolver.profiles.framework import Framework, both, load_launcher
from cpsolver.profiles.stack import FOLD3D_STACK, Stack, load_stack
from cpsolver.profiles.switches import DTYPES, Switch
from cpsolver.spec.cluster import ChipRequest
from cpsolver.spec.spec import Spec, names_a_file
from cpsolver.spec.training import Training
from hw_specs import Chip, UnknownChipError, complete_chip, load_chip, unusable_reasons
from models_zoo import (
    Architecture,
    UnknownModelError,
    UnsupportedConfigError,
    from_hugging_face,
    is_hugging_face,
    load_architecture,
)

_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Names:
    """What of a spec is looked up; what is not sound there is None, or is no entry of `chips`.

    Whether a chip can be planned for depends on `training`; a spec's own where that is sound.
    """

    model: str | Mapping[str, Any] | None
    chips: Mapping[str, ChipRequest]
    stack: str | None
    training: Training
    network: ClusterNetwork | None = None


def unknown_names(names: Names) -> list[Trouble]:
    """What is unknown, unsupported or unusable of the names that are sound: model, chips, stack."""
    troubles: list[Trouble] = []
    if names.model is not None:
        _attempt(troubles, partial(_model, names.model))
    chips = _chips(troubles, names.chips, names.training)
    troubles += _against_chips(names.network, names.chips, chips)
    if names.stack is not None:
        _attempt(troubles, partial(load_stack, names.stack))
    return troubles


def resolve(spec: Spec, overlay: Overlay | None = None) -> Problem:
    """Look up every name of the spec; raises InputError with all that is unknown, unsupported or unusable.

    Chips of the catalogue and the stack come with the constants fitted to published runs, and with what an overlay
    says of them on top; one that does not cover a chip with the stack is a trouble. A chip that the spec describes
    itself is taken at its word.
    """
    troubles: list[Trouble] = []
    model = _attempt(troubles, partial(_model, spec.model))
    launcher = None if spec.launcher is None else _attempt(troubles, partial(load_launcher, str(spec.launcher)))
    chips = _chips(troubles, spec.cluster.chips, spec.training)
    network = ClusterNetwork.of(spec.cluster)
    troubles += _against_chips(network, spec.cluster.chips, chips)
    choice = choose_stack(spec.stack, launcher, chips.values())
    stack = _attempt(troubles, partial(load_stack, choice.name))
    troubles += [] if model is None else against_model(spec, model, launcher)
    launcher = None if launcher is None else launcher.beside(encoder_family(spec, model))
    profiles = {"launcher": launcher, "stack": None if stack is None else stack.runs}
    for what, profile in profiles.items():
        troubles += [] if profile is None else _not_trained(what, profile, spec, model)
    if stack is not None:
        troubles += _no_sizes(spec, launcher, stack)
    if overlay is not None and stack is not None:
        troubles += _not_covered(overlay, spec, {chip.name for chip in chips.values()}, stack.name)
    if troubles or model is None or stack is None:
        raise InputError(tuple(troubles))
    spec = spec.model_copy(update={"stack": stack.name})
    problem = assemble(spec, model, chips, load_calibration().stack(stack), both(launcher, stack.runs))
    problem = replace(problem, stack_why=choice.why)
    return problem if overlay is None else problem.with_constants(overlay)


def assemble(
    spec: Spec, model: Architecture, chips: Mapping[str, Chip], stack: Stack, launcher: Framework | None = None
) -> Problem:
    """The problem of parts that were looked up already; `chips` by their names in the spec."""
    total, limits = spec.cluster.num_gpus, {name: request.max for name, request in spec.cluster.chips.items()}
    chips = _on_network(ClusterNetwork.of(spec.cluster), spec.cluster.chips, chips)
    supplies = tuple(Supply(chip, min(total, limits[name] or total)) for name, chip in chips.items())
    return Problem(spec, model, supplies, stack, launcher)


def _on_network(
    network: ClusterNetwork | None, requests: Mapping[str, ChipRequest], chips: Mapping[str, Chip]
) -> Mapping[str, Chip]:
    """The chips with the network's figures; an adapter that a chip's own request gives stays."""
    if network is None:
        return chips
    return {name: network.chip(chip, requests[name].network_gbit_s is not None) for name, chip in chips.items()}


def _against_chips(
    network: ClusterNetwork | None, requests: Mapping[str, ChipRequest], chips: Mapping[str, Chip]
) -> list[Trouble]:
    return [] if network is None else list(network.troubles(_on_network(network, requests, chips).values()))


def resolve_like(problem: Problem, spec: Spec) -> Problem:
    """The problem of a spec that differs from this problem's in neither model, chips nor stack.

    All is checked as `resolve` does; model, chips and stack stay as they are here, with whatever was learnt of them.
    """
    found = resolve(spec, problem.overlay)
    same = {name: getattr(problem, name) for name in ("supplies", "stack", "model", "stack_why")}
    return replace(found, **same)


def _not_covered(overlay: Overlay, spec: Spec, named: set[str], stack: str) -> Iterator[Trouble]:
    """A trouble for each chip that the overlay has no runs of with this stack, or that the spec describes itself."""
    allowed = later("{covered}; or calibrate with runs of it too", covered=overlay.covered)
    for written, request in spec.cluster.chips.items():
        path: KeyPath = ("cluster", "chips", written)
        own = request.spec is not None or request.file is not None
        if own or drops_fabric(request):
            this = later("describes this one itself") if own else later("takes its NVLink away")
            message = later(
                "{file} was learnt on chips of the catalogue, and the spec {this}", file=overlay.file, this=this
            )
            yield Trouble(dotted(path), message, allowed=overlay.covered, path=path)
    for name in sorted(name for name in named if not overlay.has(name, stack)):
        message = later(
            "{file} has no runs of {name} with the stack {stack}", file=overlay.file, name=name, stack=stack
        )
        yield Trouble("cluster.chips", message, name, allowed, path=("cluster", "chips"))


def _no_sizes(spec: Spec, launcher: Framework | None, stack: Stack) -> Iterator[Trouble]:
    """The trouble of a spec that asks for microbatches of different sizes where nothing runs them."""
    has = stack.name == FOLD3D_STACK if launcher is None else launcher.dynamic_micro_batches
    if spec.search.dynamic_micro_batches and not has:
        what, name = ("stack", stack.name) if launcher is None else ("launcher", launcher.name)
        message = later("{what} {name} has microbatches of one size", what=later(what), name=name)
        allowed = later("false; or stack {other} without a launcher", other=FOLD3D_STACK)
        path: KeyPath = ("search", "dynamic_micro_batches")
        yield Trouble(dotted(path), message, value=True, allowed=allowed, path=path)


def adapters_asked(training: Training, model: Architecture | None) -> Literal["plain", "any"] | None:
    """Which adapters a training asks for: none, those that every framework with adapters has, or others."""
    lora = training.lora
    if lora is None:
        return None
    usual = lora.dropout == 0 and not (lora.of_parts or lora.all_to_all or lora.quantized_base)
    dense = model is None or (model.moe is None and model.attention.kind != "mla")
    return "plain" if usual and dense else "any"


def _not_trained(what: str, profile: Framework, spec: Spec, model: Architecture | None) -> Iterator[Trouble]:
    """What no plan of the spec could be run with: precision, optimizer, techniques, places of experts."""
    training, whose, pinned = (
        spec.training,
        later("{what} {name}", what=later(what), name=profile.name),
        spec.search.pin.sharded,
    )

    def trouble(name: str, message: str, allowed: str) -> Trouble:
        allowed = later("{allowed}, or another {what}", allowed=allowed, what=later(what))
        return Trouble(f"training.{name}", message, getattr(training, name), allowed, path=("training", name))

    if training.precision not in profile.precisions:
        yield trouble("precision", later("{whose} does not train in it", whose=whose), ", ".join(profile.precisions))
    if training.optimizer not in profile.optimizers:
        yield trouble("optimizer", later("{whose} does not have it", whose=whose), ", ".join(profile.optimizers))
    for name, allowed in _without_setting(profile, training):
        yield trouble(name, later("{whose} has no setting for it", whose=whose), allowed)
    for name, allowed in profile.lacks(adapters_asked(training, model), training.packs).items():
        path: KeyPath = ("training", name)
        yield Trouble(
            f"training.{name}",
            later("{whose} does not have it", whose=whose),
            None,
            later("{allowed}, or another {what}", allowed=allowed, what=later(what)),
            path=path,
        )
    if not set(training.activation_offload) <= set(profile.activation_offload):
        has = ", ".join(profile.activation_offload)
        yield trouble(
            "activation_offload", later("{whose} does not send these to the host", whose=whose), has or "null"
        )
    if 0 < training.optimizer_offload < 1 and not set(pinned or get_args(Sharded)) <= set(profile.partial_offload):
        kinds = " or ".join(profile.partial_offload)
        if kinds:
            message = later(
                "{whose} sends a part of the optimizer to the host only where {kinds} are shared out",
                whose=whose,
                kinds=kinds,
            )
            yield trouble("optimizer_offload", message, later("0, 1, search.pin.sharded = {kinds}", kinds=kinds))
    if model is not None:
        yield from _untrained(whose, profile, model)


def _without_setting(profile: Framework, training: Training) -> Iterator[tuple[str, str]]:
    """Fields of training with a value that the framework cannot be told, and those that it can."""
    choices = {"moe_dispatcher": profile.moe_dispatchers, "gradient_accumulation_fusion": profile.gradient_fusions}
    for name, values in choices.items():
        if getattr(training, name) not in (None, *values):
            yield name, ", ".join(("null", *values))
    for name in get_args(Switch):
        default = Training.model_fields[name].default
        if getattr(training, name) != default and name not in profile.switches:
            yield name, str(default).lower()


def _untrained(whose: str, profile: Framework, model: Architecture) -> Iterator[Trouble]:
    """What of the model the framework does not train."""
    for what in profile.untrained(model):
        message = later("{whose} does not train {what}", whose=whose, what=later(what))
        yield Trouble("model", message, value=model.name, path=("model",))
    moe = model.moe
    if moe is not None and not profile.experts_anywhere and moe.offset % moe.freq != moe.first_dense % moe.freq:
        message = later(
            "{whose} has experts in every n-th layer from the first one behind the dense ones only: moe.freq {freq}, "
            "moe.offset {offset}, moe.first_dense {first_dense}",
            whose=whose,
            freq=moe.freq,
            offset=moe.offset,
            first_dense=moe.first_dense,
        )
        yield Trouble("model", message, value=model.name, path=("model",))


def _attempt(troubles: list[Trouble], make: Callable[[], _Found]) -> _Found | None:
    """What `make` returns; what it raises is added to the troubles."""
    try:
        return make()
    except InputError as error:
        troubles.extend(error.troubles)
        return None


def _chips(troubles: list[Trouble], requests: Mapping[str, ChipRequest], training: Training) -> dict[str, Chip]:
    """The chips by what the spec calls them; unknown ones, and those that are one chip, are added to the troubles."""
    attempts = {name: _attempt(troubles, partial(_chip, name, each, training)) for name, each in requests.items()}
    chips = {name: chip for name, chip in attempts.items() if chip is not None}
    names = [chip.name for chip in chips.values()]
    doubled = sorted({name for name in names if names.count(name) > 1})
    troubles += [Trouble("cluster.chips", "two entries are the same chip", value=name) for name in doubled]
    return chips


def _read(file: str, path: KeyPath) -> Mapping[str, Any]:
    """The fields in a file that the spec names at `path`; a file that cannot be read is a trouble at that place."""
    try:
        return load_yaml(file).data
    except InputError as error:
        raise InputError(tuple(_placed(trouble, file, path) for trouble in error.troubles)) from None


def _placed(trouble: Trouble, file: str, path: KeyPath) -> Trouble:
    if trouble.line is not None:
        return trouble  # it is in the file, and says where
    return replace(trouble, where=dotted(path), value=file, path=path, file=None)


def _model(model: str | Mapping[str, Any]) -> Architecture:
    if isinstance(model, str) and not names_a_file(model):
        try:
            found = load_architecture(model)
        except UnknownModelError as error:
            raise _unknown("model", "model", model, error.nearest, ("model",)) from None
    else:
        fields = _read(model, ("model",)) if isinstance(model, str) else model
        try:
            fields = from_hugging_face(fields) if is_hugging_face(fields) else fields
            found = Architecture.model_validate({"name": _own_name(model), **dict(fields)})
        except ValidationError as error:
            raise _invalid(("model",), error, fields, Architecture) from None
        except UnsupportedConfigError as error:
            raise InputError([_unsupported(reason, error) for reason in error.reasons]) from None
    return found


def _own_name(model: str | Mapping[str, Any]) -> str:
    """What a model without a name in its fields is called: as its file, or the folder of its config.json."""
    if not isinstance(model, str):
        return "custom"
    path = Path(model)
    return (path.resolve().parent.name if path.stem == "config" else path.stem) or "custom"


def _unsupported(reason: str, error: UnsupportedConfigError) -> Trouble:
    where = dotted(("model", *((error.where,) if error.where else ())))
    return Trouble(where, configuration_reason(reason), error.value, error.allowed, error.nearest, path=("model",))


def _chip(name: str, request: ChipRequest, training: Training) -> Chip:
    path: KeyPath = ("cluster", "chips", name)
    where = dotted(path)
    if request.spec is None and request.file is None:
        try:
            chip = load_calibration().chip(load_chip(name))
        except UnknownChipError as error:
            raise _unknown("chip", "cluster.chips", name, error.nearest, path) from None
        if wrong := change_troubles(path, chip, request.changes):
            raise InputError(wrong)
        chip = changed_chip(chip, request.changes) if request.changes else chip
    else:
        fields = request.spec if request.file is None else _read(request.file, (*path, "file"))
        path = path if request.spec is None else (*path, "spec")
        try:
            own = {"name": name, "architecture": None, "variant": None}  # fitted to no family's runs
            chip = complete_chip({**(fields or {}), **own})
        except ValidationError as error:
            raise _invalid(path, error, fields, Chip) from None
    needed = (training.host_link, training.block_format, training.optimizer == "soap")
    reasons = unusable_reasons(chip, DTYPES[training.precision], *needed)
    if reasons:
        raise InputError(
            Trouble(
                where, later("cannot be planned for: {reasons}", reasons=as_messages("; ".join(reasons))), path=path
            )
        )
    return chip


def _unknown(kind: str, where: str, value: str, nearest: tuple[str, ...], path: KeyPath) -> InputError:
    allowed = say("a name that `apss-cp {kind}s` lists, or the {kind}'s own fields", kind=kind)
    return InputError(Trouble(where, say("unknown {kind}", kind=say(kind)), value, allowed, nearest, path=path))


def _plain(trouble: Trouble) -> dict[str, Any]:
    """A validator's own words without pydantic's preface, and without the whole mapping that it judged."""
    preface = "Value error, "
    if not trouble.message.startswith(preface):
        return {}
    return {"message": as_messages(trouble.message.removeprefix(preface)), "value": None}


def _records(annotation: Any) -> Iterator[type[BaseModel]]:
    """The records that a field may hold: `Moe` of `Moe | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _records(part)


def _invalid(where: KeyPath, error: ValidationError, fields: Any, schema: type[BaseModel]) -> InputError:
    """Pydantic's errors on a user's own model or chip, with the place in the spec before each."""

    def fields_at(path: KeyPath) -> Mapping[str, Any]:
        record: type[BaseModel] | None = schema
        for name in path:
            field = None if record is None else record.model_fields.get(str(name))
            record = None if field is None else next(_records(field.annotation), None)
        return {} if record is None else record.model_fields

    found = [(detail["loc"], validation_trouble(detail, fields, fields_at)) for detail in error.errors()]
    placed = [
        replace(trouble, path=(*where, *(loc if _plain(trouble) else trouble.path)), **_plain(trouble))
        for loc, trouble in found
    ]
    return InputError(tuple(replace(trouble, where=dotted(trouble.path)) for trouble in placed))
