"""An import written out: the two files (a commented spec, a plan), a report for people, a document for machines."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size

from cpsolver.doors.importing.imported import SCRIPT, Imported
from cpsolver.doors.report.blocks import paragraph
from cpsolver.inputs.errors import one_line
from cpsolver.inputs.language import ENGLISH, later, say, speaking, spoken
from cpsolver.plans.strategy import CORE, Strategy
from cpsolver.problem.strategy_file import strategy_to_dict
from models_zoo import Architecture, encoder_parameters, projector_parameters, total_parameters

_PLAIN = re.compile(r"[A-Za-z_][\w./+-]*", re.ASCII)
_YAML_WORDS = ("null", "true", "false", "yes", "no", "on", "off", "y", "n")
"""Texts that YAML would read as something else than a text."""
_STEP = ("global_batch_size", "sequence_length", "precision")
_MODEL, _CLUSTER, _STEP_ROW = later("model"), later("cluster"), later("step")
_RUNS_ON, _PLAN = later("runs on"), later("today's plan")
_LABELS = (_MODEL, _CLUSTER, _STEP_ROW, _RUNS_ON, _PLAN)
_LABEL = 13
"""Columns of these."""


def spec_text(imported: Imported) -> str:
    """The spec in YAML, with a comment at every value that is left to fill in."""
    head = [f"# Imported from {one_line(imported.source)}."]
    if imported.framework is not None:
        with speaking(ENGLISH):
            head.append(f"# Stack and launcher by: {one_line(imported.framework.why)}.")
    spec = {**imported.spec, "search": {"top": 3, **imported.spec.get("search", {})}}
    return "\n".join([*head, *_lines(spec, (), imported.placeholders)]) + "\n"


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
    where = say(
        "{devices:,} x {chips}, {node} in a node",
        devices=cluster["num_gpus"],
        chips=cluster["chips"],
        node=cluster["gpus_per_node"],
    )
    step = say(
        "{batch:,} sequences of {sequence:,} tokens",
        batch=training["global_batch_size"],
        sequence=training["sequence_length"],
    )
    switches = [f"{name} {_shown(value)}" for name, value in training.items() if name not in _STEP]
    rows = [
        (_MODEL, model_text(imported.model)),
        (_CLUSTER, where),
        (_STEP_ROW, say(", ").join([step, str(training.get("precision", "bf16")), *switches])),
        *_of_plan(imported),
    ]
    lines = [say("{source}: {kind}", source=imported.source, kind=say(imported.kind))]
    lines += [f"  {set_cell_size(say(name), _LABEL)}{text}".rstrip() for name, text in rows]
    filled = [f"{key}: {say(meaning)}" for key, meaning in imported.placeholders.items()]
    lines += _listed(say("to fill in in the spec"), filled)
    lines += _listed(say("notes"), imported.notes)
    lines += _listed(say("not used by the plan"), [" ".join(imported.unused)] if imported.unused else [])
    lines += _listed(say("not known here, and not used"), [" ".join(imported.unknown)] if imported.unknown else [])
    lines += _listed(say("next"), next_commands(imported, spec_file, plan_file))
    return "\n".join(one_line(line) for line in lines)


def _of_plan(imported: Imported) -> Iterator[tuple[str, str]]:
    """Rows on what the source runs on, and on its plan."""
    if imported.framework is not None:
        runs_on = say(
            "stack {stack}, launcher {launcher} ({why})",
            stack=imported.spec["stack"],
            launcher=imported.spec.get("launcher", "any"),
            why=imported.framework.why,
        )
        yield _RUNS_ON, runs_on
    if imported.strategy is not None:
        yield _PLAN, plan_text(imported.strategy)
        yield "", stages_text(imported.strategy)
    elif imported.refusals or imported.kind == SCRIPT:
        reasons = say("; ").join(map(say, imported.refusals))
        yield _PLAN, say("none that can be written down: {reasons}", reasons=reasons)


def wrapped(text: str) -> str:
    """A report wrapped to the width of the terminal, with hanging indents. Commands stay on one line."""
    width = max(40, shutil.get_terminal_size().columns)
    labels = "|".join(re.escape(say(name)) for name in _LABELS)
    lines: list[str] = []
    for line in text.split("\n"):
        row = re.match(f"  (?:(?:{labels}) +)?", line)
        if row is None or line.startswith("  apss-cp "):
            lines.append(line)
        elif spoken() == ENGLISH:
            indent = " " * max(4, row.end())
            lines += textwrap.wrap(
                line, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
            )
        else:
            lines += map(str, paragraph(line, width, hanging=" " * max(4, cell_len(row.group()))))
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
    kv = say(" ({number} of keys and values)", number=model.kv_heads) if model.kv_heads != model.heads else ""
    parts = [
        say("{name}: {size:,.2f} billion parameters", name=model.name, size=total_parameters(model) / 1e9),
        say("{number} layers", number=model.layers),
        say("hidden {width:,}", width=model.hidden),
        say("feed-forward {width:,}", width=model.ffn),
        say("{number} heads{kv}", number=model.heads, kv=kv),
        say("vocabulary {size:,}", size=model.vocab),
    ]
    if (moe := model.moe) is not None:
        told = later("{number} experts of {width:,}, {each} a token")
        parts.append(say(told, number=moe.experts, width=moe.expert_ffn, each=moe.top_k))
    if beside := encoder_parameters(model) + projector_parameters(model):
        told = later("beside it an encoder of images of {size:,.2f} billion (training.images plans it too)")
        parts.append(say(told, size=beside / 1e9))
    return say(", ").join(parts)


def plan_text(s: Strategy) -> str:
    """The degrees and flags of a plan in a line, without the less usual ones that are 1 or off."""
    sizes = [f"tp {s.tp}", f"pp {s.pp}", f"dp {s.dp}", say("micro batch {size}", size=s.mbs)]
    sizes += [f"vpp {s.vpp}"] * (s.vpp > 1)
    sizes += [f"cp {s.cp} ({s.cp_comm_type})"] * (s.cp > 1)
    sizes += [f"ep {s.ep}"] * (s.ep > 1) + [f"etp {s.etp}"] * (s.etp > 1)
    flags = [
        *[say("sequence parallel")] * s.sequence_parallel,
        *[say("distributed optimizer (shares out {what})", what=say(s.sharded))] * s.distributed_optimizer,
        *[say("in groups of {ranks}", ranks=s.sharding_ranks)] * (s.sharding_ranks < s.replicas),
        say("flash attention") if s.flash_attention else say("no flash attention"),
        *[say("schedule {name}", name=s.schedule)] * (s.schedule != "1f1b"),
        *[say("microbatches of different sizes")] * s.dynamic,
    ]
    return say(", ").join([*sizes, *flags])


def stages_text(s: Strategy) -> str:
    """Layers and recomputation of a plan."""
    alike = len(set(s.layers)) == 1
    layers = say("{layers} layers a stage", layers=s.layers[0]) if alike else say("layers {all}", all=list(s.layers))
    return say("{layers}, {recomputed}", layers=layers, recomputed=_recomputed(s))


def _recomputed(s: Strategy) -> str:
    kind = s.recompute[0]
    if kind == "none":
        return say("nothing is recomputed")
    if kind == "selective":
        modules = s.recompute_modules[0]
        told = later("recomputes {what} (Megatron's own choice)") if modules == CORE else later("recomputes {what}")
        return say(told, what=", ".join(modules))
    amounts = s.recompute_layers
    number = amounts[0] if len(set(amounts)) == 1 else list(amounts)
    return say("recomputes {what}", what=f"{kind} {number}")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return say("on") if value else say("off")
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _listed(title: str, rows: Sequence[str]) -> list[str]:
    return ["", say("{title}:", title=title), *(f"  {row}" for row in rows)] if rows else []
