"""What a training framework can run: every fact once.

A fact is a field of `Facts` (its value, with its source, is in a profile) and, where it refuses plans, one function
below: the plans that it allows, and what to say of one that it does not. Both are written for columns of candidate
rows and for the numbers of one plan alike, so that the search, the rules `launcher` and `stack`, the CP-SAT model and
the explanations all ask the same function (docs/adding-a-framework-fact.md).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from cpsolver.plans.strategy import CORE, NAMED_MODULES, RecomputeKind, Schedule, Sharded
from cpsolver.profiles.judging import SHARDED, among, either, fact, negated, v_shaped
from cpsolver.profiles.switches import OffloadModule, OptimizerName, Precision, Switch
from models_zoo import Architecture
from models_zoo.schema import SpecialLayer
from models_zoo.vision import EncoderFamily

Split = Literal["none", "first_last", "any"]
"""Layers by stage: all equal; all but the first and the last equal; any."""
CpType = Literal["p2p", "allgather", "a2a", "a2a+p2p"]

_KINDS: tuple[RecomputeKind, ...] = ("selective", "block", "uniform")


def _stated(description: str, unstated: Any = None) -> Any:
    """A field that a launcher profile has to state; `unstated`: what a stack that says nothing of it has.

    None: what rules nothing out, which is true, the last of a Literal, or all that a tuple may hold.
    """
    return Field(description=description, json_schema_extra={"unstated": unstated})


class Facts(BaseModel):
    """The facts of a framework. A choice's values stand the strictest first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tensor_parallel: bool = _stated("tp > 1")
    sequence_parallel: bool = _stated("sequence parallelism as Megatron's, inside tp")
    kv_groups: Literal["divides", "divides_or_multiple"] = _stated("tp divides kv heads; or they may also divide tp")
    pipeline: bool = _stated("pp > 1")
    interleaving: bool = _stated("vpp > 1")
    zero_bubble: tuple[Schedule, ...] = _stated("its schedules that split backward passes", ())
    breadth_first: bool = _stated("interleaving in groups of all microbatches", False)
    few_microbatches: bool = _stated("fewer microbatches than stages, with vpp 1")
    dynamic_micro_batches: bool = _stated("microbatches of different sizes in a pipeline", False)
    uneven_layers: Split = _stated("layers by stage")
    uneven_interleaved: Split = _stated("the same with vpp > 1")
    uneven_context: Split = _stated("the same with cp > 1")
    uneven_groups: Split = _stated("the same with a sharding group; with vpp > 1 no stricter than without one")
    uneven_mtp: Split = _stated("the same for a model with multi-token prediction")
    uneven_flag: str = _stated("how stages that differ are told; empty where they cannot", "")
    mixed_chips: bool = _stated("chip types may be mixed along the pipeline")
    mixed_chips_interleaving: bool = _stated("and with vpp > 1")
    mixed_chips_context: bool = _stated("and with cp > 1")
    mixed_chips_groups: bool = _stated("and with a sharding group")
    degrees_by_chip: bool = _stated("and with tp, dp and ep of their own")
    context_parallel: tuple[CpType, ...] = _stated("its kinds of context parallelism; none: cp is 1")
    context_pipeline: bool = _stated("cp > 1 with pp > 1")
    ulysses_tensor: bool = _stated("cp > 1 of kind a2a with tp > 1")
    ulysses_groups: bool = _stated("cp > 1 of kind a2a with a sharding group")
    ulysses_repeats: bool = _stated("keys and values of fewer heads than ranks that exchange are repeated", False)
    mtp_parallel: bool = _stated("multi-token prediction with pp > 1 or cp > 1")
    flash_attention: tuple[bool, ...] = _stated("what flash_attention may be", (False, True))
    expert_parallel: bool = _stated("ep > 1")
    expert_tensor_parallel: Literal["one", "without_bias", "any"] = _stated(
        "etp: only 1; more for a model whose feed-forward has no bias; more for all"
    )
    experts_within: Literal["sharding_group", "stage"] = _stated(
        "etp * ep divides tp times the replicas of a sharding group, or tp times all replicas"
    )
    expert_overlap: bool = _stated("experts' all-to-alls while another microbatch computes")
    sharded: tuple[Sharded, ...] = _stated("what replicas shard without a pipeline; none: nothing")
    sharded_pipeline: tuple[Sharded, ...] = _stated("the same with pp > 1", ("optimizer",))  # rule sharding: no more
    sharding_groups: tuple[Sharded, ...] = _stated("what may be sharded in groups of some replicas")
    whole_context_groups: bool = _stated("a sharding group holds whole context-parallel groups")
    context_groups: bool = _stated("with cp > 1 a sharding group may be one context-parallel group")
    plain_replicas: bool = _stated("replicas without sharding go together with tp or cp > 1")
    plain_context: bool = _stated("cp > 1 without the distributed optimizer")
    recompute: tuple[RecomputeKind, ...] = _stated("its kinds of recomputation besides none", _KINDS)
    recompute_modules: tuple[str, ...] = _stated(
        "modules that selective recomputation can have, by Megatron-LM's names, or operators", NAMED_MODULES
    )
    recompute_units: Literal["one", "any"] = _stated("layers in a unit of uniform recomputation")
    recompute_by_stage: tuple[RecomputeKind, ...] = _stated(
        "kinds and numbers that may differ from stage to stage; none: one choice for the whole plan", _KINDS
    )
    recompute_by_stage_interleaving: bool = _stated("they may differ with vpp > 1")
    recompute_by_stage_context: bool = _stated("and with cp > 1")
    recompute_by_stage_groups: bool = _stated("and with a sharding group")
    precisions: tuple[Precision, ...] = _stated("what training.precision may be")
    optimizers: tuple[OptimizerName, ...] = _stated("what training.optimizer may be")
    switches: tuple[Switch, ...] = _stated("fields of training that may have another value than their default")
    activation_offload: tuple[OffloadModule, ...] = _stated("what training.activation_offload may have")
    partial_offload: tuple[Sharded, ...] = _stated("what may be sharded where optimizer_offload is between 0 and 1")
    special_layers: tuple[SpecialLayer, ...] = _stated("layers beside attention and feed-forward, one after the other")
    adapters: Literal["none", "plain", "any"] = _stated(
        "training.lora: none; those of dense models as they are usual (`adapters_asked` of resolve.py); any"
    )
    packed_sequences: bool = _stated("training.lengths, packed: attention within each of the sequences in a window")
    encoders: dict[EncoderFamily, dict[str, Any]] = _stated("encoders of images; facts that differ beside", {})
    experts_anywhere: bool = _stated("layers with experts need not be every n-th one from the first behind dense ones")
    dense_stages: bool = _stated("dense layers before those with experts may fill an even share of a stage, or more")
    one_group_in_turn: bool = Field(default=True, description="breadth-first runs its last chunk as 1F1B, not GPipe")
    v_layers: Split = Field(default="any", description="layers by stage with schedules placed as a V")
    v_context: bool = Field(default=True, description="cp > 1 with those")
    plain_tensor: bool = Field(default=True, description="tp > 1 without sequence parallelism")
    whole_encoder: bool = Field(default=False, description="tp ranks have an encoder of images whole")
    plain_weights: bool = Field(
        default=True, description="the optimizer's states may be whole on every rank: DDP, or a single replica"
    )
    plain_beside: bool = Field(default=True, description="replicas without sharding go together with pp or ep > 1")
    short_interleaving: bool = Field(
        default=True, description="vpp > 1 with pp 2, or with fewer than two microbatches for each stage"
    )
    experts_split_tensor: bool = Field(default=True, description="ep > 1 that is no multiple of tp")

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """The pipeline schedules that it has."""
        return ("1f1b", *self.zero_bubble, *(("breadth_first",) if self.breadth_first else ()))


