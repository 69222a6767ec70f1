"""Rules in words, with the numbers of a problem: as much of each as bears on what the user asked for."""

from __future__ import annotations

from collections.abc import Set

from cpsolver.problem.problem import Problem
from cpsolver.profiles.launcher import Launcher
from cpsolver.profiles.runs import Runs
from cpsolver.rules import RULES


def rule_text(problem: Problem, name: str, asked: Set[str]) -> str:
    """What a rule asks for; `asked`: the decisions that are pinned or banned against it."""
    model, layers = problem.model, problem.model.layers
    limits = ", ".join(f"{supply.name} {supply.limit:,}" for supply in problem.supplies)
    texts = {
        "heads": f"tp must divide the {model.heads} attention heads",
        "kv_groups": f"tp and the {model.kv_heads} key-value heads: one must divide the other",
        "feed_forward": f"tp must divide the feed-forward width {model.ffn:,}",
        "tensor_nodes": f"tp must divide the {problem.node} GPUs of a node, or be a multiple of them",
        "pipeline_depth": f"pp may be at most the {layers} layers",
        "batch": f"mbs x dp must divide the global batch {problem.batch:,}",
        "chip_count": f"the stages must fit the chip limits ({limits}), whole nodes of {problem.node} where chips mix",
        "even_chunks": f"vpp must divide the {layers} layers",
        "interleaving": "with vpp > 1 pp must be > 1 and divide the microbatches (global batch / mbs / dp)",
        "context_parallel": _context(problem, asked),
        "sequence_parallel": f"sequence parallelism needs tp > 1, and cp x tp must divide {problem.sequence:,} tokens",
        "context_exchange": f"ulysses must divide a rank's heads ({model.heads} / tp, key-value {model.kv_heads} / tp)",
        "experts": _experts(problem, asked),
        "expert_sequence_parallel": "a model with experts needs sequence parallelism with tp > 1",
        "sharding": _sharding(asked),
        "distributed_optimizer": "the distributed optimizer needs dp x cp > 1",
        "layer_split": f"layer_split is even: pp x vpp must divide the {layers} layers",
        "launcher": _run("launcher", problem.named_launcher, asked),
        "stack": _run("stack", problem.stack.runs, asked),
    }
    return texts.get(name) or f"rule {name}: {_first_line(name)}" if name in RULES else name


def _first_line(rule: str) -> str:
    return (RULES[rule].__doc__ or "").strip().partition("\n")[0].rstrip(".")


def _chosen(texts: dict[str, str], asked: Set[str]) -> str:
    """The texts of the decisions that are asked for; all of them where none is."""
    told = [text for name, text in texts.items() if name in asked] or list(texts.values())
    return ", ".join(dict.fromkeys(told))


def _context(problem: Problem, asked: Set[str]) -> str:
    whole = f"cp > 1 needs a sequence ({problem.sequence:,} tokens) that 2 x cp divides"
    gather = "cp_gather needs cp > 1 and ulysses 1"
    if not asked & {"ulysses", "cp_gather"}:
        return whole
    return _chosen({"ulysses": "ulysses must divide cp", "cp_gather": gather}, asked)


def _experts(problem: Problem, asked: Set[str]) -> str:
    moe = problem.model.moe
    if moe is None:
        return "the model has no experts: ep and etp are 1"
    texts = {
        "ep": f"ep must divide the {moe.experts} experts",
        "etp": f"etp must divide tp and the experts' width {moe.expert_ffn:,}",
    }
    return f"{_chosen(texts, asked)}, etp x ep must divide tp x cp x dp"


def _sharding(asked: Set[str]) -> str:
    alone = "gradients and parameters (ZeRO-2 and 3) are sharded without a pipeline only (pp 1)"
    group = "a sharding group is a divisor of dp x cp, above 1 and below it (0: all of them)"
    return _chosen({"sharded": alone, "sharding_group": group}, asked)


def _run(what: str, launcher: Launcher | None, asked: Set[str]) -> str:
    """What the launcher, or the stack's framework, has no way to run among what is asked for."""
    if launcher is None:
        return ""
    kinds = ", ".join(launcher.context_parallel)
    alone, under = (", ".join(some) or "nothing" for some in (launcher.sharded, launcher.sharded_pipeline))
    context = f"has context parallelism of kind {kinds}" if kinds else "has no context parallelism (cp 1)"
    context += ", without a pipeline" * (launcher.pipeline and not launcher.context_pipeline)
    context += ", with the distributed optimizer" * (not launcher.plain_context)
    sharding = f"shares out {alone}" + f" without a pipeline, {under} with one" * launcher.pipeline
    flash: dict[tuple[bool, ...], str] = {(False,): "has no flash attention", (True,): "always has flash attention"}
    stages = "" if launcher.few_microbatches else "needs a microbatch for each stage (global batch / mbs / dp >= pp)"
    texts = {
        "tp": "" if launcher.tensor_parallel else "has no tensor parallelism (tp 1)",
        "pp": stages if launcher.pipeline else "has no pipeline (pp 1)",
        "mbs": stages,
        "flash_attention": flash.get(launcher.flash_attention, ""),
        "vpp": "" if launcher.interleaving else "does not interleave (vpp 1)",
        "sequence_parallel": "" if launcher.sequence_parallel else "has no sequence parallelism",
        "cp": "" if {"ulysses", "cp_gather"} & asked else context,
        "ulysses": context,
        "cp_gather": context,
        "ep": "" if launcher.expert_parallel else "has no expert parallelism (ep 1)",
        "etp": "" if launcher.expert_tensor_parallel == "any" else "does not split every expert (etp 1)",
        "sharded": sharding,
        "distributed_optimizer": sharding,
        "sharding_group": _groups(launcher),
        "stages": "" if launcher.mixed_chips else "does not mix chip types",
        **(_of_stack(launcher, sharding) if isinstance(launcher, Runs) else {}),
        "layers": {"none": "needs equal stages", "any": ""}.get(launcher.uneven_layers, "needs equal middle stages"),
    }
    told = {name: text for name, text in texts.items() if text}
    return f"{what} {launcher.name} {_chosen(told, asked)}"


def _groups(launcher: Launcher) -> str:
    beside = ", of several context-parallel groups" * (not launcher.context_groups and bool(launcher.sharding_groups))
    return f"shares out {', '.join(launcher.sharding_groups) or 'nothing'} in groups{beside}"


def _of_stack(runs: Runs, sharding: str) -> dict[str, str]:
    """What only stacks state."""
    sequence = "" if runs.sequence_parallel else "has no sequence parallelism"
    whole = "" if runs.plain_weights else "shares out weights over replicas (distributed_optimizer true, dp x cp > 1)"
    return {
        "sequence_parallel": sequence if runs.plain_tensor else "has sequence parallelism wherever tp > 1",
        "distributed_optimizer": whole or sharding,
    }
