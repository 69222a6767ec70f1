"""Rules on how the model's widths, heads and experts are split."""

from __future__ import annotations

from collections.abc import Iterator, Set

from cpsolver.cost.adapters import every_adapter, splits_rank
from cpsolver.cost.kinds import layer_kinds
from cpsolver.cost.recurrence import split_heads
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.profiles.expert_overlap import MOST_MTP, has_exchange, has_other_microbatch, recomputes_exchange
from cpsolver.profiles.judging import PlanRow
from cpsolver.rules.base import chosen, product, rule, too_small
from models_zoo import Architecture


def _recurrent_in_short(problem: Problem) -> Iterator[str]:
    """The heads of layers without attention, as `heads` asks for them."""
    counts = [f"{count} {name}" for name, count in split_heads(problem.model).items()]
    if counts:
        yield f", tp x cp the {' and '.join(counts)}"


@rule(
    "attention heads are split evenly over tp",
    briefly=lambda p, _: "".join((f"tp must divide the {p.model.heads} attention heads", *_recurrent_in_short(p))),
    by_mesh=True,
)
def heads(problem: Problem, s: Strategy) -> Iterator[str]:
    if problem.model.heads % s.tp:
        yield f"{problem.model.heads} attention heads are not a multiple of tp {s.tp}"
    if problem.encoder is not None and not problem.whole_encoder and problem.encoder.model.heads % s.tp:
        yield f"{problem.encoder.model.heads} heads of the encoder of images are not a multiple of tp {s.tp}"
    groups = problem.model.attention.o_groups
    if groups is not None and groups % s.tp:
        yield f"{groups} groups of heads that share an output projection are not a multiple of tp {s.tp}"
    yield from _recurrent(problem.model, s)


