"""The degrees of a script: tensor, pipeline, context, expert and data parallel, sharding; and contradictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cpsolver.doors.importing.arguments import Arguments
from cpsolver.inputs.language import say
from cpsolver.plans.strategy import SHARDED, Sharded
from cpsolver.problem.seed_format import SHARDING_STRATEGIES

_FSDP: dict[str, Sharded | None] = {"no_shard": None, **{name: what for what, name in SHARDING_STRATEGIES.items()}}
_ZERO: dict[int, Sharded | None] = {0: None, **dict(enumerate(SHARDED, 1))}
_MINDSPEED_CP = tuple(
    f"{name}_cp_algo" for name in ("megatron", "ulysses", "hybrid", "adaptive", "hybrid_adaptive", "kvallgather")
)


@dataclass(frozen=True)
class ScriptDegrees:
    """Sizes of a plan, by the names of `Strategy`."""

    tp: int
    pp: int
    cp: int
    dp: int
    ep: int
    etp: int
    expert_overlap: bool
    mbs: int
    ulysses: int
    cp_gather: bool
    distributed_optimizer: bool
    sharded: Sharded
    sharding_group: int


def read_degrees(arguments: Arguments, world: int | None, model: dict[str, Any]) -> ScriptDegrees | None:
    """The degrees; None where the number of data-parallel replicas is not known. Troubles stay in `arguments`."""
    tp = arguments.number("tensor-model-parallel-size", 1) or 1
    pp = arguments.number("pipeline-model-parallel-size", 1) or 1
    cp = arguments.number("context-parallel-size", 1) or 1
    by_heads = arguments.number("ds-sequence-parallel-size", 1) or 1
    if by_heads > 1:
        cp = _of_deepspeed(arguments, by_heads, tp * pp * cp)
    mbs = arguments.number("micro-batch-size", 1) or 1
    ep = _experts_over(arguments, (world or 0) // (tp * pp * cp) or 1)
    expert_tp = arguments.number("expert-tensor-parallel-size", _whole_experts(arguments, tp))
    ulysses, gather = (cp, False) if by_heads > 1 else _context(arguments, cp)
    etp = expert_tp or 1 if "moe" in model else 1
    if arguments.has("moe-tp-extend-ep"):  # MindSpeed: experts over the tensor-parallel ranks too
        ep, etp = ep * tp, 1
    if ep > 1 and "moe" not in model and "deepspeed" in arguments.given:
        ep = 1  # Megatron-DeepSpeed: --num-experts 1 is a dense model, whatever the expert parallelism
    if ep > 1 and "moe" not in model:
        arguments.trouble("--expert-model-parallel-size", "the model has no experts: --num-experts is not given", ep)
    _model_troubles(arguments, model, tp, ep, etp)
    if world is None:
        return None
    if world % (tp * pp * cp):
        factors = f"tp {tp} x pp {pp} x cp {cp} = {tp * pp * cp}"
        arguments.trouble(
            "devices", say("{world} devices are not a multiple of {factors}", world=world, factors=factors), world
        )
        return None
    dp = world // (tp * pp * cp)
    if "moe" in model and tp * cp * dp % (etp * ep):
        stage = f"tp {tp} x cp {cp} x dp {dp} = {tp * cp * dp}"
        message = say(
            "etp {etp} x ep {ep} does not divide the devices of a stage, {stage}", etp=etp, ep=ep, stage=stage
        )
        arguments.trouble("--expert-model-parallel-size", message, ep)
    optimizer, sharded = _sharded(arguments)
    group = _group(arguments, dp * cp)
    if dp * cp == 1:
        optimizer, sharded, group = False, "optimizer", 0
    overlap = arguments.has("overlap-moe-expert-parallel-comm") or _combined(arguments)
    return ScriptDegrees(tp, pp, cp, dp, ep, etp, overlap, mbs, ulysses, gather, optimizer, sharded, group)


def own_experts(arguments: Arguments) -> bool:
    """Whether another layer stands for DeepSpeed's experts: all on every rank, and none drops a token.

    --num-experts-switch of 4efb479d, and --moe-type of a fork of it (matsuolab/nedo_project_code 0f0d3cd), both in
    megatron/model/transformer.py.
    """
    named = arguments.has("moe-type") and arguments.text("moe-type") != "ds_moe"
    return arguments.has("num-experts-switch") or named


def _experts_over(arguments: Arguments, replicas: int) -> int:
    """The ranks that experts are shared out over, by each parser's name: MegaBlocks takes all `replicas`
    (databricks/megablocks 78eea65, layers/mpu.py)."""
    ep = arguments.number("expert-model-parallel-size") or arguments.number("moe-expert-parallel-size", 1) or 1
    ep = replicas if arguments.has("moe-expert-model-parallelism") else ep
    return 1 if own_experts(arguments) else ep


def _whole_experts(arguments: Arguments, tp: int) -> int:
    """Ranks that split an expert where no argument says how many: those of tp, in Megatron-LM.

    Megatron-DeepSpeed (4efb479d, megatron/core/tensor_parallel/layers.py) leaves experts whole unless it is told.
    """
    split = arguments.has("enable-expert-tensor-parallelism") or own_experts(arguments)
    return tp if split or not arguments.of_deepspeed() else 1


def _of_deepspeed(arguments: Arguments, size: int, others: int) -> int:
    """The ranks that share a sequence by DeepSpeed's Ulysses, which stands alone in microsoft/Megatron-DeepSpeed
    (4efb479d, megatron/core/parallel_state.py)."""
    if others > 1:
        message = say("goes with neither tensor nor pipeline nor context parallelism: {others} ranks", others=others)
        arguments.trouble("--ds-sequence-parallel-size", message, size)
    return size


def _combined(arguments: Arguments) -> bool:
    """Whether the experts' all-to-alls are overlapped by the arguments of 2025 for it, as in scripts of
    HYGON-AI/Megatron-LM-das 0685d1f: their other recipe, the default, runs passes one after the other."""
    return arguments.has("combined-1f1b") and arguments.text("combined-1f1b-recipe", "golden") == "ep_a2a"


def _model_troubles(arguments: Arguments, model: dict[str, Any], tp: int, ep: int, etp: int) -> None:
    """Note heads, key-value heads, widths and experts that the degrees do not divide."""
    heads, groups = model.get("heads"), model.get("kv_heads")
    if heads and heads % tp:
        arguments.trouble(
            "--num-attention-heads", say("{heads} heads are not a multiple of tp {tp}", heads=heads, tp=tp), heads
        )
    if groups and heads and groups != heads and groups % tp and tp % groups:
        arguments.trouble(
            "--num-query-groups",
            say("{groups} groups and tp {tp}: neither divides the other", groups=groups, tp=tp),
            groups,
        )
    if (ffn := model.get("ffn")) and ffn % tp:
        arguments.trouble("--ffn-hidden-size", say("{ffn} is not a multiple of tp {tp}", ffn=ffn, tp=tp), ffn)
    experts = model.get("moe", {}).get("experts")
    if experts and experts % ep:
        arguments.trouble(
            "--num-experts", say("{experts} experts are not a multiple of ep {ep}", experts=experts, ep=ep), experts
        )
    if experts and tp % etp:
        arguments.trouble("--expert-tensor-parallel-size", say("does not divide tp {tp}", tp=tp), etp)


def _context(arguments: Arguments, cp: int) -> tuple[int, bool]:
    """The Ulysses degree (ranks of the all-to-all of heads), and whether keys and values are gathered.

    By the arguments of Megatron, MindSpeed and LoongForge.
    """
    algorithm = arguments.text("context-parallel-algo")
    given_degree = arguments.number("ulysses-degree-in-cp") or arguments.number("context-parallel-ulysses-degree")
    kinds = arguments.values("cp-comm-type")
    sizes = arguments.numbers("hierarchical-context-parallel-sizes")
    if cp == 1:
        return 1, False
    if algorithm is not None and algorithm not in _MINDSPEED_CP:
        arguments.trouble("--context-parallel-algo", "is not one of the choices", algorithm, ", ".join(_MINDSPEED_CP))
    if len(set(kinds)) > 1:
        arguments.trouble("--cp-comm-type", "differs from layer to layer, which a plan does not", " ".join(kinds))
    kind = kinds[0] if kinds else "p2p"
    if kind not in ("p2p", "a2a", "allgather", "a2a+p2p"):
        arguments.trouble("--cp-comm-type", "is not one of the choices", kind, "p2p, a2a, allgather, a2a+p2p")
    if algorithm == "kvallgather_cp_algo" or (algorithm is None and kind == "allgather"):
        return 1, True
    if algorithm == "ulysses_cp_algo" or (algorithm is None and kind == "a2a"):
        return cp, False
    ulysses = given_degree or (sizes[0] if sizes and kind == "a2a+p2p" else None)
    mixed = kind == "a2a+p2p" or (algorithm or "").startswith("hybrid")
    if ulysses is None and mixed:
        name = "hierarchical-context-parallel-sizes" if algorithm is None else "ulysses-degree-in-cp"
        arguments.trouble(f"--{name}", "must be given with both exchanges, heads and ring")
    if ulysses is not None and cp % ulysses:
        arguments.trouble(
            "--context-parallel-size",
            say("{cp} is not a multiple of {ulysses}, which exchange heads", cp=cp, ulysses=ulysses),
            cp,
        )
    hybrid = mixed or arguments.has("context-parallel-ulysses-degree")
    return (ulysses or 1 if hybrid else 1), False


def _sharded(arguments: Arguments) -> tuple[bool, Sharded]:
    """Whether states are sharded, and up to what: ZeRO-1, Megatron's FSDP, torch's FSDP2, DeepSpeed's --zero-stage."""
    fsdp = arguments.has("use-megatron-fsdp") or arguments.has("use-custom-fsdp")
    if arguments.has("use-torch-fsdp2"):
        stay_gathered = arguments.has("torch-fsdp2-no-reshard-after-forward")
        return True, "gradients" if stay_gathered else "parameters"
    if fsdp:
        text = arguments.text("data-parallel-sharding-strategy", "optim_grads_params") or ""
        if text not in _FSDP:
            arguments.trouble("--data-parallel-sharding-strategy", "is not one of the choices", text, ", ".join(_FSDP))
        what = _FSDP.get(text)
        return what is not None, what or "optimizer"
    stage = arguments.number("zero-stage", least=0)
    if stage is not None:
        if stage not in _ZERO:
            arguments.trouble("--zero-stage", "is not one of the choices", stage, "0, 1, 2, 3")
        what = _ZERO.get(stage)
        sharded = what is not None or arguments.has("use-distributed-optimizer") or partitioned_by_bf16(arguments)
        return sharded, what or "optimizer"
    if partitioned_by_bf16(arguments):
        return True, "optimizer"
    layer_wise = arguments.text("optimizer") == "dist_muon"
    return layer_wise or arguments.has("use-distributed-optimizer"), "optimizer"


def partitioned_by_bf16(arguments: Arguments) -> bool:
    """Whether DeepSpeed's BF16_Optimizer shares states out, which pipelines in bf16 have without ZeRO.

    DeepSpeed 0.19, runtime/engine.py and runtime/bf16_optimizer.py, and 0.7. A pipeline of one stage is one too.
    """
    arguments.note_read("no-pipeline-parallel")
    engine = "deepspeed" in arguments.given and "no-pipeline-parallel" not in arguments.given
    return engine and arguments.has("bf16") and arguments.given.get("zero-stage", ("0",)) == ("0",)


def _group(arguments: Arguments, replicas: int) -> int:
    instances = arguments.number("num-distributed-optimizer-instances", 1) or 1
    if instances == 1:
        return 0
    if replicas % instances:
        message = say("does not divide dp x cp = {replicas}", replicas=replicas)
        arguments.trouble("--num-distributed-optimizer-instances", message, instances)
        return 0
    return replicas // instances