def _shards(x: Any, kinds: tuple[Sharded, ...]) -> Any:
    """Where the ranks shard one of these, whether or not there is a distributed optimizer."""
    return among(x.sharded, tuple(1 + SHARDED.index(kind) for kind in kinds))


def _grouped(x: Any) -> Any:
    """Where some of the replicas shard the states among them."""
    return x.distributed_optimizer & (x.sharding_group > 0)


def _listed(values: Any) -> str:
    return ", ".join(map(str, values))


# tp, flash attention


@fact("layout", about="tp", briefly="has no tensor parallelism (tp 1)")
def _tensor_parallel(f: Facts, m: Architecture, x: Any) -> Any:
    yield f.tensor_parallel | (x.tp == 1), lambda: f"has no tensor parallelism: tp is {x.tp}, and must be 1"


def _sequence_in_short(f: Facts) -> str:
    if not f.plain_tensor:
        return "has sequence parallelism wherever tp > 1"
    return "" if f.sequence_parallel else "has no sequence parallelism"


@fact("variant", about="sequence_parallel", briefly=_sequence_in_short)
def _sequence_parallel(f: Facts, m: Architecture, x: Any) -> Any:
    message = "has no sequence parallelism: sequence_parallel must be false"
    yield f.sequence_parallel | negated(x.sequence_parallel), lambda: message


