"""What an import tells: a report for people, a document for machines."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Sequence
from typing import Any

from cpsolver.doors.importing.imported import Imported
from cpsolver.plans.strategy import CORE, Strategy
from cpsolver.problem.strategy_file import strategy_to_dict
from models_zoo import Architecture, total_parameters


def report(imported: Imported, spec_file: str | None, plan_file: str | None) -> str:
    """What was read and what comes next; the files' names as the commands take them (None: not written)."""
    cluster, training = imported.spec["cluster"], imported.spec["training"]
    where = f"{cluster['num_gpus']:,} x {cluster['chips']}, {cluster['gpus_per_node']} in a node"
    step = f"{training['global_batch_size']:,} sequences of {training['sequence_length']:,} tokens"
    switches = [f"{name} {_shown(value)}" for name, value in training.items() if name not in _STEP]
    rows = [
        ("model", model_text(imported.model)),
        ("cluster", where),
        ("step", ", ".join([step, str(training.get("precision", "bf16")), *switches])),
    ]
    if imported.framework is not None:
        launcher = imported.spec.get("launcher", "any")
        rows.append(("runs on", f"stack {imported.spec['stack']}, launcher {launcher} ({imported.framework.why})"))
    if imported.strategy is not None:
        rows += [("today's plan", plan_text(imported.strategy)), ("", stages_text(imported.strategy))]
    elif imported.kind == "script":
        rows.append(("today's plan", "none that can be written down: " + "; ".join(imported.refusals)))
    lines = [f"{imported.source}: {imported.kind}", *(f"  {name:<13}{text}".rstrip() for name, text in rows)]
    lines += _listed("to fill in in the spec", [f"{key}: {said}" for key, said in imported.placeholders.items()])
    lines += _listed("notes", imported.notes)
    lines += _listed("not used by the plan", [" ".join(imported.unused)] if imported.unused else [])
    lines += _listed("not known here, and not used", [" ".join(imported.unknown)] if imported.unknown else [])
    return "\n".join([*lines, *_listed("next", next_commands(imported, spec_file, plan_file))])


def wrapped(text: str) -> str:
    """A report in the width of the terminal, later lines below the first one's text; commands are left as they are."""
    width = max(40, shutil.get_terminal_size().columns)
    lines: list[str] = []
    for line in text.split("\n"):
        row = re.match(r"  (?:(?:model|cluster|step|runs on|today's plan) +)?", line)
        if row is None or line.startswith("  apss-cp "):
            lines.append(line)
        else:
            indent = " " * max(4, row.end())
            lines += textwrap.wrap(
                line, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
            )
    return "\n".join(lines)


_STEP = ("global_batch_size", "sequence_length", "precision")


def document(imported: Imported) -> dict[str, Any]:
    """The same for machines."""
    return {
        "source": imported.source,
        "kind": imported.kind,
        "model": {"name": imported.model.name, "parameters": total_parameters(imported.model)},
        "framework": None if imported.framework is None else {"why": imported.framework.why},
        "spec": imported.spec,
        "strategy": None if imported.strategy is None else strategy_to_dict(imported.strategy),
        "placeholders": imported.placeholders,
        "refusals": list(imported.refusals),
        "notes": list(imported.notes),
        "unused": list(imported.unused),
        "unknown": list(imported.unknown),
    }


def next_commands(imported: Imported, spec_file: str | None, plan_file: str | None) -> list[str]:
    """The commands that make use of the files."""
    spec = spec_file or "spec.yaml"
    told = [f"apss-cp solve {spec}"]
    if imported.strategy is not None:
        told.insert(0, f"apss-cp evaluate {spec} --strategy {plan_file or 'plan.yaml'}")
    return told


def model_text(model: Architecture) -> str:
    """A model in a line."""
    kv = f" ({model.kv_heads} of keys and values)" if model.kv_heads != model.heads else ""
    told = [
        f"{model.name}: {total_parameters(model) / 1e9:,.2f} billion parameters",
        f"{model.layers} layers",
        f"hidden {model.hidden:,}",
        f"feed-forward {model.ffn:,}",
        f"{model.heads} heads{kv}",
        f"vocabulary {model.vocab:,}",
    ]
    if model.moe is not None:
        told.append(f"{model.moe.experts} experts of {model.moe.expert_ffn:,}, {model.moe.top_k} a token")
    return ", ".join(told)


def plan_text(s: Strategy) -> str:
    """The degrees and flags of a plan in a line; what is 1 or off is left out but for the usual ones."""
    sizes = [f"tp {s.tp}", f"pp {s.pp}", f"dp {s.dp}", f"micro batch {s.mbs}"]
    sizes += [f"vpp {s.vpp}"] * (s.vpp > 1)
    sizes += [f"cp {s.cp} ({s.cp_comm_type})"] * (s.cp > 1)
    sizes += [f"ep {s.ep}"] * (s.ep > 1) + [f"etp {s.etp}"] * (s.etp > 1)
    flags = [
        *["sequence parallel"] * s.sequence_parallel,
        *[f"distributed optimizer (shares out {s.sharded})"] * s.distributed_optimizer,
        *[f"in groups of {s.sharding_ranks}"] * (s.sharding_ranks < s.replicas),
        "flash attention" if s.flash_attention else "no flash attention",
        *[f"schedule {s.schedule}"] * (s.schedule != "1f1b"),
        *["microbatches of different sizes"] * s.dynamic,
    ]
    return ", ".join([*sizes, *flags])


def stages_text(s: Strategy) -> str:
    """Layers and recomputation of a plan."""
    layers = f"{s.layers[0]} layers a stage" if len(set(s.layers)) == 1 else f"layers {list(s.layers)}"
    kind = s.recompute[0]
    if kind == "none":
        return f"{layers}, nothing is recomputed"
    if kind == "selective":
        modules = s.recompute_modules[0]
        return f"{layers}, recomputes {', '.join(modules)}" + (" (Megatron's own choice)" if modules == CORE else "")
    amounts = s.recompute_layers
    return f"{layers}, recomputes {kind} {amounts[0] if len(set(amounts)) == 1 else list(amounts)}"


def _shown(value: object) -> str:
    return "on" if value is True else ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _listed(title: str, rows: Sequence[str]) -> list[str]:
    return ["", f"{title}:", *(f"  {row}" for row in rows)] if rows else []
