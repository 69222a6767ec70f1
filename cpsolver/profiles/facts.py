"""What a training framework can run: every fact once.

A fact is a field of `Facts` (its value, with its source, is in a profile) and, where it refuses plans, one function
below: the plans that it allows, and what to say of one that it does not. Both are written for columns of candidate
rows and for the numbers of one plan alike, so that the search, the rules `launcher` and `stack`, the CP-SAT model and
the explanations all ask the same function (docs/adding-a-framework-fact.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from cpsolver.inputs.language import later, say
from cpsolver.plans.strategy import NAMED_MODULES, RecomputeKind, Schedule, Sharded
from cpsolver.profiles.judging import among, either, fact, negated, v_shaped
from cpsolver.profiles.switches import Dispatcher, GradientFusion, OffloadModule, OptimizerName, Precision, Switch
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
    ulysses_indexer: bool = _stated(
        "an indexer selects keys for ranks that exchange heads: each scores them all", False
    )
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
    moe_dispatchers: tuple[Dispatcher, ...] = _stated("what training.moe_dispatcher may be; none: it is not told")
    gradient_fusions: tuple[GradientFusion, ...] = _stated(
        "what training.gradient_accumulation_fusion may be; none: it is not told"
    )
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


def grouped(x: Any) -> Any:
    """Where some of the replicas shard the states among them."""
    return x.distributed_optimizer & (x.sharding_group > 0)


def listed(values: Any) -> str:
    """Names as people write them."""
    return ", ".join(map(str, values))


# tp, flash attention


@fact("layout", about="tp", briefly=later("has no tensor parallelism (tp 1)"))
def _tensor_parallel(f: Facts, m: Architecture, x: Any) -> Any:
    yield f.tensor_parallel | (x.tp == 1), lambda: later("has no tensor parallelism: tp is {x.tp}, and must be 1", x=x)


def _sequence_in_short(f: Facts) -> str:
    if not f.plain_tensor:
        return say("has sequence parallelism wherever tp > 1")
    return "" if f.sequence_parallel else say("has no sequence parallelism")


@fact("variant", about="sequence_parallel", briefly=_sequence_in_short)
def _sequence_parallel(f: Facts, m: Architecture, x: Any) -> Any:
    message = later("has no sequence parallelism: sequence_parallel must be false")
    yield f.sequence_parallel | negated(x.sequence_parallel), lambda: message


@fact("layout")
def _kv_groups(f: Facts, m: Architecture, x: Any) -> Any:
    one = m.attention.kind == "csa"  # its one head is whole on every rank, in a layer that is not split
    whole = (f.kv_groups != "divides") | one | (m.kv_heads % x.tp == 0)
    yield whole, lambda: later("needs tp to divide the {m.kv_heads} key-value heads, and tp is {x.tp}", m=m, x=x)


_FLASH = {(False,): later("has no flash attention"), (True,): later("always has flash attention")}


@fact("variant", about="flash_attention", briefly=lambda f: say(_FLASH.get(f.flash_attention, "")))
def _flash_attention(f: Facts, m: Architecture, x: Any) -> Any:
    yield among(x.flash_attention, f.flash_attention), lambda: _FLASH[(not x.flash_attention,)]


# The pipeline and its layers


@fact("layout", about="pp", briefly=later("has no pipeline (pp 1)"))
def _pipeline(f: Facts, m: Architecture, x: Any) -> Any:
    yield f.pipeline | (x.pp == 1), lambda: later("has no pipeline: pp is {x.pp}, and must be 1", x=x)


@fact("frame", about="vpp", briefly=later("does not interleave (vpp 1)"))
def _interleaving(f: Facts, m: Architecture, x: Any) -> Any:
    yield f.interleaving | (x.vpp == 1), lambda: later("does not interleave: vpp is {x.vpp}, and must be 1", x=x)
    alone = f.v_context | (x.cp == 1) | negated(v_shaped(x))
    yield (
        alone,
        lambda: later(
            "has no context parallelism with schedule {schedule}: cp is {x.cp}, and must be 1",
            schedule=x.plan.schedule,
            x=x,
        ),
    )


@fact("frame", about="pp mbs", briefly=later("needs a microbatch for each stage (global batch / mbs / dp >= pp)"))
def _few_microbatches(f: Facts, m: Architecture, x: Any) -> Any:
    allows = f.few_microbatches | (x.vpp > 1) | (x.microbatches >= x.pp)
    yield (
        allows,
        lambda: later("needs a microbatch for each stage: {x.microbatches} microbatches are fewer than pp {x.pp}", x=x),
    )


@fact("layout")
def _mtp_parallel(f: Facts, m: Architecture, x: Any) -> Any:
    allows = f.mtp_parallel | (m.mtp_layers == 0) | ((x.pp == 1) & (x.cp == 1))
    yield allows, lambda: later("has multi-token prediction with pp 1 and cp 1 only: pp is {x.pp}, cp is {x.cp}", x=x)


def tied_stages(f: Facts, m: Architecture, x: Any) -> tuple[Any, Any]:
    """Where all stages have equally many layers, and where at least all between the first and the last have."""

    def where(*values: Split) -> Any:
        return (
            (f.uneven_layers in values)
            | ((f.uneven_interleaved in values) & (x.vpp > 1))
            | ((f.uneven_context in values) & (x.cp > 1))
            | ((f.uneven_groups in values) & grouped(x))
            | ((f.uneven_mtp in values) & (m.mtp_layers > 0))
            | ((f.v_layers in values) & v_shaped(x))
        )

    return where("none"), where("none", "first_last")


@fact("frame")
def _whole_chunks(f: Facts, m: Architecture, x: Any) -> Any:
    _, tied = tied_stages(f, m, x)
    allows = negated(tied) | (x.embedding_slot + x.loss_slot == 0)
    yield (
        allows,
        lambda: later(
            "needs chunks of layers only: vpp {x.vpp} puts the embedding or the head in the place of one", x=x
        ),
    )


def _needs_equal(f: Facts) -> str:
    equal = say("needs equal stages")
    return {"none": equal, "first_last": say("needs equal middle stages"), "any": ""}[f.uneven_layers]


@fact("layout", "frame", about="layers", briefly=_needs_equal)
def _equal_stages(f: Facts, m: Architecture, x: Any) -> Any:
    equal, _ = tied_stages(f, m, x)
    chunks = x.pp * x.vpp
    yield (
        negated(equal) | (m.layers % chunks == 0),
        lambda: later(
            "needs equal stages: {m.layers} layers are not a multiple of pp {x.pp} x vpp {x.vpp} = {chunks}",
            m=m,
            x=x,
            chunks=chunks,
        ),
    )


@fact("plan")
def _equal_layers(f: Facts, m: Architecture, x: Any) -> Any:
    equal, tied = tied_stages(f, m, x)
    if equal and m.layers % (x.pp * x.vpp) == 0:  # else the fact above says so
        yield (
            len(set(x.layers)) == 1,
            lambda: later(
                "needs equal stages{where}, {each} layers each, not {layers}",
                where=_tied_where(m, x),
                each=m.layers // x.pp,
                layers=listed(x.layers),
            ),
        )
    elif tied and not equal:
        yield (
            len(set(x.layers[1:-1])) < 2,
            lambda: later(
                "needs equal stages between the first and the last{where}, not {layers}",
                where=_tied_where(m, x),
                layers=listed(x.layers),
            ),
        )


def _tied_where(m: Architecture, x: Any) -> str:
    text = with_sizes({"vpp": (x.vpp, 1), "cp": (x.cp, 1)})
    if grouped(x):
        text = later("{where} with a sharding group", where=text)
    return later("{where} with multi-token prediction", where=text) if m.mtp_layers else text


def with_sizes(sizes: Mapping[str, tuple[int, int]]) -> str:
    """The sizes, each beside its usual value, that are above that."""
    text = ""
    for name, (size, usual) in sizes.items():
        if size > usual:
            text = later("{where} with {name} {size}", where=text, name=name, size=size)
    return text


# Several chip types along the pipeline


@fact("mixture", about="stages", briefly=later("does not mix chip types"))
def _mixed_chips(f: Facts, m: Architecture, x: Any) -> Any:
    yield f.mixed_chips, lambda: later("does not mix chip types: one of {x.types}", x=x)


@fact("mixture")
def _mixed_chips_beside(f: Facts, m: Architecture, x: Any) -> Any:
    if not f.mixed_chips:
        return
    yield (
        f.mixed_chips_interleaving | (x.vpp == 1),
        lambda: later("does not interleave where chip types mix ({x.types}): vpp is {x.vpp}, not 1", x=x),
    )
    allows = f.mixed_chips_context | (x.cp == 1)
    yield (
        allows,
        lambda: later("has no context parallelism where chip types mix ({x.types}): cp is {x.cp}, and must be 1", x=x),
    )
    allows = f.mixed_chips_groups | negated(grouped(x))
    yield (
        allows,
        lambda: later("shards over all replicas where chip types mix ({x.types}): sharding_group must be 0", x=x),
    )


@fact("plan")
def _degrees_by_chip(f: Facts, m: Architecture, x: Any) -> Any:
    yield (
        f.degrees_by_chip | negated(x.unequal),
        lambda: later("has the same degrees on all stages, not {x.meshes_in_words}", x=x),
    )


# Context parallelism


def _context_in_short(f: Facts) -> str:
    kinds = listed(f.context_parallel)
    has = say("has context parallelism of kind {kinds}", kinds=kinds)
    text = has if kinds else say("has no context parallelism (cp 1)")
    text += say(", without a pipeline") if f.pipeline and not f.context_pipeline else ""
    return text + (say(", with the distributed optimizer") if not f.plain_context else "")


@fact("layout", about="cp ulysses cp_gather", briefly=_context_in_short)
def _context_parallel(f: Facts, m: Architecture, x: Any) -> Any:
    has = bool(f.context_parallel)
    yield has | (x.cp == 1), lambda: later("has no context parallelism: cp is {x.cp}, and must be 1", x=x)


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
    yield (
        allows,
        lambda: later(
            "has no context parallelism of kind {x.cp_comm_type}: {context_parallel}",
            x=x,
            context_parallel=listed(f.context_parallel),
        ),
    )


@fact("layout")
def _context_pipeline(f: Facts, m: Architecture, x: Any) -> Any:
    allows = f.context_pipeline | (x.cp == 1) | (x.pp == 1)
    yield (
        allows,
        lambda: later("has no context parallelism under a pipeline: cp {x.cp} needs pp 1, and pp is {x.pp}", x=x),
    )


@fact("variant")
def _ulysses_tensor(f: Facts, m: Architecture, x: Any) -> Any:
    yield (
        f.ulysses_tensor | negated(_all_to_all(x)) | (x.tp == 1),
        lambda: later(
            "has no tensor parallelism beside all-to-all (ulysses {x.ulysses}): tp is {x.tp}, and must be 1", x=x
        ),
    )


@fact("variant")
def _ulysses_groups(f: Facts, m: Architecture, x: Any) -> Any:
    allows = f.ulysses_groups | negated(_all_to_all(x)) | negated(grouped(x))
    yield (
        allows,
        lambda: later(
            "shards over all replicas beside all-to-all (ulysses {x.ulysses}): sharding_group is {x.sharding_group}, "
            "and must be 0",
            x=x,
        ),
    )


# Experts


@fact("variant", about="ep", briefly=later("has no expert parallelism (ep 1)"))
def _expert_parallel(f: Facts, m: Architecture, x: Any) -> Any:
    yield f.expert_parallel | (x.ep == 1), lambda: later("has no expert parallelism: ep is {x.ep}, and must be 1", x=x)


def _whole_in_short(f: Facts) -> str:
    return "" if f.expert_tensor_parallel == "any" else say("does not split every expert (etp 1)")


@fact("variant", about="etp", briefly=_whole_in_short)
def _expert_tensor_parallel(f: Facts, m: Architecture, x: Any) -> Any:
    any_bias = f.expert_tensor_parallel == "one"
    whole = any_bias or (f.expert_tensor_parallel == "without_bias" and m.bias_mlp)
    told = (
        later("does not split an expert: etp is {x.etp}, and must be 1")
        if any_bias
        else later("does not split an expert that has a bias: etp is {x.etp}, and must be 1")
    )
    yield (not whole) | (x.etp == 1), lambda: later(told, x=x)


@fact("variant", about="expert_overlap", briefly=later("does not overlap experts' all-to-alls"))
def _expert_overlap(f: Facts, m: Architecture, x: Any) -> Any:
    message = later(
        "does not overlap experts' all-to-alls with another microbatch's compute: expert_overlap must be false"
    )
    yield f.expert_overlap | negated(x.expert_overlap), lambda: message


@fact("variant")
def _experts_within(f: Facts, m: Architecture, x: Any) -> Any:
    group = either(x.distributed_optimizer, x.dp * x.cp, x.cp)  # of some replicas: rule sharding
    yield (
        (f.experts_within == "stage") | (x.tp * group % (x.etp * x.ep) == 0),
        lambda: later(
            "keeps experts within tp {x.tp} x {group} ranks of a sharding group, which ep {x.ep} x etp {x.etp} must "
            "divide",
            x=x,
            group=group,
        ),
    )


@fact("layout", about="pp", briefly=later("needs fewer dense layers before the experts than a stage's even share"))
def _dense_stages(f: Facts, m: Architecture, x: Any) -> Any:
    first, even = m.moe.first_dense if m.moe else 0, m.layers // x.pp
    allows = f.dense_stages | (first == 0) | (x.pp == 1) | (first < even)
    yield (
        allows,
        lambda: later(
            "needs fewer dense layers before the experts than a stage's even share: {first} are not fewer than {even}, "
            "{m.layers} layers over pp {x.pp}",
            first=first,
            even=even,
            m=m,
            x=x,
        ),
    )