@fact("layout")
def _kv_groups(f: Facts, m: Architecture, x: Any) -> Any:
    whole = (f.kv_groups != "divides") | (m.kv_heads % x.tp == 0)
    yield whole, lambda: f"needs tp to divide the {m.kv_heads} key-value heads, and tp is {x.tp}"


_FLASH = {(False,): "has no flash attention", (True,): "always has flash attention"}


@fact("variant", about="flash_attention", briefly=lambda f: _FLASH.get(f.flash_attention, ""))
def _flash_attention(f: Facts, m: Architecture, x: Any) -> Any:
    yield among(x.flash_attention, f.flash_attention), lambda: _FLASH[(not x.flash_attention,)]


# The pipeline and its layers


@fact("layout", about="pp", briefly="has no pipeline (pp 1)")
def _pipeline(f: Facts, m: Architecture, x: Any) -> Any:
    yield f.pipeline | (x.pp == 1), lambda: f"has no pipeline: pp is {x.pp}, and must be 1"


@fact("frame", about="vpp", briefly="does not interleave (vpp 1)")
def _interleaving(f: Facts, m: Architecture, x: Any) -> Any:
    yield f.interleaving | (x.vpp == 1), lambda: f"does not interleave: vpp is {x.vpp}, and must be 1"
    alone = f.v_context | (x.cp == 1) | negated(v_shaped(x))
    yield alone, lambda: f"has no context parallelism with schedule {x.plan.schedule}: cp is {x.cp}, and must be 1"


@fact("frame", about="pp mbs", briefly="needs a microbatch for each stage (global batch / mbs / dp >= pp)")
def _few_microbatches(f: Facts, m: Architecture, x: Any) -> Any:
    allows = f.few_microbatches | (x.vpp > 1) | (x.microbatches >= x.pp)
    yield allows, lambda: f"needs a microbatch for each stage: {x.microbatches} microbatches are fewer than pp {x.pp}"


@fact("layout")
def _mtp_parallel(f: Facts, m: Architecture, x: Any) -> Any:
    message = "has multi-token prediction with pp 1 and cp 1 only"
    allows = f.mtp_parallel | (m.mtp_layers == 0) | ((x.pp == 1) & (x.cp == 1))
    yield allows, lambda: f"{message}: pp is {x.pp}, cp is {x.cp}"


def tied_stages(f: Facts, m: Architecture, x: Any) -> tuple[Any, Any]:
    """Where all stages have equally many layers, and where at least all between the first and the last have."""

    def where(*values: Split) -> Any:
        return (
            (f.uneven_layers in values)
            | ((f.uneven_interleaved in values) & (x.vpp > 1))
            | ((f.uneven_context in values) & (x.cp > 1))
            | ((f.uneven_groups in values) & _grouped(x))
            | ((f.uneven_mtp in values) & (m.mtp_layers > 0))
            | ((f.v_layers in values) & v_shaped(x))
        )

    return where("none"), where("none", "first_last")


@fact("frame")
def _whole_chunks(f: Facts, m: Architecture, x: Any) -> Any:
    _, tied = tied_stages(f, m, x)
    allows = negated(tied) | (x.embedding_slot + x.loss_slot == 0)
    yield allows, lambda: f"needs chunks of layers only: vpp {x.vpp} puts the embedding or the head in the place of one"


def _needs_equal(f: Facts) -> str:
    return {"none": "needs equal stages", "first_last": "needs equal middle stages", "any": ""}[f.uneven_layers]


