"""From a measured run to a problem and a plan that the cost model can judge."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from cpsolver.evidence.posterior.predictions import PlacedPlan
from cpsolver.evidence.runs.columns import COLUMNS
from cpsolver.evidence.runs.run import MeasuredRun
from cpsolver.inputs.data import package_data
from cpsolver.inputs.english_sentences import as_messages
from cpsolver.inputs.errors import nearest_names
from cpsolver.inputs.language import say
from cpsolver.plans.dimensions import DIMENSIONS, MUST_BE_SAID, ROW
from cpsolver.plans.strategy import (
    OPERATORS,
    RECOMPUTE_KINDS,
    SHARDED,
    RecomputeKind,
    Schedule,
    Sharded,
    StageGroup,
    Strategy,
)
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import assemble
from cpsolver.profiles.default_stack import usual_stack
from cpsolver.profiles.stack import load_stack, stack_names
from cpsolver.profiles.switches import Precision
from cpsolver.spec.cluster import Cluster
from cpsolver.spec.search import Search
from cpsolver.spec.spec import Spec
from cpsolver.spec.training import Training
from hw_specs import Chip, UnknownFigureError, load_chip
from models_zoo import Architecture, UnknownModelError, load_architecture

_PRECISIONS: tuple[str, ...] = get_args(Precision)
_FRAMEWORKS = Path(__file__).parent / "frameworks.yaml"
_DEPTH: dict[str, Sharded] = {f"zero{depth}": sharded for depth, sharded in enumerate(SHARDED, 1)}
_GPT = {
    "gated_mlp": False,
    "activation": "gelu",
    "norm": "layernorm",
    "norm_bias": True,
    "bias_qkv": True,
    "bias_attention_out": True,
    "bias_mlp": True,
    "position": "learned",
    "tied_embeddings": True,
}
"""What a model without a gated feed-forward block has, unless the catalogue knows it: the GPT-2 family."""


_SIZES = tuple(name for name in ROW if name in COLUMNS and DIMENSIONS[name].kind == "size" and name != "etp")
"""The sizes that a plan has as the table has them."""


class Unpredictable(Exception):
    """A run that the cost model cannot predict; `field` names the column at fault, where there is one."""

    def __init__(self, reason: str, field: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.field = reason, field


NO_PREDICTION = (Unpredictable, ValueError, ArithmeticError)
"""What may be raised where a run is predicted: a layout that no check foresaw must not cost the other rows."""


def why_unpredictable(error: Exception) -> str:
    """The reason in one of NO_PREDICTION, as reports give it."""
    if isinstance(error, Unpredictable | UnknownFigureError):
        return str(error)
    if isinstance(error, ValidationError):  # sizes that make no model, which only its schema can tell
        return say(
            "no sound model: {reason}", reason=as_messages(error.errors()[0]["msg"].removeprefix("Value error, "))
        )
    return say("beyond the cost model: {error}", error=error)


def placed_plan(run: MeasuredRun) -> PlacedPlan:
    """The problem, its constants as documented, and the plan of a run.

    Raises:
        Unpredictable: when the run's framework is unknown or its layout is beyond the cost model.
    """
    if run.mixed:
        raise Unpredictable(say("runs on several chip types are predicted, and nothing else"), "chip")
    known = framework(run.framework)
    run = with_recipe(run, known)
    chip = with_network(load_chip(run.chip), run.internode_gbps_per_gpu)
    problem = problem_of(run, known, {chip.name: (chip, None)})
    return PlacedPlan(problem, strategy_of(run, chip.name, known, problem))


def with_recipe(run: MeasuredRun, known: dict[str, Any]) -> MeasuredRun:
    """The run with what its framework's recipe says and the row does not: switches, layers of stages, microbatches."""
    return _with_layout(_with_switches(run, known.get("switches", {})), known)


def with_network(chip: Chip, gbit_s: float | None) -> Chip:
    """The chip with so much network for each device, Gbit/s; as it is where that is None."""
    if gbit_s is None:
        return chip
    out = chip.scale_out.model_copy(update={"bandwidth_gbit_s": gbit_s, "confidence": "secondary"})
    return chip.model_copy(update={"scale_out": out})


