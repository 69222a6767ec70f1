"""Rules on how the model's widths, heads and experts are split."""

from __future__ import annotations

from collections.abc import Iterator, Set

from cpsolver.cost.adapters import every_adapter, splits_rank
from cpsolver.cost.kinds import layer_kinds
from cpsolver.cost.recurrence import split_heads
from cpsolver.inputs.language import later, say
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.profiles.expert_overlap import MOST_MTP, has_exchange, has_other_microbatch, recomputes_exchange
from cpsolver.profiles.judging import PlanRow
from cpsolver.rules.base import chosen, product, rule, too_small
from models_zoo import Architecture


def _all_heads_in_short(problem: Problem, _asked: Set[str]) -> str:
    """With the heads of layers without attention."""
    counts = [say(name, count=count) for name, count in split_heads(problem.model).items()]
    heads = problem.model.heads
    if not counts:
        return say("tp must divide the {heads} attention heads", heads=heads)
    return say(
        "tp must divide the {heads} attention heads, tp x cp the {counts}",
        heads=heads,
        counts=say(" and ").join(counts),
    )


@rule(
    "attention heads are split evenly over tp",
    briefly=_all_heads_in_short,
    by_mesh=True,
)
def heads(problem: Problem, s: Strategy) -> Iterator[str]:
    if problem.model.heads % s.tp:
        yield later("{heads} attention heads are not a multiple of tp {s.tp}", heads=problem.model.heads, s=s)
    if problem.encoder is not None and not problem.whole_encoder and problem.encoder.model.heads % s.tp:
        yield later(
            "{heads} heads of the encoder of images are not a multiple of tp {s.tp}",
            heads=problem.encoder.model.heads,
            s=s,
        )
    groups = problem.model.attention.o_groups
    if groups is not None and groups % s.tp:
        yield later(
            "{groups} groups of heads that share an output projection are not a multiple of tp {s.tp}",
            groups=groups,
            s=s,
        )
    yield from _recurrent(problem.model, s)


