"""What a script recomputes, in the terms of a plan: kind, layers by stage and modules.

Meaning by Megatron-LM d98e8a6 (core/recompute.py): uniform has units of K layers; block the first K layers of each
chunk. MindSpeed 028de58 counts K by pipeline rank with --enable-recompute-layers-per-pp-rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from cpsolver.doors.importing.arguments import Arguments
from cpsolver.doors.importing.split import LayerSplit
from cpsolver.inputs.language import later, say
from cpsolver.plans.strategy import BESIDE_FUNCTIONS, CORE, NAMED_MODULES, OPERATORS, RecomputeKind, Strategy
from cpsolver.profiles.switches import ZeroMemory

_OTHERS = later("layers where they are not")
"""What stands beside the activation functions of only some layers."""

_ON_DEEPSPEED = {"deepspeed", "deepspeed_config", "num-key-value-heads"}
"""Arguments that tell Megatron-DeepSpeed."""


@dataclass(frozen=True)
class Recomputation:
    """Kind, number by stage (0: none) and modules. `refusals`: why no plan can express it; `notes`: what to know.

    `blocks`: layers of all stages whose feed-forward blocks are recomputed beside attention that waits on the host.
    """

    kind: RecomputeKind = "none"
    amounts: tuple[int, ...] = ()
    modules: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    blocks: int = 0


def read_recomputation(arguments: Arguments, pp: int, split: LayerSplit | None) -> Recomputation:
    """The recomputation that the arguments ask for; contradictions are left in `arguments.troubles`.

    `split`: layers and chunks of the stages; None where they are wrong.
    """
    granularity = arguments.text("recompute-granularity")
    method, number = arguments.text("recompute-method"), arguments.number("recompute-num-layers", least=0)
    by_stage = arguments.numbers("custom-pipeline-recompute-layers")
    modules = tuple(name for value in arguments.values("recompute-modules") for name in value.split(","))
    short_flag = arguments.has("recompute-activations")
    if arguments.has("checkpoint-activations"):  # Megatron up to 2.6: units of --checkpoint-num-layers
        return Recomputation("uniform", (arguments.number("checkpoint-num-layers", 1) or 1,) * pp)
    if arguments.has("moe-layer-recompute") and granularity != "full":  # deprecated: adds `moe` to the modules
        return _selective(arguments, (*(modules or CORE), "moe"))
    if short_flag:  # whatever --recompute-granularity says: validate_args sets it, in every version
        granularity = "selective"
    if granularity is None:  # --recompute-modules alone turns nothing on (transformer_config.py)
        if number and arguments.has("swap-attention"):
            return _beside_swap(arguments, number, split)
        return Recomputation()  # --recompute-method alone turns nothing on either
    if granularity == "selective":
        if method is not None:
            arguments.trouble("--recompute-method", "goes with --recompute-granularity full only", method)
        return _selective(arguments, modules)
    if granularity != "full":
        arguments.trouble("--recompute-granularity", "is not one of the choices", granularity, "full, selective")
        return Recomputation()
    if by_stage is not None and method == "uniform":
        return Recomputation(refusals=(say("--custom-pipeline-recompute-layers goes with --recompute-method block"),))
    if by_stage is not None and method == "block":
        return _by_stage(arguments, by_stage, pp, split)
    return _full(arguments, method, number, pp, split.vpp if split else 1)


def _beside_swap(arguments: Arguments, number: int, split: LayerSplit | None) -> Recomputation:
    """The feed-forward blocks of each stage's first layers, recomputed where attention is swapped, experts with their
    exchange too: MindSpeed 028de58, core/memory/swap_attention (solve_prefetch_policy: the number is a chunk's, or the
    stage's with --enable-recompute-layers-per-pp-rank; is_recompute_layer: the module `mlp`). Of some layers a spec
    says it where stages are alike, and all layers. With --recompute-method block no other layer is swapped either;
    uniform takes all, whatever the number."""
    method = arguments.text("recompute-method")
    if split is not None and method == "uniform":
        number = max(split.layers)
    elif split is not None and not arguments.has("enable-recompute-layers-per-pp-rank"):
        number *= split.vpp
    if split is not None and number >= max(split.layers):
        return Recomputation("selective", (), _blocks(arguments))
    if method == "block":
        told = say(
            "--swap-attention with --recompute-method block takes the first layers of each stage alone, and the plan "
            "has attention of all on the host: memory is predicted too low"
        )
        return Recomputation(notes=(told,))
    if split is not None and len(set(split.layers)) == 1 and _one_kind(arguments):
        return Recomputation(blocks=number * len(split.layers))
    told = say(
        "--recompute-num-layers beside --swap-attention is not in the plan: feed-forward blocks of some layers "
        "computed again; memory is predicted too high, time too short"
    )
    return Recomputation(notes=(told,))


def _one_kind(arguments: Arguments) -> bool:
    """Whether all layers are of one kind, as far as arguments say."""
    kinds = ("num-experts", "mtp-num-layers", "hybrid-layer-pattern", "full-attention-interval")
    return not any(name in arguments.given for name in kinds)


def _blocks(arguments: Arguments) -> tuple[str, ...]:
    """The modules that stand for the feed-forward blocks of all layers."""
    if not arguments.has("num-experts"):
        return ("mlp",)
    some_dense = (arguments.number("first-k-dense-replace", 0, least=-1) or 0) > 0
    every = arguments.text("moe-layer-freq", "1") in ("1", "-1")
    return ("moe",) if every and not some_dense else ("mlp", "moe")


def _by_stage(arguments: Arguments, amounts: list[int], pp: int, split: LayerSplit | None) -> Recomputation:
    """LoongForge's list of layers by stage. How they spread over chunks is not known, unless they are all layers."""
    if len(amounts) != pp:
        arguments.trouble(
            "--custom-pipeline-recompute-layers",
            say("has {amounts} numbers for {pp} stages", amounts=len(amounts), pp=pp),
        )
        return Recomputation()
    if not any(amounts):
        return Recomputation()
    refusals: tuple[str, ...] = (say("--custom-pipeline-recompute-layers has a 0"),) if 0 in amounts else ()
    if split is not None and split.vpp > 1:
        if all(amount >= layers for amount, layers in zip(amounts, split.layers, strict=True)):
            return Recomputation("uniform", (1,) * pp)  # every layer, each a unit of its own, as by block
        told = say(
            "--custom-pipeline-recompute-layers with {chunks} chunks a stage: which layers of each is not known",
            chunks=split.vpp,
        )
        refusals += (told,)
    return Recomputation("block", tuple(amounts), refusals=refusals)


def _full(arguments: Arguments, method: str | None, number: int | None, pp: int, vpp: int) -> Recomputation:
    if method not in ("uniform", "block"):
        message = (
            say("must be given with --recompute-granularity full")
            if method is None
            else say("is not one of the choices")
        )
        arguments.trouble("--recompute-method", message, method, "uniform, block")
        return Recomputation()
    if number is None and _ON_DEEPSPEED & arguments.given.keys():
        number = 1  # the default of Megatron-DeepSpeed 4efb479 (megatron/arguments.py); Megatron-LM has none since 0.4
    if number is None:
        arguments.trouble("--recompute-num-layers", say("must be given with --recompute-granularity full"))
        return Recomputation()
    if number == 0:
        return Recomputation()
    by_rank = arguments.has("enable-recompute-layers-per-pp-rank")
    if method == "block" and by_rank:
        if number % vpp:
            refusal = say(
                "{number} recomputed layers of a rank in {vpp} chunks: not the same number in each",
                number=number,
                vpp=vpp,
            )
            return Recomputation("block", (number,) * pp, refusals=(refusal,))
        number //= vpp
    return Recomputation("uniform" if method == "uniform" else "block", (number,) * pp)


def _selective(arguments: Arguments, modules: tuple[str, ...]) -> Recomputation:
    unknown = tuple(name for name in modules if name not in NAMED_MODULES and modules != OPERATORS)
    refusals = tuple(
        say(
            "recompute module {name} is not known here: {named_modules}",
            name=name,
            named_modules=", ".join(NAMED_MODULES),
        )
        for name in unknown
    )
    return Recomputation("selective", (), modules, refusals)


def recomputed_functions(
    arguments: Arguments, strategy: Strategy | None, adapters: bool
) -> tuple[dict[str, Any], list[str]]:
    """`recompute_activation_function` of the spec's training, and notes where only a plan with more words has it.

    Layers that are recomputed whole come first in each chunk, then these: as many as the second argument says, or all
    (MindSpeed 028de58, core/memory/recompute/recompute_common.py, should_recompute).
    """
    number = arguments.number("recompute-activation-function-num-layers", least=0)
    if not arguments.has("recompute-activation-function") or number == 0:
        return {}, []
    lacking = later("adapters") if adapters else "" if number is None else _OTHERS
    if strategy is not None:
        kinds = sorted({group.recompute for group in strategy.groups} - {*BESIDE_FUNCTIONS})
        lacking = say("recomputation of kind {kind}", kind=kinds[0]) if kinds else lacking
        if lacking == _OTHERS and _all_layers(strategy, number or 0):
            lacking = ""
    if lacking:
        told = say(
            "--recompute-activation-function is not in the plan: activation functions computed again beside {lacking}; "
            "memory is predicted too high",
            lacking=say(lacking),
        )
        return {}, [told]
    return {"recompute_activation_function": True}, []


def _all_layers(strategy: Strategy, number: int) -> bool:
    """Whether every layer is recomputed, as a whole or its activation function, with `number` such in a chunk."""
    chunks = (-(-layers // strategy.vpp) for layers in strategy.layers)
    whole = zip(strategy.recompute, strategy.recompute_layers, chunks, strict=True)
    return all(number + (amount if kind == "block" else 0) >= layers for kind, amount, layers in whole)


def zero_memory(arguments: Arguments, strategy: Strategy | None, adapters: bool) -> tuple[dict[str, Any], list[str]]:
    """`moe_zero_memory` of the spec's training, and notes where only a plan with more words has it.

    The other layers of level1 beside --moe-zero-memory-num-layers are of level0 (MindSpeed 028de58, core/transformer/
    moe/moe_feature/overlap/moe_common.py, only_recompute_activation, where 0 is none); with --moe-fb-overlap level1
    sends results to the host instead.
    """
    level, layers = arguments.text("moe-zero-memory"), arguments.number("moe-zero-memory-num-layers", least=0)
    if level not in get_args(ZeroMemory):
        return {}, []
    lacking = say("beside adapters") if adapters else ""
    if strategy is not None:
        kinds = sorted({group.recompute for group in strategy.groups} - {*BESIDE_FUNCTIONS})
        lacking = say("beside recomputation of kind {kind}", kind=kinds[0]) if kinds else lacking
        lacking = lacking if strategy.ep > 1 else say("with ep 1, which MindSpeed refuses")
    if lacking:
        told = say(
            "--moe-zero-memory is not in the plan: experts' activations computed again {lacking}; memory is predicted "
            "too high",
            lacking=lacking,
        )
        return {}, [told]
    some = layers and strategy is not None and any(layers < count for count in strategy.layers)
    if level == "level1" and (some or "moe-fb-overlap" in arguments.given):
        told = say(
            "--moe-zero-memory level1 is level0 in the plan: more that all or some layers do not keep; memory is "
            "predicted too high"
        )
        return {"moe_zero_memory": "level0"}, [told]
    return {"moe_zero_memory": level}, []


def swapped_results(arguments: Arguments, strategy: Strategy | None) -> tuple[dict[str, Any], list[str]]:
    """`mla_swap_core_attn_out` of the spec's training, and a note where only a plan with more words has it.

    MindSpeed-LLM refuses the flag without --moe-fb-overlap and DualPipeV (c77308a1, features_manager/transformer/
    multi_latent_attention/mla_feature.py).
    """
    if not arguments.has("mla-swap-core-attn-out"):
        return {}, []
    kinds = {group.recompute for group in strategy.groups} - {*BESIDE_FUNCTIONS} if strategy is not None else set()
    if not kinds:
        return {"mla_swap_core_attn_out": True}, []
    told = say(
        "--mla-swap-core-attn-out is not in the plan: attention's results on the host beside recomputation of kind "
        "{kind}; memory is predicted too high",
        kind=min(kinds),
    )
    return {}, [told]
