"""One published training run: its whole layout, what was measured, and where that is published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from cpsolver.profiles.switches import Dispatcher, GraphScope, Recipe

MemoryKind = Literal["allocated", "reserved", "device", "unstated"]
"""allocated, reserved: the framework's own counts; device: as the driver shows it, context and fragments included."""

RunOutcome = Literal["ok", "oom", "failed"]
"""ok: it trained; oom: it ran out of device memory; failed: it ended for a reason that says nothing of its layout."""

Routing = Literal["forced", "natural"]
"""forced: tokens are spread evenly over the experts whatever the router says, as benchmarks do."""


@dataclass(frozen=True)
class MeasuredRun:
    """A row of the table. None: not known. Sizes are counts, times seconds, memory GiB.

    `line` is the row's line in the file (the header is line 1). `dp` = num_gpus / (tp * pp * cp). Experts have a grid
    of their own on a stage's devices: `etp` * `ep` * their replicas = tp * cp * dp. `layers_per_stage` are the layers
    of the pipeline's ranks; neither they nor `layers` count `mtp_layers`, those of multi-token prediction. `mbs` counts
    sequences on each data-parallel rank. `a2a_overlap`: the experts' all-to-all is hidden under another microbatch;
    `offload_layers`: so many layers' activations wait on the host. `complete`: every field that a prediction needs is
    known, so the row is one to score on. A run whose `outcome` is not ok has no step time and needs none. On several
    chip types `chip` has them all with their counts, in the order of the nodes (`a:12,b:4`), and `stages` may say of
    every pipeline stage its replicas, each with its chip and tp; `layers_per_stage` may then count embedding and head.
    """

    line: int
    id: str
    source: str
    source_ref: str
    model: str
    layers: int | None
    hidden: int | None
    ffn: int | None
    heads: int | None
    kv_heads: int | None
    vocab: int | None
    seq_len: int | None
    gated_mlp: bool | None
    moe_experts: int | None
    moe_topk: int | None
    moe_ffn: int | None
    shared_expert_ffn: int | None
    mtp_layers: int | None
    chip: str
    gpus_per_node: int | None
    num_gpus: int | None
    internode_gbps_per_gpu: float | None
    tp: int | None
    pp: int | None
    cp: int | None
    ep: int | None
    etp: int | None
    dp: int | None
    vpp: int | None
    layers_per_stage: tuple[int, ...] | None
    mbs: int | None
    gbs: int | None
    recompute: str | None
    recompute_modules: tuple[str, ...] | None
    sequence_parallel: bool | None
    sharding: str | None
    sharding_group: int | None
    flash_attention: bool | None
    precision: str | None
    fp8_recipe: Recipe | None
    a2a_overlap: bool | None
    routing: Routing | None
    dispatcher: Dispatcher | None
    cuda_graph: GraphScope | None
    offload_layers: int | None
    framework: str
    step_time_s: float | None
    tokens_per_s_per_gpu: float | None
    peak_mem_gib: float | None
    peak_mem_kind: MemoryKind | None
    complete: bool
    outcome: RunOutcome = "ok"
    stages: tuple[tuple[tuple[str, int], ...], ...] | None = None

    @property
    def mixed(self) -> bool:
        """On chips of several types, or with replicas said one by one: predicted by the kinds of its replicas."""
        return ":" in self.chip or self.stages is not None

    @property
    def chips(self) -> tuple[tuple[str, int], ...]:
        """Every chip type and how many of it, in the order of the run's nodes."""
        return counted_chips(self.chip, self.num_gpus or 0)


def counted_chips(chip: str, devices: int) -> tuple[tuple[str, int], ...]:
    """The chip types and counts of a `chip` cell: `a:12,b:4`, or one name for all the devices."""
    if ":" not in chip:
        return ((chip, devices),)
    parts = (part.rpartition(":") for part in chip.split(","))
    return tuple((name, int(count)) for name, _, count in parts)


@dataclass(frozen=True)
class Prediction:
    """What the cost model says of a run. `low` and `high` enclose the true value four times in five.

    `memory_gib` is in the terms of the run's `peak_mem_kind` (device, where none is stated); `memory_with_margin_gib`
    is the same with the planner's default margin on top. `stack` and `architecture` name the profile and the chip
    family that the prediction used. `breakdown_s` sums to `step_time_s`. `rules_broken`: rule -> all that it finds
    in the run's plan, which the planner would have refused for it, though it ran. `assumed`: columns that the row
    leaves open and nothing else tells.
    """

    step_time_s: float
    low_s: float
    high_s: float
    memory_gib: float
    memory_with_margin_gib: float
    breakdown_s: dict[str, float]
    stack: str
    architecture: str
    rules_broken: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