def _recurrent(model: Architecture, s: Strategy) -> Iterator[str]:
    """Layers without attention: context-parallel ranks exchange heads for tokens there, and repeat a group where they
    are more than the groups of a tensor-parallel rank (Megatron-LM core/ssm/mamba_context_parallel.py)."""
    for name, count in split_heads(model).items():
        if count % (s.tp * s.cp):
            yield later(
                "{heads} are not a multiple of {product}",
                heads=later(name, count=count),
                product=product({"tp": s.tp, "cp": s.cp}),
            )
    mamba = model.mamba
    if mamba is not None and mamba.groups % s.tp:
        yield later("{groups} state-space groups are not a multiple of tp {s.tp}", groups=mamba.groups, s=s)
    elif mamba is not None and (groups := mamba.groups // s.tp) % s.cp and s.cp % groups:
        yield later(
            "{groups} state-space groups of a rank and cp {s.cp}: neither divides the other", groups=groups, s=s
        )


@rule(
    "key-value heads are split over tp, or tp over them",
    briefly=lambda p, _: say(
        "tp and the {kv_heads} key-value heads: one must divide the other", kv_heads=p.model.kv_heads
    ),
    by_mesh=True,
)
def kv_groups(problem: Problem, s: Strategy) -> Iterator[str]:
    """Megatron since core 0.16; rule `launcher` for others."""
    for groups in kv_head_counts(problem.model):
        if groups % s.tp and s.tp % groups:
            yield later("{groups} key-value heads and tp {s.tp}: neither divides the other", groups=groups, s=s)


def kv_head_counts(model: Architecture) -> tuple[int, ...]:
    """Key-value heads of layers: those that attend fully may have a number of their own."""
    return tuple(dict.fromkeys(filter(None, (model.kv_heads, model.attention.global_kv_heads))))


def _heads_in_short(problem: Problem, _asked: Set[str]) -> str:
    heads, groups = problem.model.heads, problem.model.kv_heads
    if problem.repeats_keys:
        return say(
            "ulysses must divide a rank's heads ({heads} / tp, key-value {groups} / tp or be more than these)",
            heads=heads,
            groups=groups,
        )
    return say("ulysses must divide a rank's heads ({heads} / tp, key-value {groups} / tp)", heads=heads, groups=groups)


@rule(
    "the heads of a tensor-parallel rank are split evenly over all-to-all ranks; windows do not go around a ring",
    briefly=_heads_in_short,
    by_mesh=True,
)
def context_exchange(problem: Problem, s: Strategy) -> Iterator[str]:
    """Transformer Engine asks for both (attn_forward_func_with_cp: windows with all-to-all or gathered keys only);
    Megatron's parser does not. Keys that an indexer selects are gathered only (Megatron-LM
    core/transformer/transformer_config.py, "cp_comm_type=allgather only"), but for launchers that say otherwise.
    """
    heads, groups = problem.model.heads // s.tp, max(1, problem.model.kv_heads // s.tp)
    if heads % s.ulysses:
        yield later(
            "{heads} attention heads of a rank (tp {s.tp}) are not a multiple of ulysses {s.ulysses}", heads=heads, s=s
        )
    if groups % s.ulysses and not (problem.repeats_keys and groups < s.ulysses):
        yield later(
            "{groups} key-value heads of a rank (tp {s.tp}) are not a multiple of ulysses {s.ulysses}",
            groups=groups,
            s=s,
        )
    if problem.model.attention.indexer is not None and s.cp > 1 and not s.cp_gather:
        if not problem.exchanges_selected:
            yield later(
                "keys that an indexer selects are gathered, not exchanged or ringed: cp is {s.cp}, and needs cp_gather",
                s=s,
            )
        elif s.cp > s.ulysses:
            yield later(
                "keys that an indexer selects do not go around a ring: cp {s.cp} needs cp_gather or ulysses {s.cp}",
                s=s,
            )
    window = problem.model.attention.sliding_window
    if window is not None and s.cp > s.ulysses and not s.cp_gather:
        ring = s.cp // s.ulysses
        yield later(
            "a window of {window} tokens does not go around a ring of {ring}: ulysses {s.cp}, or cp_gather",
            window=window,
            ring=ring,
            s=s,
        )


@rule(
    "the feed-forward widths are split evenly over tp: dense layers' and shared experts'",
    briefly=lambda p, _: say("tp must divide the feed-forward width {ffn:,}", ffn=p.model.ffn),
    by_mesh=True,
)
def feed_forward(problem: Problem, s: Strategy) -> Iterator[str]:
    """Routed ones': rule `experts`."""
    for name, width in _split_widths(problem.model).items():
        if width % s.tp:
            yield later(name, width=width, s=s)


def _split_widths(model: Architecture) -> dict[str, int]:
    """Feed-forward widths that tp splits, by what to say where it does not; a model whose layers all have experts has
    no dense one."""
    widths = {}
    if any(part.dense for kind in layer_kinds(model) for part, _ in kind.parts):
        widths[later("feed-forward width {width} is not a multiple of tp {s.tp}")] = model.ffn
    if model.moe is not None and model.moe.shared_experts:
        # Megatron builds all shared experts of a layer as one block (moe_shared_expert_intermediate_size).
        width = model.moe.shared_ffn or model.moe.expert_ffn
        widths[later("shared experts' width {width} is not a multiple of tp {s.tp}")] = model.moe.shared_experts * width
    return widths


@rule(
    "a tensor-parallel group fills nodes or divides one",
    briefly=lambda p, _: say("tp must divide the {node} GPUs of a node, or be a multiple of them", node=p.node),
    by_mesh=True,
)
def tensor_nodes(problem: Problem, s: Strategy) -> Iterator[str]:
    if problem.node % s.tp and s.tp % problem.node:
        yield later(
            "tp {s.tp} neither divides nor is a multiple of the {node} devices of a node", s=s, node=problem.node
        )


@rule(
    "there is a layer for every stage",
    briefly=lambda p, _: say("pp may be at most the {layers} layers", layers=p.model.layers),
)
def pipeline_depth(problem: Problem, s: Strategy) -> Iterator[str]:
    if s.pp > problem.model.layers:
        yield later("pp {s.pp} is more than the {layers} layers", s=s, layers=problem.model.layers)


@rule(
    "sequence parallelism needs tp > 1, which divides the tokens of each context-parallel rank",
    briefly=lambda p, _: say(
        "sequence parallelism needs tp > 1, and cp x tp must divide {sequence:,} tokens", sequence=p.sequence
    ),
    by_mesh=True,
)
def sequence_parallel(problem: Problem, s: Strategy) -> Iterator[str]:
    """Megatron switches it off without a word where tp is 1, and checks the tokens only while training."""
    tokens = problem.sequence // s.cp
    if s.tp > 1 and not s.sequence_parallel and problem.spec.training.recompute_mla_up_proj:
        # MindSpeed-LLM c77308a1, features_manager/transformer/multi_latent_attention/mla_feature.py, validate_args
        yield later("projections run again (training.recompute_mla_up_proj) with sequence parallelism where tp > 1")
    if s.sequence_parallel and s.tp == 1:
        yield later("sequence parallelism needs tp > 1")
    elif s.sequence_parallel and tokens % s.tp:
        if s.cp == 1:
            yield later("sequence length {tokens} is not a multiple of tp {s.tp}", tokens=tokens, s=s)
        else:
            yield later(
                "{tokens} tokens of a sequence on each of cp {s.cp} ranks are not a multiple of tp {s.tp}",
                tokens=tokens,
                s=s,
            )


def _adapters_in_short(problem: Problem, _asked: Set[str]) -> str:
    if problem.lora is None:
        return ""
    found, every = [], every_adapter(problem)
    found += [say("tp must divide the adapters' rank {rank}", rank=problem.lora.rank)] if splits_rank(problem) else []
    found += [say("experts with adapters are whole (etp 1)")] if any(each.routed for each in every) else []
    found += [say("no sequence parallelism")] if any(each.whole for each in every) else []
    return say(", ").join(found)


@rule("adapters' ranks and results can be split as they are", briefly=_adapters_in_short, by_mesh=True)
def adapters(problem: Problem, s: Strategy) -> Iterator[str]:
    """As Megatron-Bridge 067f987 has them (peft/utils.py, ParallelLinearAdapter).

    The first linear layer is split by its results beside column-parallel layers. Beside experts every rank of etp adds
    the whole result, and these are summed afterwards. Beside projections that every rank has whole, a rank's results
    are gathered from all of them, which have other tokens with sequence parallelism.
    """
    lora, every = problem.lora, every_adapter(problem)
    if lora is None:
        return
    if splits_rank(problem) and lora.rank % s.tp:
        yield later("the adapters' rank {rank} is not a multiple of tp {s.tp}", rank=lora.rank, s=s)
    if s.etp > 1 and any(each.routed for each in every):
        yield later("adapters beside experts need whole ones: etp is {s.etp}, and must be 1", s=s)
    if s.tp > 1 and s.sequence_parallel and any(each.whole for each in every):
        yield later(
            "adapters beside projections to low ranks (q_down, kv_down) go with tp 1, or no sequence parallelism"
        )


def _experts_in_short(problem: Problem, asked: Set[str]) -> str:
    moe = problem.model.moe
    if moe is None:
        return say("the model has no experts: ep and etp are 1")
    texts = {
        "ep": say("ep must divide the {experts} experts", experts=moe.experts),
        "etp": say("etp must divide tp and the experts' width {width:,}", width=moe.expert_ffn),
    }
    return say("{texts}, etp x ep must divide tp x cp x dp", texts=chosen(texts, asked))


@rule(
    "experts are shared out evenly over ep, and each over etp, a divisor of tp; etp * ep divides a stage's devices",
    scope="sizes",
    briefly=_experts_in_short,
    by_mesh=True,
)
def experts(problem: Problem, s: Strategy) -> Iterator[str]:
    """That etp divides tp is this planner's canonical form; Megatron asks only for the last of these, when its groups
    are made: ep may cross tensor-, context- and data-parallel ranks.
    """
    small = list(too_small({"ep": s.ep, "etp": s.etp}))
    yield from small
    if small:
        return
    moe = problem.model.moe
    if moe is None:
        if (s.ep, s.etp) != (1, 1):
            yield later("the model has no experts: ep is {s.ep} and etp {s.etp}, both must be 1", s=s)
        if problem.spec.training.moe_zero_memory:
            yield later("the model has no experts: training.moe_zero_memory must be null")
        if problem.spec.training.mla_swap_core_attn_out:
            yield later("the model has no experts: training.mla_swap_core_attn_out must be false")
        return
    yield from _zero_memory(problem, s)
    yield from _beside_passes(problem, s)
    if moe.experts % s.ep:
        yield later("{experts} experts are not a multiple of ep {s.ep}", experts=moe.experts, s=s)
    if moe.expert_ffn % s.etp:
        yield later("expert width {width} is not a multiple of etp {s.etp}", width=moe.expert_ffn, s=s)
    if s.tp % s.etp:
        yield later("etp {s.etp} does not divide tp {s.tp}", s=s)
    if s.stage_devices % (s.etp * s.ep):
        stage = {"tp": s.tp, "cp": s.cp, "dp": s.dp}
        yield later(
            "{grid} does not divide the {stage} devices of a stage",
            grid=product({"etp": s.etp, "ep": s.ep}),
            stage=product(stage),
        )


def _zero_memory(problem: Problem, s: Strategy) -> Iterator[str]:
    """MindSpeed 028de58, features_manager/moe: moe_zero_memory.py asks for one of two overlaps, which ask for these."""
    if problem.spec.training.moe_zero_memory is None:
        return
    if s.ep == 1:
        yield later("experts' activations are made again (training.moe_zero_memory) with ep > 1 only: ep is 1")
    if problem.dispatcher != "alltoall":
        yield later("experts' activations are made again (training.moe_zero_memory) with moe_dispatcher alltoall only")


def _beside_passes(problem: Problem, s: Strategy) -> Iterator[str]:
    """MindSpeed 028de58, features_manager/moe/fb_overlap.py: of passes beside each other, which the switch is for."""
    if not problem.spec.training.mla_swap_core_attn_out:
        return
    if s.ep == 1 or s.etp > 1:
        yield later(
            "attention's results wait on the host (training.mla_swap_core_attn_out) with ep > 1 and etp 1 only: ep is "
            "{s.ep}, etp {s.etp}",
            s=s,
        )
    if problem.dispatcher != "alltoall":
        yield later(
            "attention's results wait on the host (training.mla_swap_core_attn_out) with moe_dispatcher alltoall only"
        )


@rule(
    "experts' all-to-alls overlap with ep > 1, interleaved or without a pipeline, and no layer recomputes its experts",
    briefly=lambda *_: say("expert_overlap needs ep > 1, vpp > 1 under a pipeline, and no experts recomputed"),
)
def expert_overlap(problem: Problem, s: Strategy) -> Iterator[str]:
    """Megatron's conditions, profiles/expert_overlap.py.

    Which launchers have the switch: rule `launcher`.
    """
    if not s.expert_overlap:
        return
    if problem.spec.training.moe_zero_memory:
        yield later("experts' all-to-alls do not overlap where they run again (training.moe_zero_memory)")
    if problem.gathers_tokens:
        yield later("experts' tokens travel under nothing where all are gathered (training.moe_dispatcher allgather)")
    row = PlanRow(s, problem.batch)
    if not has_exchange(problem.model, row):
        yield later(
            "experts' all-to-alls overlap with ep > 1 and at most {most} layer of multi-token prediction: ep is "
            "{s.ep}, and there are {layers}",
            most=MOST_MTP,
            s=s,
            layers=problem.model.mtp_layers,
        )
    if not has_other_microbatch(row):
        yield later(
            "experts' all-to-alls have no other microbatch to travel under: pp {s.pp}, vpp {s.vpp} and {microbatches} "
            "microbatches; vpp > 1, or pp 1 with several",
            s=s,
            microbatches=row.microbatches,
        )
    for stage, (kind, modules) in enumerate(zip(s.recompute, s.recompute_modules, strict=True)):
        if recomputes_exchange(kind, modules):
            what = later("selective with {modules}", modules=", ".join(modules)) if modules else kind
            yield later(
                "experts' all-to-alls do not overlap where experts are recomputed: stage {stage} has {what}",
                stage=stage,
                what=what,
            )
            return


@rule(
    "a model with experts and tp > 1 needs sequence parallelism, with ep 1 too",
    briefly=lambda *_: say("a model with experts needs sequence parallelism with tp > 1"),
    by_mesh=True,
)
def expert_sequence_parallel(problem: Problem, s: Strategy) -> Iterator[str]:
    """Megatron's parser only warns; its MoELayer raises with the first batch."""
    if problem.model.moe is not None and s.tp > 1 and not s.sequence_parallel:
        yield later(
            "a model with experts needs sequence parallelism with tp {s.tp}: its expert layer refuses to run without",
            s=s,
        )