def problem_of(run: MeasuredRun, known: dict[str, Any], chips: Mapping[str, tuple[Chip, int | None]]) -> Problem:
    """The problem of a run, its constants as documented. `chips`: by name, each with how many there are (None: all).

    Raises:
        Unpredictable: when the run's layout is beyond the cost model.
    """
    stack, fused = load_stack(_stack_name(run, known)), known.get("gradient_fusion", {})
    model = architecture(run, known.get("sliding_window", {}).get(run.model))
    training = Training(
        global_batch_size=_known(run.gbs),
        sequence_length=_known(run.seq_len),
        precision=_precision(run),
        fp8_recipe=run.fp8_recipe if run.precision == "fp8" and run.fp8_recipe != "nvfp4" else None,
        fp8_attention=_fp8_attention(run, known.get("fp8_attention", {})),
        dropout=bool(known.get("dropout", False)),
        optimizer=_optimizer(run, known.get("optimizer", {})),
        offload_layers=run.offload_layers or 0,
        cuda_graph=run.cuda_graph,
        moe_dispatcher=run.dispatcher if run.moe_experts else None,
        gradient_accumulation_fusion=fused.get(_longest(run.model, fused) or ""),
        moe_grouped_gemm=not run.model.startswith(tuple(known.get("one_by_one", ()))),
    )
    node = run.gpus_per_node or 8
    counts = {name: count for name, (_, count) in chips.items()}
    one = None in counts.values()
    sizes = {"num_gpus": run.num_gpus, "gpus_per_node": node, "chips": list(counts) if one else counts}
    cluster = Cluster.model_validate(sizes)
    search = Search(recompute_scope="stage")  # a run's stages may differ
    spec = Spec(model=model.name, cluster=cluster, training=training, stack=stack.name, search=search)
    _check_layout(run)
    return assemble(spec, model, {name: chip for name, (chip, _) in chips.items()}, stack, stack.runs)


def strategy_of(run: MeasuredRun, chip: str, known: dict[str, Any], problem: Problem) -> Strategy:
    """The run's plan, all on one chip type.

    Raises:
        Unpredictable: where it recomputes in a way that no plan can.
    """
    runs = problem.stack.runs
    by_operator = runs is not None and set(OPERATORS) <= set(runs.recompute_modules)
    return _strategy(run, chip, known.get("schedule", "1f1b"), OPERATORS if by_operator else ())


def _with_switches(run: MeasuredRun, by_recipe: dict[str, dict[str, Any]]) -> MeasuredRun:
    """With its framework's own switches for experts where the row leaves them empty and gives no other."""
    switches = by_recipe.get(run.fp8_recipe or str(run.precision), {})
    other = any(getattr(run, name) not in (None, value) for name, value in switches.items())
    if not run.moe_experts or run.routing == "natural" or other:
        return run
    return replace(run, **switches)


def _fp8_attention(run: MeasuredRun, by_model: dict[str, list[str]]) -> bool | None:
    """Attention in 8 bits where the framework's recipe of the model has it on the run's chip; None: as the stack."""
    if (run.fp8_recipe, run.cuda_graph) != ("mx", "full"):
        return None
    own = _longest(run.model, by_model)
    return True if own is not None and (not by_model[own] or run.chip in by_model[own]) else None


