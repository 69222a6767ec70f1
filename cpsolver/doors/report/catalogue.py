"""What the catalogues hold: tables of models and chips, and one of them in detail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from cpsolver.doors.report.layout import Prose
from cpsolver.doors.report.text import CONFIDENCE
from cpsolver.inputs.english_sentences import as_messages
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import later, say
from cpsolver.profiles.constants import ALL, CHIP_FACTORS, Fitted, load_calibration
from hw_specs import (
    Chip,
    NetworkLevel,
    NetworkPreset,
    UnknownChipError,
    UnknownNetworkError,
    list_chips,
    list_networks,
    load_chip,
    load_network,
    unusable_reasons,
)
from models_zoo import (
    SPECIAL_LAYERS,
    Architecture,
    UnknownModelError,
    active_parameters,
    list_architectures,
    load_architecture,
    special_layers,
    total_parameters,
)

_BILLION = 1e9
_Kind = TypeVar("_Kind", Architecture, Chip, NetworkPreset)


def models_report(name: str | None = None) -> RenderableType:
    """All models, or one; raises InputError for an unknown name."""
    if name is not None:
        return _model_detail(_entry("model", load_architecture, name))
    heads = (say("model"), say("params"), say("layers"), say("hidden"), "ffn", say("heads"), say("shape is"))
    table = _table(heads, left=(0, len(heads) - 1))
    for arch in list_architectures():
        shape = (str(arch.layers), f"{arch.hidden:,}", f"{arch.ffn:,}", f"{arch.heads}/{arch.kv_heads}")
        size = f"{total_parameters(arch) / _BILLION:,.1f} B"
        mark = say("proposal") if arch.proposal else _confidence(arch.confidence)
        table.add_row(arch.name, size, *shape, mark)
    note = say(
        "heads: query/key-value. A proposal: a shape of that size that nobody has published. "
        "Details, aliases and sources: apss-cp models NAME"
    )
    return _listing(later("{count} models can be planned"), table, note)


def chips_report(name: str | None = None) -> RenderableType:
    """All chips, or one; raises InputError for an unknown name."""
    if name is not None:
        return _chip_detail(_entry("chip", load_chip, name))
    heads = (
        *(say("chip"), "bf16", say("memory"), say("bandwidth"), say("fabric"), say("network")),
        say("data sheet is"),
    )
    table = _table(heads, left=(0, len(heads) - 1))
    for chip in list_chips():
        if unusable_reasons(chip):
            continue
        memory = (_figure(chip.memory.capacity_gb), _figure(chip.memory.bandwidth_gb_s))
        links = (_figure(chip.scale_up.bandwidth_gb_s), _figure(chip.scale_out.bandwidth_gbit_s))
        table.add_row(chip.name, _figure(chip.peak_tflops.bf16), *memory, *links, _confidence(chip.confidence))
    note = say(
        "bf16 in TFLOP/s, dense; memory in GB, its bandwidth in GB/s; fabric (one way) in GB/s and network in "
        "Gbit/s a device. Details, efficiencies, aliases and sources: apss-cp chips NAME"
    )
    return _listing(later("{count} chips can be planned"), table, note, _unplanned_chips())


def _unplanned_chips() -> list[RenderableType]:
    """The chips that cannot be planned, each with the reasons; nothing where all can."""
    columns = Column(no_wrap=True), Column(justify="right", no_wrap=True), Column(style="dim")
    table = Table.grid(*columns, padding=(0, 2, 0, 0))
    for chip in list_chips():
        if reasons := unusable_reasons(chip):
            table.add_row(chip.name, _figure(chip.peak_tflops.bf16), _reasons(reasons))
    if not table.row_count:
        return []
    title = say("{count} chips are in the catalogue and cannot be planned yet", count=table.row_count)
    return [Text(title, style="bold"), table, ""]


def networks_report(name: str | None = None) -> RenderableType:
    """All networks, or one; raises InputError for an unknown name."""
    if name is not None:
        return _network_detail(_entry("network", load_network, name))
    table = _table((say("network"), "Gbit/s", say("levels"), say("built with")), left=(0, 2, 3))
    table.columns[0].no_wrap = True
    for each in list_networks():
        levels = ", ".join(_level(level) for level in each.levels) or say("one")
        table.add_row(each.name, adapter_gbit_s(each), levels, ", ".join(each.chips))
    note = say(
        "Gbit/s of each device, or as adapters × Gbit/s of a node; levels in devices, 1:7 their oversubscription. A "
        "spec takes one as cluster.network, or figures of its own. Aliases and sources: apss-cp networks NAME"
    )
    return _listing(later("{count} networks"), table, note)


def networks_document(name: str | None = None) -> Any:
    """The same in plain values: a list, or one object."""
    if name is not None:
        return _entry("network", load_network, name).model_dump(mode="json")
    return [each.model_dump(mode="json") for each in list_networks()]


def adapter_gbit_s(network: NetworkPreset) -> str:
    """A device's adapter, or a node's: `400`, `4 × 100`."""
    if network.nics_per_node is not None:
        return f"{network.nics_per_node} × {network.nic_gbit_s:g}"
    return _figure(network.gbit_s)


def _level(level: NetworkLevel) -> str:
    size = f" {level.devices:,}" if level.devices else ""
    return level.name + size + (f" 1:{level.oversubscription:g}" if level.oversubscription else "")


def _network_detail(network: NetworkPreset) -> RenderableType:
    each = later("{figure} Gbit/s a node") if network.nics_per_node else later("{figure} Gbit/s a device")
    rows = [
        (say("what"), say(network.about)),
        (say("adapters"), say(each, figure=adapter_gbit_s(network))),
        (say("levels"), ", ".join(_level(level) for level in network.levels) or say("one, the whole cluster")),
        (say("built with"), ", ".join(network.chips)),
        (say("aliases"), ", ".join(network.aliases)),
        (say("how sure"), _confidence(network.confidence)),
        (say("sources"), network.sources),
    ]
    return _detail(network.name, rows)


def models_document(name: str | None = None) -> Any:
    """The same in plain values: a list, or one object."""
    if name is not None:
        return _model_fields(_entry("model", load_architecture, name))
    return [_model_fields(arch) for arch in list_architectures()]


def chips_document(name: str | None = None) -> Any:
    """The same in plain values: a list, or one object."""
    if name is not None:
        return _chip_fields(_entry("chip", load_chip, name))
    return [_chip_fields(chip) for chip in list_chips()]


def _entry(kind: str, load: Callable[[str], _Kind], name: str) -> _Kind:
    """An entry of a catalogue; raises InputError for an unknown name."""
    try:
        return load(name)
    except (UnknownModelError, UnknownChipError, UnknownNetworkError) as error:
        allowed = say("a name that `apss-cp {kind}s` lists", kind=kind)
        raise InputError(Trouble(kind, say("unknown {kind}", kind=say(kind)), name, allowed, error.nearest)) from None


def _model_fields(arch: Architecture) -> dict[str, Any]:
    derived = {"parameters": total_parameters(arch), "active_parameters": active_parameters(arch)}
    return {**arch.model_dump(mode="json"), **derived}


def _chip_fields(chip: Chip) -> dict[str, Any]:
    reasons = unusable_reasons(chip)
    used = load_calibration().chip(chip).efficiency
    calibrated = {
        name: {"value": used[name].value, "factors": [_factor_fields(*factor) for factor in factors]}
        for name, factors in fitted_factors(chip).items()
    }
    usable = {"supported": not reasons, "unsupported_reasons": list(reasons)}
    return {**chip.model_dump(mode="json"), "calibrated": calibrated, **usable}


def _factor_fields(group: str, fitted: Fitted) -> dict[str, Any]:
    chips = "all chips" if group == ALL else group
    error = fitted.error * fitted.value or None
    return {"chips": chips, "factor": fitted.value, "runs": fitted.rows, "standard_error": error}


def fitted_factors(chip: Chip) -> dict[str, list[tuple[str, Fitted]]]:
    """The fitted factors on each efficiency of a chip, those of all chips before those of its architecture."""
    found: dict[str, list[tuple[str, Fitted]]] = {}
    for group, factor, fitted in load_calibration().fitted_factors(chip):
        for name in CHIP_FACTORS[factor]:
            found.setdefault(name, []).append((group, fitted))
    return found


def _listing(title: str, table: Table, note: str, between: Sequence[RenderableType] = ()) -> RenderableType:
    """A table below its title, which counts its rows, and what stands between it and the note on it."""
    counted = Text(say(title, count=table.row_count), style="bold")
    return Group(counted, table, "", *between, Prose(note, style="dim"))


def _table(heads: Sequence[str], left: Sequence[int]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place in left else "right", no_wrap=True)
    return table


def _reasons(reasons: Sequence[str]) -> str:
    return say("; ").join(say(as_messages(reason)) for reason in reasons)


def _confidence(word: str) -> str:
    return say(CONFIDENCE[word])


def _model_detail(arch: Architecture) -> RenderableType:
    heads = say(
        "{kind}, {heads} heads of {size}, {kv_heads} key-value heads",
        kind=arch.attention.kind,
        heads=arch.heads,
        size=arch.head_dim,
        kv_heads=arch.kv_heads,
    )
    longest = arch.max_positions
    proposal = say(", a proposal: nobody has published it") if arch.proposal else ""
    rows = [
        (say("parameters"), _parameters(arch)),
        (say("layers"), str(arch.layers)),
        (say("hidden"), f"{arch.hidden:,}"),
        (say("feed-forward"), f"{arch.ffn:,}{say(', ')}{arch.activation}{say(', gated') if arch.gated_mlp else ''}"),
        (say("experts"), _experts(arch)),
        (say("attention"), heads),
        (say("also has"), say("; ").join(say(SPECIAL_LAYERS[name]) for name in special_layers(arch))),
        (say("vocabulary"), f"{arch.vocab:,}{say(', tied embeddings') if arch.tied_embeddings else ''}"),
        (say("norm, position"), f"{arch.norm}, {arch.position}"),
        (say("longest sequence"), "" if longest is None else say("{count:,} tokens", count=longest)),
        (say("shape is"), _confidence(arch.confidence) + proposal),
        (say("inferred"), arch.inferred_fields or ""),
        (say("published size"), _published(arch)),
        (say("aliases"), ", ".join(arch.aliases)),
        ("Hugging Face", ", ".join(arch.hugging_face)),
        (say("sources"), arch.sources),
        (say("notes"), arch.notes or ""),
    ]
    return _detail(arch.name, rows)


def _experts(arch: Architecture) -> str:
    """How many, how wide, and how many of them a token visits; empty for a dense model."""
    moe = arch.moe
    if moe is None:
        return ""
    told = later("{number} experts of {width:,}, {each} a token")
    return say(told, number=moe.experts, width=moe.expert_ffn, each=moe.top_k)


def _chip_detail(chip: Chip) -> RenderableType:
    peaks = {name: value for name, value in chip.peak_tflops.model_dump().items() if value is not None}
    network = say("{figure} Gbit/s a device", figure=_figure(chip.scale_out.bandwidth_gbit_s))
    rows = [
        (say("vendor, status"), f"{chip.vendor}{say(', ')}{say(chip.status)}"),
        (say("peak, dense"), ", ".join(f"{name} {value:,g}" for name, value in peaks.items()) + " TFLOP/s"),
        (say("memory"), _memory(chip)),
        (say("memory bandwidth"), f"{_figure(chip.memory.bandwidth_gb_s)} GB/s"),
        (say("fabric"), _fabric(chip)),
        (say("network"), f"{network}{say(', ')}{_confidence(chip.scale_out.confidence)}"),
        (say("can be planned"), _planned(unusable_reasons(chip))),
        (say("data sheet is"), _confidence(chip.confidence)),
        (say("aliases"), ", ".join(chip.aliases)),
        (say("sources"), chip.sources),
        (say("notes"), chip.notes or ""),
    ]
    return Group(_detail(chip.name, rows), "", Padding(_efficiencies(chip), (0, 0, 0, 1)))


def _memory(chip: Chip) -> str:
    memory = chip.memory
    told = f"{_figure(memory.capacity_gb)} GB {memory.kind or ''}"
    if not memory.usable_gib:
        return told
    usable = say(", {usable:g} GiB of them usable ({source})", usable=memory.usable_gib, source=memory.usable_source)
    return told + usable


def _fabric(chip: Chip) -> str:
    fabric = chip.scale_up
    told = say(
        "{kind}, {figure} GB/s one way, {topology}, {count} devices",
        kind=fabric.kind or "?",
        figure=_figure(fabric.bandwidth_gb_s),
        topology=say(fabric.topology),
        count=fabric.domain_size,
    )
    return told + (say(", beyond one node") if fabric.spans_nodes else "")


_WORDS = (
    *(later("shipping"), later("announced")),
    *(later("switched"), later("mesh"), later("ring"), later("unknown")),
)
"""Words of a chip's file: its status, the topology of its fabric."""