def _recurrent(model: Architecture, s: Strategy) -> Iterator[str]:
    """Layers without attention: context-parallel ranks exchange heads for tokens there, and repeat a group where they
    are more than the groups of a tensor-parallel rank (Megatron-LM core/ssm/mamba_context_parallel.py)."""
    for name, count in split_heads(model).items():
        if count % (s.tp * s.cp):
            yield f"{count} {name} are not a multiple of {product({'tp': s.tp, 'cp': s.cp})}"
    mamba = model.mamba
    if mamba is not None and mamba.groups % s.tp:
        yield f"{mamba.groups} state-space groups are not a multiple of tp {s.tp}"
    elif mamba is not None and (groups := mamba.groups // s.tp) % s.cp and s.cp % groups:
        yield f"{groups} state-space groups of a rank and cp {s.cp}: neither divides the other"


@rule(
    "key-value heads are split over tp, or tp over them",
    briefly=lambda p, _: f"tp and the {p.model.kv_heads} key-value heads: one must divide the other",
    by_mesh=True,
)
def kv_groups(problem: Problem, s: Strategy) -> Iterator[str]:
    """Megatron since core 0.16; rule `launcher` for others."""
    for groups in kv_head_counts(problem.model):
        if groups % s.tp and s.tp % groups:
            yield f"{groups} key-value heads and tp {s.tp}: neither divides the other"


def kv_head_counts(model: Architecture) -> tuple[int, ...]:
    """Key-value heads of layers: those that attend fully may have a number of their own."""
    return tuple(dict.fromkeys(filter(None, (model.kv_heads, model.attention.global_kv_heads))))


def _heads_in_short(problem: Problem, _asked: Set[str]) -> str:
    heads, groups = problem.model.heads, problem.model.kv_heads
    more = " or be more than these" if problem.repeats_keys else ""
    return f"ulysses must divide a rank's heads ({heads} / tp, key-value {groups} / tp{more})"


@rule(
    "the heads of a tensor-parallel rank are split evenly over all-to-all ranks; windows do not go around a ring",
    briefly=_heads_in_short,
    by_mesh=True,
)
def context_exchange(problem: Problem, s: Strategy) -> Iterator[str]:
    """Transformer Engine asks for both (attn_forward_func_with_cp: windows with all-to-all or gathered keys only);
    Megatron's parser does not. Keys that an indexer selects are gathered only (Megatron-LM
    core/transformer/transformer_config.py, "cp_comm_type=allgather only").
    """
    counts = {"attention": problem.model.heads // s.tp, "key-value": max(1, problem.model.kv_heads // s.tp)}
    repeated = problem.repeats_keys and counts["key-value"] < s.ulysses
    for kind, count in counts.items():
        if count % s.ulysses and not (repeated and kind == "key-value"):
            yield f"{count} {kind} heads of a rank (tp {s.tp}) are not a multiple of ulysses {s.ulysses}"
    if problem.model.attention.indexer is not None and s.cp > 1 and not s.cp_gather:
        yield f"keys that an indexer selects are gathered, not exchanged or ringed: cp is {s.cp}, and needs cp_gather"
    window = problem.model.attention.sliding_window
    if window is not None and s.cp > s.ulysses and not s.cp_gather:
        ring = s.cp // s.ulysses
        yield f"a window of {window} tokens does not go around a ring of {ring}: ulysses {s.cp}, or cp_gather"


@rule(
    "the feed-forward widths are split evenly over tp: dense layers' and shared experts'",
    briefly=lambda p, _: f"tp must divide the feed-forward width {p.model.ffn:,}",
    by_mesh=True,
)
def feed_forward(problem: Problem, s: Strategy) -> Iterator[str]:
    """Routed ones': rule `experts`."""
    for name, width in _split_widths(problem.model).items():
        if width % s.tp:
            yield f"{name} width {width} is not a multiple of tp {s.tp}"


def _split_widths(model: Architecture) -> dict[str, int]:
    """Feed-forward widths that tp splits; a model all of whose layers have experts has no dense one."""
    widths = {}
    if any(kind.dense for kind in layer_kinds(model)):
        widths["feed-forward"] = model.ffn
    if model.moe is not None and model.moe.shared_experts:
        # Megatron builds all shared experts of a layer as one block (moe_shared_expert_intermediate_size).
        width = model.moe.shared_ffn or model.moe.expert_ffn
        widths["shared experts'"] = model.moe.shared_experts * width
    return widths


@rule(
    "a tensor-parallel group fills nodes or divides one",
    briefly=lambda p, _: f"tp must divide the {p.node} GPUs of a node, or be a multiple of them",
    by_mesh=True,
)
def tensor_nodes(problem: Problem, s: Strategy) -> Iterator[str]:
    if problem.node % s.tp and s.tp % problem.node:
        yield f"tp {s.tp} neither divides nor is a multiple of the {problem.node} devices of a node"


@rule("there is a layer for every stage", briefly=lambda p, _: f"pp may be at most the {p.model.layers} layers")
def pipeline_depth(problem: Problem, s: Strategy) -> Iterator[str]:
    if s.pp > problem.model.layers:
        yield f"pp {s.pp} is more than the {problem.model.layers} layers"


@rule(
    "sequence parallelism needs tp > 1, which divides the tokens of each context-parallel rank",
    briefly=lambda p, _: f"sequence parallelism needs tp > 1, and cp x tp must divide {p.sequence:,} tokens",
    by_mesh=True,
)
def sequence_parallel(problem: Problem, s: Strategy) -> Iterator[str]:
    """Megatron switches it off without a word where tp is 1, and checks the tokens only while training."""
    tokens = problem.sequence // s.cp
    if s.sequence_parallel and s.tp == 1:
        yield "sequence parallelism needs tp > 1"
    elif s.sequence_parallel and tokens % s.tp:
        whole = f"sequence length {problem.sequence} is"
        part = f"{tokens} tokens of a sequence on each of cp {s.cp} ranks are"
        yield f"{whole if s.cp == 1 else part} not a multiple of tp {s.tp}"


def _adapters_in_short(problem: Problem, _asked: Set[str]) -> str:
    if problem.lora is None:
        return ""
    found, every = [], every_adapter(problem)
    found += [f"tp must divide the adapters' rank {problem.lora.rank}"] if splits_rank(problem) else []
    found += ["experts with adapters are whole (etp 1)"] if any(each.routed for each in every) else []
    found += ["no sequence parallelism"] if any(each.whole for each in every) else []
    return ", ".join(found)


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
        yield f"the adapters' rank {lora.rank} is not a multiple of tp {s.tp}"
    if s.etp > 1 and any(each.routed for each in every):
        yield f"adapters beside experts need whole ones: etp is {s.etp}, and must be 1"
    if s.tp > 1 and s.sequence_parallel and any(each.whole for each in every):
        yield "adapters beside projections to low ranks (q_down, kv_down) go with tp 1, or no sequence parallelism"


def _experts_in_short(problem: Problem, asked: Set[str]) -> str:
    moe = problem.model.moe
    if moe is None:
        return "the model has no experts: ep and etp are 1"
    texts = {
        "ep": f"ep must divide the {moe.experts} experts",
        "etp": f"etp must divide tp and the experts' width {moe.expert_ffn:,}",
    }
    return f"{chosen(texts, asked)}, etp x ep must divide tp x cp x dp"


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
            yield f"the model has no experts: ep is {s.ep} and etp {s.etp}, both must be 1"
        if problem.spec.training.moe_zero_memory:
            yield "the model has no experts: training.moe_zero_memory must be null"
        return
    yield from _zero_memory(problem, s)
    if moe.experts % s.ep:
        yield f"{moe.experts} experts are not a multiple of ep {s.ep}"
    if moe.expert_ffn % s.etp:
        yield f"expert width {moe.expert_ffn} is not a multiple of etp {s.etp}"
    if s.tp % s.etp:
        yield f"etp {s.etp} does not divide tp {s.tp}"
    if s.stage_devices % (s.etp * s.ep):
        stage = {"tp": s.tp, "cp": s.cp, "dp": s.dp}
        yield f"{product({'etp': s.etp, 'ep': s.ep})} does not divide the {product(stage)} devices of a stage"


def _zero_memory(problem: Problem, s: Strategy) -> Iterator[str]:
    """MindSpeed 028de58, features_manager/moe: moe_zero_memory.py asks for one of two overlaps, which ask for these."""
    if problem.spec.training.moe_zero_memory is None:
        return
    if s.ep == 1:
        yield "experts' activations are made again (training.moe_zero_memory) with ep > 1 only: ep is 1"
    if problem.copies_once:
        yield "experts' activations are made again (training.moe_zero_memory) with moe_dispatcher alltoall only"


@rule(
    "experts' all-to-alls overlap with ep > 1, interleaved or without a pipeline, and no layer recomputes its experts",
    briefly=lambda *_: "expert_overlap needs ep > 1, vpp > 1 under a pipeline, and no experts recomputed",
)
def expert_overlap(problem: Problem, s: Strategy) -> Iterator[str]:
    """Megatron's conditions, profiles/expert_overlap.py.

    Which launchers have the switch: rule `launcher`.
    """
    if not s.expert_overlap:
        return
    if problem.spec.training.moe_zero_memory:
        yield "experts' all-to-alls do not overlap where they run again (training.moe_zero_memory)"
    row = PlanRow(s, problem.batch)
    if not has_exchange(problem.model, row):
        needs = f"ep > 1 and at most {MOST_MTP} layer of multi-token prediction"
        yield f"experts' all-to-alls overlap with {needs}: ep is {s.ep}, and there are {problem.model.mtp_layers}"
    if not has_other_microbatch(row):
        sizes = f"pp {s.pp}, vpp {s.vpp} and {row.microbatches} microbatches"
        yield f"experts' all-to-alls have no other microbatch to travel under: {sizes}; vpp > 1, or pp 1 with several"
    for stage, (kind, modules) in enumerate(zip(s.recompute, s.recompute_modules, strict=True)):
        if recomputes_exchange(kind, modules):
            what = f"selective with {', '.join(modules)}" if modules else kind
            yield f"experts' all-to-alls do not overlap where experts are recomputed: stage {stage} has {what}"
            return


@rule(
    "a model with experts and tp > 1 needs sequence parallelism, with ep 1 too",
    briefly=lambda *_: "a model with experts needs sequence parallelism with tp > 1",
    by_mesh=True,
)
def expert_sequence_parallel(problem: Problem, s: Strategy) -> Iterator[str]:
    """Megatron's parser only warns; its MoELayer raises with the first batch."""
    if problem.model.moe is not None and s.tp > 1 and not s.sequence_parallel:
        yield f"a model with experts needs sequence parallelism with tp {s.tp}: its expert layer refuses to run without"