@fact("layout", "frame", about="layers", briefly=_needs_equal)
def _equal_stages(f: Facts, m: Architecture, x: Any) -> Any:
    equal, _ = tied_stages(f, m, x)
    chunks = x.pp * x.vpp
    yield (
        negated(equal) | (m.layers % chunks == 0),
        lambda: f"needs equal stages: {m.layers} layers are not a multiple of pp {x.pp} x vpp {x.vpp} = {chunks}",
    )


@fact("plan")
def _equal_layers(f: Facts, m: Architecture, x: Any) -> Any:
    equal, tied = tied_stages(f, m, x)
    where = "".join(f" with {name} {size}" for name, size in (("vpp", x.vpp), ("cp", x.cp)) if size > 1)
    where += " with a sharding group" * _grouped(x) + " with multi-token prediction" * (m.mtp_layers > 0)
    layers = f"{m.layers // x.pp} layers each, not {_listed(x.layers)}"
    if equal and m.layers % (x.pp * x.vpp) == 0:  # else the fact above says so
        yield len(set(x.layers)) == 1, lambda: f"needs equal stages{where}, {layers}"
    elif tied and not equal:
        between = "needs equal stages between the first and the last"
        yield len(set(x.layers[1:-1])) < 2, lambda: f"{between}{where}, not {_listed(x.layers)}"


# Several chip types along the pipeline


@fact("mixture", about="stages", briefly="does not mix chip types")
def _mixed_chips(f: Facts, m: Architecture, x: Any) -> Any:
    yield f.mixed_chips, lambda: f"does not mix chip types: one of {x.types}"


@fact("mixture")
def _mixed_chips_beside(f: Facts, m: Architecture, x: Any) -> Any:
    if not f.mixed_chips:
        return
    mix, one = "where chip types mix", x.vpp == 1
    yield f.mixed_chips_interleaving | one, lambda: f"does not interleave {mix} ({x.types}): vpp is {x.vpp}, not 1"
    allows = f.mixed_chips_context | (x.cp == 1)
    yield allows, lambda: f"has no context parallelism {mix} ({x.types}): cp is {x.cp}, and must be 1"
    allows = f.mixed_chips_groups | negated(_grouped(x))
    yield allows, lambda: f"shards over all replicas {mix} ({x.types}): sharding_group must be 0"


@fact("plan")
def _degrees_by_chip(f: Facts, m: Architecture, x: Any) -> Any:
    yield f.degrees_by_chip | negated(x.unequal), lambda: f"has the same degrees on all stages, not {x.meshes_in_words}"


# Context parallelism


def _context_in_short(f: Facts) -> str:
    kinds = _listed(f.context_parallel)
    text = f"has context parallelism of kind {kinds}" if kinds else "has no context parallelism (cp 1)"
    text += ", without a pipeline" * (f.pipeline and not f.context_pipeline)
    return text + ", with the distributed optimizer" * (not f.plain_context)


@fact("layout", about="cp ulysses cp_gather", briefly=_context_in_short)
def _context_parallel(f: Facts, m: Architecture, x: Any) -> Any:
    has = bool(f.context_parallel)
    yield has | (x.cp == 1), lambda: f"has no context parallelism: cp is {x.cp}, and must be 1"


def _all_to_all(x: Any) -> Any:
    """Where all context-parallel ranks exchange heads for tokens, and none passes keys on."""
    return (x.ulysses > 1) & (x.ulysses == x.cp)


@fact("variant")
def _context_kind(f: Facts, m: Architecture, x: Any) -> Any:
    if not f.context_parallel:  # the fact above says so
        return
    kinds: dict[CpType, Any] = {
        "p2p": (x.ulysses == 1) & negated(x.cp_gather),
        "allgather": (x.ulysses == 1) & x.cp_gather,
        "a2a": _all_to_all(x),
        "a2a+p2p": (x.ulysses > 1) & (x.ulysses != x.cp),
    }
    allows = x.cp == 1
    for kind in f.context_parallel:
        allows = allows | kinds[kind]
    yield allows, lambda: f"has no context parallelism of kind {x.cp_comm_type}: {_listed(f.context_parallel)}"


