"""An import written out: the two files (a commented spec, a plan), a report for people, a document for machines."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from cpsolver.doors.importing.imported import Imported
from cpsolver.inputs.errors import one_line
from cpsolver.plans.strategy import CORE, Strategy
from cpsolver.problem.strategy_file import strategy_to_dict
from models_zoo import Architecture, encoder_parameters, projector_parameters, total_parameters

_PLAIN = re.compile(r"[A-Za-z_][\w./+-]*", re.ASCII)
_YAML_WORDS = ("null", "true", "false", "yes", "no", "on", "off", "y", "n")
"""Texts that YAML would read as something else than a text."""
_STEP = ("global_batch_size", "sequence_length", "precision")


def spec_text(imported: Imported) -> str:
    """The spec in YAML, with a comment at every value that is left to fill in."""
    head = [f"# Imported from {one_line(imported.source)}."]
    if imported.framework is not None:
        head.append(f"# Stack and launcher by: {one_line(imported.framework.why)}.")
    return "\n".join([*head, *_lines({**imported.spec, "search": {"top": 3}}, (), imported.placeholders)]) + "\n"


def strategy_text(strategy: Strategy, source: str) -> str:
    """The plan in YAML, as `apss-cp evaluate --strategy` takes it."""
    return "\n".join([f"# The plan that {one_line(source)} runs.", *_lines(strategy_to_dict(strategy), (), {})]) + "\n"


def _lines(data: Mapping[str, Any], path: tuple[str, ...], comments: Mapping[str, str]) -> list[str]:
    indent, lines = "  " * len(path), []
    for key, value in data.items():
        comment = comments.get(".".join((*path, key)))
        remark = f"  # TO FILL IN: {one_line(comment)}" if comment else ""
        if isinstance(value, Mapping) and value:
            lines += [f"{indent}{_scalar(key)}:{remark}", *_lines(value, (*path, key), comments)]
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            lines.append(f"{indent}{_scalar(key)}:{remark}")
            lines += [f"{indent}  - {_flow(item)}" for item in value]
        else:
            lines.append(f"{indent}{_scalar(key)}: {_flow(value)}{remark}")
    return lines


def _flow(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_scalar(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _YAML_WORDS:
        return value
    return one_line(json.dumps(value, ensure_ascii=False))


def import_report(imported: Imported, spec_file: str | None, plan_file: str | None) -> str:
    """The report for people: what was read, and the next commands with the names of the files (None: not written)."""
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
    lines += _listed("to fill in in the spec", [f"{key}: {meaning}" for key, meaning in imported.placeholders.items()])
    lines += _listed("notes", imported.notes)
    lines += _listed("not used by the plan", [" ".join(imported.unused)] if imported.unused else [])
    lines += _listed("not known here, and not used", [" ".join(imported.unknown)] if imported.unknown else [])
    lines += _listed("next", next_commands(imported, spec_file, plan_file))
    return "\n".join(one_line(line) for line in lines)


def wrapped(text: str) -> str:
    """A report wrapped to the width of the terminal, with hanging indents. Commands stay on one line."""
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


def import_document(imported: Imported) -> dict[str, Any]:
    """The report for machines."""
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
    commands = [f"apss-cp solve {spec}"]
    if imported.strategy is not None:
        commands.insert(0, f"apss-cp evaluate {spec} --strategy {plan_file or 'plan.yaml'}")
    return commands


def model_text(model: Architecture) -> str:
    """The sizes of a model in a line."""
    kv = f" ({model.kv_heads} of keys and values)" if model.kv_heads != model.heads else ""
    parts = [
        f"{model.name}: {total_parameters(model) / 1e9:,.2f} billion parameters",
        f"{model.layers} layers",
        f"hidden {model.hidden:,}",
        f"feed-forward {model.ffn:,}",
        f"{model.heads} heads{kv}",
        f"vocabulary {model.vocab:,}",
    ]
    if model.moe is not None:
        parts.append(f"{model.moe.experts} experts of {model.moe.expert_ffn:,}, {model.moe.top_k} a token")
    if beside := encoder_parameters(model) + projector_parameters(model):
        parts.append(f"beside it an encoder of images of {beside / 1e9:,.2f} billion (training.images plans it too)")
    return ", ".join(parts)


def plan_text(s: Strategy) -> str:
    """The degrees and flags of a plan in a line, without the less usual ones that are 1 or off."""
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