_GIVEN = {
    "chip": later("this chip"),
    "vendor default": later("vendor"),
    "default": later("all chips"),
    "spec": later("the spec"),
}


def _efficiencies(chip: Chip) -> RenderableType:
    """The figures with what planning makes of them, how sure they are, and each source once."""
    heads = say("efficiency | value | used | runs | confidence | given for | from").split(" | ")
    table = _table(heads, left=(0, 4, 5))
    sources = list(dict.fromkeys(entry.source for entry in chip.efficiency.values()))
    used, factors = load_calibration().chip(chip).efficiency, fitted_factors(chip)
    for name, entry in chip.efficiency.items():
        if not chip.uses_efficiency(name):
            continue
        runs = str(factors[name][-1][1].rows) if name in factors else ""
        figures = (f"{entry.value:.4g}", f"{used[name].value:.4g}", runs)
        told = (_confidence(entry.confidence), say(_GIVEN[entry.origin]))
        table.add_row(name, *figures, *told, str(sources.index(entry.source) + 1))
    notes = Table.grid(padding=(0, 1, 0, 0))
    for number, source in enumerate(sources, 1):
        notes.add_row(f"{number}:", Text(source))
    used_note = Prose(_used_note(chip), style="dim")
    return Group(table, "", used_note, "", Text(say("where the values are from"), style="dim"), notes)