@fact("layout")
def _context_pipeline(f: Facts, m: Architecture, x: Any) -> Any:
    allows = f.context_pipeline | (x.cp == 1) | (x.pp == 1)
    yield allows, lambda: f"has no context parallelism under a pipeline: cp {x.cp} needs pp 1, and pp is {x.pp}"


@fact("variant")
def _ulysses_tensor(f: Facts, m: Architecture, x: Any) -> Any:
    yield (
        f.ulysses_tensor | negated(_all_to_all(x)) | (x.tp == 1),
        lambda: f"has no tensor parallelism beside all-to-all (ulysses {x.ulysses}): tp is {x.tp}, and must be 1",
    )


@fact("variant")
def _ulysses_groups(f: Facts, m: Architecture, x: Any) -> Any:
    message = "shards over all replicas beside all-to-all"
    allows = f.ulysses_groups | negated(_all_to_all(x)) | negated(_grouped(x))
    yield allows, lambda: f"{message} (ulysses {x.ulysses}): sharding_group is {x.sharding_group}, and must be 0"


# Experts


@fact("variant", about="ep", briefly="has no expert parallelism (ep 1)")
def _expert_parallel(f: Facts, m: Architecture, x: Any) -> Any:
    yield f.expert_parallel | (x.ep == 1), lambda: f"has no expert parallelism: ep is {x.ep}, and must be 1"


def _whole_in_short(f: Facts) -> str:
    return "" if f.expert_tensor_parallel == "any" else "does not split every expert (etp 1)"


@fact("variant", about="etp", briefly=_whole_in_short)
def _expert_tensor_parallel(f: Facts, m: Architecture, x: Any) -> Any:
    any_bias = f.expert_tensor_parallel == "one"
    whole = any_bias or (f.expert_tensor_parallel == "without_bias" and m.bias_mlp)
    which = "an expert" if any_bias else "an expert that has a bias"
    yield (not whole) | (x.etp == 1), lambda: f"does not split {which}: etp is {x.etp}, and must be 1"


@fact("variant", about="expert_overlap", briefly="does not overlap experts' all-to-alls")
def _expert_overlap(f: Facts, m: Architecture, x: Any) -> Any:
    message = "does not overlap experts' all-to-alls with another microbatch's compute: expert_overlap must be false"
    yield f.expert_overlap | negated(x.expert_overlap), lambda: message


@fact("variant")
def _experts_within(f: Facts, m: Architecture, x: Any) -> Any:
    group = either(_grouped(x), x.sharding_group, either(x.distributed_optimizer, x.dp * x.cp, x.cp))
    yield (
        (f.experts_within == "stage") | (x.tp * group % (x.etp * x.ep) == 0),
        lambda: (
            f"keeps experts within tp {x.tp} x {group} ranks of a sharding group, which ep {x.ep} x etp {x.etp} "
            "must divide"
        ),
    )


@fact("layout", about="pp", briefly="needs fewer dense layers before the experts than a stage's even share")
def _dense_stages(f: Facts, m: Architecture, x: Any) -> Any:
    first, even = m.moe.first_dense if m.moe else 0, m.layers // x.pp
    message = "needs fewer dense layers before the experts than a stage's even share"
    allows = f.dense_stages | (first == 0) | (x.pp == 1) | (first < even)
    yield allows, lambda: f"{message}: {first} are not fewer than {even}, {m.layers} layers over pp {x.pp}"


# Sharding over replicas


@fact("variant")
def _plain_replicas(f: Facts, m: Architecture, x: Any) -> Any:
    yield (
        f.plain_replicas | x.distributed_optimizer | (x.dp == 1) | ((x.tp == 1) & (x.cp == 1)),
        lambda: f"needs sharded replicas with tp {x.tp}, cp {x.cp} and dp {x.dp}: distributed_optimizer must be true",
    )


@fact("variant")
def _plain_context(f: Facts, m: Architecture, x: Any) -> Any:
    allows = f.plain_context | x.distributed_optimizer | (x.cp == 1)
    yield allows, lambda: f"shards over context-parallel ranks: with cp {x.cp} distributed_optimizer must be true"


def sharded_in_short(f: Facts) -> str:
    """What of the states is shared out, in words that follow a framework's name."""
    alone, under = (_listed(kinds) or "nothing" for kinds in (f.sharded, f.sharded_pipeline))
    return f"shares out {alone}" + f" without a pipeline, {under} with one" * f.pipeline