def _with_layout(run: MeasuredRun, known: dict[str, Any]) -> MeasuredRun:
    """With what its framework's recipe says of a pipeline, and the row does not: layers of each stage, microbatches."""
    layers = tuple(known.get("layers_per_stage", {}).get(run.model, ()))
    if run.layers_per_stage is None and len(layers) == run.pp and sum(layers) == run.layers:
        run = replace(run, layers_per_stage=layers)
    each = _known(run.gbs) // _known(run.dp)
    if known.get("microbatches") == "stages" and (run.pp or 1) > 1 and each % _known(run.pp) == 0:
        run = replace(run, mbs=each // _known(run.pp))
    return run


def stack_of(run: MeasuredRun) -> str:
    """The stack that a run's framework stands for. Raises Unpredictable for a framework that is not known."""
    return _stack_name(run, framework(run.framework))


def _stack_name(run: MeasuredRun, known: dict[str, Any]) -> str:
    by_model = known.get("stack_by_model", {})
    stack = by_model[own] if (own := _longest(run.model, by_model)) else known["stack"]
    stack = known.get("stack_by_chip", {}).get(run.chip, stack)
    return str(known.get("stack_by_precision", {}).get(run.precision, stack))


def _longest(model: str, by_model: dict[str, Any]) -> str | None:
    """The longest of these beginnings of models' names that a model's name has."""
    return max((prefix for prefix in by_model if model.lower().startswith(prefix)), key=len, default=None)


def _optimizer(run: MeasuredRun, by_model: dict[str, Any]) -> Any:
    """The optimizer that the framework's recipe of the model sets; Adam where it sets none or states are not shared."""
    own = _longest(run.model, by_model)
    shared = run.sharding in _DEPTH and _replicas(run) > 1
    return by_model[own] if own is not None and shared else "adam"


def _check_layout(run: MeasuredRun) -> None:
    tp, ep, etp, replicas = _known(run.tp), run.ep or 1, _expert_tensor(run), _replicas(run)
    if tp % etp:
        raise Unpredictable(
            say("etp {etp} does not divide tp {tp}: the cost model splits experts within tp", etp=etp, tp=tp), "etp"
        )
    if run.etp is None and replicas % ep:
        told = say(
            "ep {ep} does not divide cp * dp = {replicas}; where experts' grid lies across tp, etp says so",
            ep=ep,
            replicas=replicas,
        )
        raise Unpredictable(told, "ep")
    if tp * replicas % (etp * ep):
        raise Unpredictable(
            say("etp {etp} x ep {ep} does not divide tp * cp * dp = {tp}", etp=etp, ep=ep, tp=tp * replicas), "ep"
        )
    microbatches = _known(run.gbs) // (_known(run.mbs) * _known(run.dp))
    if (run.vpp or 1) > 1 and (run.pp == 1 or microbatches % _known(run.pp)):
        raise Unpredictable(say("interleaving (vpp) needs a pipeline, and microbatches in whole groups of pp"), "vpp")


def _precision(run: MeasuredRun) -> Any:
    if run.precision not in _PRECISIONS:
        raise Unpredictable(
            say(
                "precision {precision}: the cost model has {names}",
                precision=run.precision,
                names=", ".join(_PRECISIONS),
            ),
            "precision",
        )
    return run.precision


def _known(value: int | None) -> int:
    assert value is not None, "a complete run has every field that a prediction needs"
    return value


def _frameworks() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = package_data(_FRAMEWORKS)
    return found


def framework(name: str) -> dict[str, Any]:
    """Stack profile, dropout and schedule of a framework, by the longest known prefix of its name or a profile's own.

    No name: the stack that specs have by default.

    Raises:
        Unpredictable: when no profile stands for it.
    """
    wanted, known = name.strip().lower(), {prefix.lower(): entry for prefix, entry in _frameworks().items()}
    if not wanted:
        return {"stack": usual_stack()}
    if wanted in stack_names() and wanted not in known:
        return {"stack": wanted}
    prefixes = [prefix for prefix in known if wanted.startswith(prefix)]
    if not prefixes:
        near = nearest_names(name, (*stack_names(), *_frameworks()))
        hint = say("; nearest: {near}", near=", ".join(near)) if near else say("; `apss-cp stacks` lists them")
        raise Unpredictable(
            say("no stack profile stands for the framework {name!r}{hint}", name=name, hint=hint), "framework"
        )
    return known[max(prefixes, key=len)]


def architecture(run: MeasuredRun, window: int | None = None) -> Architecture:
    """The run's model: its own figures, and the catalogue's where it has the same model (head width, attention, norms).

    `window` replaces the catalogue's sliding window.
    """
    fields: dict[str, Any] = {} if run.gated_mlp else dict(_GPT)
    catalogued = _catalogued(run)
    if catalogued is not None:
        fields = catalogued.model_dump(include=_TRAITS, exclude_defaults=True)
        traits: dict[str, Any] = {"indexer": None, "kind": _kind(catalogued, run)}
        traits |= {} if window is None else {"sliding_window": window}
        fields["attention"] = catalogued.attention.model_copy(update=traits)
    fields |= {"name": run.model, "layers": run.layers, "hidden": run.hidden, "ffn": run.ffn, "heads": run.heads}
    fields |= {"kv_heads": run.kv_heads, "vocab": run.vocab, "gated_mlp": bool(run.gated_mlp)}
    fields["mtp_layers"] = run.mtp_layers or 0
    if fields.get("position") == "learned":
        fields["max_positions"] = run.seq_len
    if run.moe_experts:
        fields["moe"] = _experts(run, catalogued)
    return Architecture.model_validate(fields)


def _kind(catalogued: Architecture, run: MeasuredRun) -> str:
    if catalogued.attention.kind == "mla":
        return "mla"
    return "mha" if run.heads == run.kv_heads else "gqa"


_TRAITS = {"head_dim", "activation", "norm", "norm_bias", "norms_per_layer", "position", "tied_embeddings"} | {
    "bias_qkv",
    "bias_attention_out",
    "bias_mlp",
    "embedding_norm",
}


def _experts(run: MeasuredRun, catalogued: Architecture | None) -> dict[str, Any]:
    experts = {"experts": run.moe_experts, "top_k": run.moe_topk, "expert_ffn": run.moe_ffn or run.ffn}
    if run.shared_expert_ffn:
        experts |= {"shared_experts": 1, "shared_ffn": run.shared_expert_ffn}
    if catalogued is not None and catalogued.moe is not None:
        dense = min(catalogued.moe.first_dense, max(1, (run.layers or 1) // 4))
        experts |= {"first_dense": dense if catalogued.moe.first_dense else 0}
        if catalogued.moe.experts == run.moe_experts:
            experts |= {"groups": catalogued.moe.groups, "top_groups": catalogued.moe.top_groups}
    return experts


def _catalogued(run: MeasuredRun) -> Architecture | None:
    """The catalogue's model of that name and width, whatever the number of layers it was cut to."""
    name = re.sub(r"\s*\(.*\)|\s+cut to .*$|\s+\d+b$", "", run.model.lower()).strip()
    try:
        found = load_architecture(name)
    except UnknownModelError:
        return None
    return found if (found.hidden, found.heads) == (run.hidden, run.heads) else None


def _strategy(run: MeasuredRun, chip: str, schedule: Schedule, usual: tuple[str, ...]) -> Strategy:
    """`usual`: what the framework's selective recomputation recomputes where the row names no modules."""
    kind, amount = _recompute(run)
    layers, modules = _split(run), run.recompute_modules or usual
    sizes: dict[str, Any] = {name: _size(run, name) for name in _SIZES}
    amounts = tuple(min(amount, count) for count in layers)
    return Strategy(
        **sizes,
        etp=_expert_tensor(run),
        sharding_group=_sharding_group(run),
        **_flags(run),
        expert_overlap=bool(run.a2a_overlap) and (run.ep or 1) > 1,
        groups=(StageGroup(chip, layers, kind, amounts, modules if kind == "selective" else ()),),
        sharded=_depth(run),
        schedule=schedule,
    )


def _flags(run: MeasuredRun) -> dict[str, Any]:
    """The plan's flags as the run had them.

    What else a run switched on stays with the run, and moves no prediction, until the cost model has it: `routing`.
    (`fp8_recipe`, `dispatcher`, `cuda_graph` and `offload_layers` are the training's: `placed_plan`.)
    """
    return {
        "sequence_parallel": bool(run.sequence_parallel) and _known(run.tp) > 1,
        "distributed_optimizer": run.sharding in _DEPTH and _replicas(run) > 1,
        "flash_attention": bool(run.flash_attention),
    }


def _expert_tensor(run: MeasuredRun) -> int:
    """Ranks that share each expert; where the row does not say, experts are split as the layers are."""
    if not run.moe_experts:
        return 1
    return run.etp or _known(run.tp)


def _size(run: MeasuredRun, name: str) -> int:
    """A size of the run's layout; what a plan file may leave out has its default."""
    value, default = getattr(run, name), DIMENSIONS[name].default
    return _known(value) if default in (None, MUST_BE_SAID) else value or default


def _sharding_group(run: MeasuredRun) -> int:
    """Plans write 0 where all replicas are one group, and a table may write how many they are."""
    group = run.sharding_group or 0
    return 0 if group == _replicas(run) else group


def _replicas(run: MeasuredRun) -> int:
    return _known(run.dp) * (run.cp or 1)


def _depth(run: MeasuredRun) -> Sharded:
    """What is shared out; nothing is where one replica is all there are.

    FSDP under a pipeline keeps weights and gradients whole through the step: only the optimizer's states are shared
    out (torchtitan: no resharding after forward, gradients reduced with the last microbatch).
    """
    if _replicas(run) == 1 or (run.sharding == "zero3" and _known(run.pp) > 1):
        return "optimizer"
    return _DEPTH.get(run.sharding or "", "optimizer")


def _recompute(run: MeasuredRun) -> tuple[RecomputeKind, int]:
    """Kind and number."""
    kind, _, amount = (run.recompute or "none").partition(":")
    if kind == "full":
        return "uniform", 1
    if kind in RECOMPUTE_KINDS:
        return kind, int(amount or 0)
    raise Unpredictable(say("recomputation {recompute}", recompute=run.recompute), "recompute")


def _split(run: MeasuredRun) -> tuple[int, ...]:
    """Layers of each stage: as the row says; else even, or with embedding and head counted as a layer each, or the
    first stages more."""
    layers, pp = _known(run.layers), _known(run.pp)
    if run.layers_per_stage is not None:
        return run.layers_per_stage
    if layers % pp == 0:
        return (layers // pp,) * pp
    if pp > 1 and (layers + 2) % pp == 0:
        each = (layers + 2) // pp
        return (each - 1, *[each] * (pp - 2), each - 1)
    more = layers % pp
    return tuple(layers // pp + (stage < more) for stage in range(pp))