def _used_note(chip: Chip) -> str:
    known = chip.architecture in load_calibration().chips
    whose = (
        say("all chips and of {architecture}", architecture=chip.architecture)
        if known
        else say("all chips: no run of this architecture")
    )
    return say(
        "used: what planning uses, the value times factors fitted to published runs of {whose}. runs: how many bear "
        "on the narrowest factor. A chip that a spec describes itself is taken at its word.",
        whose=whose,
    )


def _detail(title: str, rows: Sequence[tuple[str, str]]) -> RenderableType:
    table = Table.grid(Column(style="dim", no_wrap=True), Column(overflow="fold"), padding=(0, 2, 0, 0))
    for label, value in rows:
        if value.strip():
            table.add_row(label, Prose(" ".join(value.split())))
    return Group(Text(title, style="bold"), Padding(table, (0, 0, 0, 1)))


def _parameters(arch: Architecture) -> str:
    total, active = total_parameters(arch), active_parameters(arch)
    return f"{total:,}" + (say(", {active:,} of them active", active=active) if active != total else "")


def _published(arch: Architecture) -> str:
    if arch.published_params_billion is None:
        return ""
    size = say("{size:g} billion", size=arch.published_params_billion)
    return say("; ").join(filter(None, (size, arch.published_params_basis, arch.published_params_gap)))


def _planned(reasons: Sequence[str]) -> str:
    return say("no: {reasons}", reasons=_reasons(reasons)) if reasons else say("yes")


def _figure(value: float | None) -> str:
    return "?" if value is None else f"{value:,g}"