@fact("variant", about="sharded", briefly=sharded_in_short)
def _sharded(f: Facts, m: Architecture, x: Any) -> Any:
    shards = ((x.pp == 1) & _shards(x, f.sharded)) | ((x.pp > 1) & _shards(x, f.sharded_pipeline))
    yield negated(x.distributed_optimizer) | shards, lambda: _unsharded(f, x)


def _unsharded(f: Facts, x: Any) -> str:
    kinds = f.sharded if x.pp == 1 else f.sharded_pipeline
    choice = f"sharded may be {_listed(kinds)}" if kinds else "distributed_optimizer must be false"
    return f"does not share out {x.plan.sharded} with pp {x.pp}: {choice}"


def _groups_in_short(f: Facts) -> str:
    several = ", of several context-parallel groups" * (not f.context_groups and bool(f.sharding_groups))
    return f"shares out {_listed(f.sharding_groups) or 'nothing'} in groups{several}"


@fact("variant", about="sharding_group", briefly=_groups_in_short)
def _sharding_groups(f: Facts, m: Architecture, x: Any) -> Any:
    size, alone = x.sharding_group, negated(_grouped(x))
    known = alone | _shards(x, f.sharding_groups)
    whole = alone | (not f.whole_context_groups) | (size % x.cp == 0)
    several = alone | f.context_groups | (x.cp == 1) | (size != x.cp)
    yield known, lambda: f"shares out {x.plan.sharded} over all replicas: sharding_group is {size}, and must be 0"
    needs = "needs a sharding group of"
    yield (
        whole | negated(known),
        lambda: f"{needs} whole context-parallel groups: {size} is no multiple of cp {x.cp}",
    )
    yield (
        several | negated(known & whole),
        lambda: f"{needs} several context-parallel groups: {size} is one of cp {x.cp}",
    )


# Recomputation, of which rows of the search know nothing


@fact("plan")
def _recompute(f: Facts, m: Architecture, x: Any) -> Any:
    has = ("none", *f.recompute)
    for kind in dict.fromkeys(x.recompute):
        yield kind in has, lambda kind=kind: f"has no recomputation of kind {kind}: {_listed(has)}"


@fact("plan")
def _recompute_units(f: Facts, m: Architecture, x: Any) -> Any:
    units = [n for kind, n in zip(x.recompute, x.recompute_layers, strict=False) if kind == "uniform" and n > 1]
    yield (
        f.recompute_units == "any" or not units,
        lambda: f"recomputes layer by layer: uniform with {units[0]} layers must be 1",
    )


def differing_kinds(f: Facts, x: Any) -> tuple[RecomputeKind, ...]:
    """The kinds of recomputation that may differ from stage to stage: of one plan, or of one row in columns."""
    free = f.recompute_by_stage_interleaving | (x.vpp == 1)
    free = free & (f.recompute_by_stage_context | (x.cp == 1))
    free = free & (f.recompute_by_stage_groups | negated(_grouped(x)))
    return f.recompute_by_stage if free else ()


@fact("plan")
def _recompute_by_stage(f: Facts, m: Architecture, x: Any) -> Any:
    free = differing_kinds(f, x)
    settings = dict.fromkeys(zip(x.recompute, x.recompute_layers, x.recompute_modules, strict=False))
    alike = len(settings) == 1 or all(kind in free for kind, *_ in settings)
    yield alike, lambda: _differs(f, x, free, list(settings))


def _differs(f: Facts, x: Any, free: tuple[RecomputeKind, ...], settings: list[tuple[Any, int, Any]]) -> str:
    words = ((kind, *[str(n)] * (n > 0), *(modules if modules != CORE else ())) for kind, n, modules in settings)
    shown = ", ".join(map(" ".join, words))
    choice = f"only {_listed(free)} may differ" if free else "one choice for all"
    sizes = {"vpp": (x.vpp, 1), "cp": (x.cp, 1), "sharding_group": (x.sharding_group, 0)}
    tied = f.recompute_by_stage != free
    where = "".join(f" with {name} {size}" for name, (size, usual) in sizes.items() if tied and size > usual)
    return f"cannot recompute differently by stage{where} ({shown}): {choice}"
