"""What the catalogue knows of an accelerator: files in data-sheet units, `Chip`'s properties in SI."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from hw_specs import units

LEAST_FIGURE, MOST_FIGURE = 1e-6, 1e9
"""Limits of what a chip or a network is said to have: beyond them times are no longer told apart, or overflow."""
Figure = Annotated[float, Field(ge=LEAST_FIGURE, le=MOST_FIGURE)]
"""A rate, or a size of memory."""

Confidence = Literal["verified", "secondary", "assumed", "measured"]
"""measured: on the user's own device, by `apss-cp profile`."""
Dtype = Literal["bf16", "fp16", "fp8", "fp4", "tf32", "fp32"]
BlockFormat = Literal["mx", "nvfp4"]
"""Values with one scale for each block: 32 of 8 bits (OCP MXFP8), 16 of 4 bits (NVFP4)."""
Origin = Literal["chip", "vendor default", "default", "spec"]
"""spec: what a spec says in place of the catalogue."""

EFFICIENCY_NAMES = (
    *("gemm_bf16", "gemm_fp16", "gemm_fp8", "gemm_fp4", "gemm_fp32"),
    *("attention_forward", "attention_backward", "memory"),
    *("all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
    *("collective_half_payload_mib", "collective_latency_us"),
    *("network", "network_latency_us", "kernel_latency_us", "host_link"),
)
"""What a chip's `efficiency` holds after loading.

gemm_*: large-matrix rate over the dense peak of that precision. attention_*: fused attention kernels over
the bf16 peak. memory: element-wise kernels over memory bandwidth. all_reduce, all_gather, reduce_scatter,
all_to_all: bus bandwidth of a group that fills a node, for an endless payload, over the one-way scale-up
bandwidth (in-network reduction can lift all_reduce above 1). collective_half_payload_mib: payload that
reaches half of that bandwidth. collective_latency_us: a tiny all-reduce over a node. network: over the line
rate of the adapter. network_latency_us: one hop between nodes. kernel_latency_us: launch and drain of one
kernel. host_link: copies from and to the host over the link's one-way bandwidth.
"""

_ABOVE_ONE = ("collective_half_payload_mib", "collective_latency_us", "network_latency_us", "kernel_latency_us")
_LARGEST_FRACTION = 1.25  # bus bandwidth counts a reduction in the switch as more than the wire carries


class UnknownFigureError(ValueError):
    """The catalogue does not know a figure of a chip (see `unusable_reasons` to ask beforehand)."""

    def __init__(self, chip: str, figure: str) -> None:
        super().__init__(f"chip {chip!r}: {figure} is not known")
        self.chip = chip
        self.figure = figure


class _HardwareRecord(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PeakTflops(_HardwareRecord):
    """Dense peaks (no sparsity) of the matrix units in TFLOP/s; `None` = not supported or not published."""

    bf16: Figure | None = None
    fp16: Figure | None = None
    fp8: Figure | None = None
    fp4: Figure | None = None
    tf32: Figure | None = None
    fp32: Figure | None = None


class VectorTflops(_HardwareRecord):
    """Peaks of the vector units in TFLOP/s."""

    fp32: Figure | None = None
    fp16: Figure | None = None


class Memory(_HardwareRecord):
    """Device memory. `usable_gib` is what a framework sees as the device's total, in GiB."""

    capacity_gb: Figure | None = None
    usable_gib: Figure | None = None
    usable_source: str | None = None
    bandwidth_gb_s: Figure | None = None
    kind: str | None = None


class ScaleUp(_HardwareRecord):
    """The fast fabric between neighbours. Bandwidths are one way: per device, and for one pair of devices.

    `domain_size` counts the devices that share the fabric; `spans_nodes` says that it reaches beyond one host
    (rack-scale fabrics). In a mesh a pair has only its own link, so `peer_bandwidth_gb_s` is the smaller one.
    """

    kind: str | None = None
    bandwidth_gb_s: Figure | None = None
    peer_bandwidth_gb_s: Figure | None = None
    domain_size: PositiveInt = 8
    topology: Literal["switched", "mesh", "ring", "unknown"] = "unknown"
    spans_nodes: bool = False
    detail: str | None = None

    @model_validator(mode="after")
    def _pair_within_device(self) -> ScaleUp:
        pair, device = self.peer_bandwidth_gb_s, self.bandwidth_gb_s
        if pair is not None and device is not None and pair > device:
            raise ValueError(f"peer_bandwidth_gb_s {pair} is more than bandwidth_gb_s {device}")
        return self


class ScaleOut(_HardwareRecord):
    """The network between nodes: line rate per device, one way, in Gb/s."""

    bandwidth_gbit_s: Figure | None = None
    detail: str | None = None
    confidence: Confidence = "assumed"


class HostLink(_HardwareRecord):
    """The PCIe link to the host; `bandwidth_gb_s` one way. `chip_to_chip_gb_s`: a superchip's own link."""

    pcie_generation: PositiveInt
    lanes: PositiveInt = 16
    bandwidth_gb_s: Figure
    chip_to_chip: str | None = None
    chip_to_chip_gb_s: Figure | None = None

    @property
    def best_gb_s(self) -> float:
        """The faster of the two, one way."""
        return max(self.bandwidth_gb_s, self.chip_to_chip_gb_s or 0.0)


class Efficiency(_HardwareRecord):
    """One measured or assumed figure of `EFFICIENCY_NAMES`, with where it comes from."""

    value: Annotated[float, Field(ge=1e-12, le=MOST_FIGURE)]  # latencies of an ideal device are next to none
    confidence: Confidence
    source: str = Field(min_length=1)
    origin: Origin = "chip"


class Chip(_HardwareRecord):
    """One accelerator. After loading, `efficiency` holds every name of `EFFICIENCY_NAMES`.

    `architecture` names the family of dies that share kernels and so their efficiency, `variant` a later die of it
    that is faster than its peaks say. `compute_units` counts streaming multiprocessors, compute units or AI cores;
    `None` = not known. `block_formats`: those whose scales the matrix units apply themselves. `fp8_either_way`: fp8
    GEMMs take operands stored either way round, so that nothing needs a transposed copy.

    Raises:
        pydantic.ValidationError: with every problem found, each naming its field.
    """

    name: str = Field(min_length=1)
    aliases: tuple[str, ...] = ()
    vendor: str = "other"
    architecture: str | None = None
    variant: str | None = None
    status: str = "shipping"
    compute_units: PositiveInt | None = None
    compute_units_source: str | None = None
    peak_tflops: PeakTflops
    vector_tflops: VectorTflops = VectorTflops()
    block_formats: tuple[BlockFormat, ...] = ()
    fp8_either_way: bool = False
    memory: Memory
    scale_up: ScaleUp
    scale_out: ScaleOut = ScaleOut()
    host_link: HostLink | None = None
    tdp_w: Figure | None = None
    efficiency: dict[str, Efficiency] = Field(default_factory=dict)
    sources: str = ""
    confidence: Confidence = "assumed"
    field_confidence: dict[str, str] = Field(default_factory=dict)
    notes: str | None = None

    @model_validator(mode="after")
    def _known_efficiencies(self) -> Chip:
        unknown = [name for name in self.efficiency if name not in EFFICIENCY_NAMES]
        if unknown:
            raise ValueError(f"unknown efficiency {', '.join(unknown)}; known: {', '.join(EFFICIENCY_NAMES)}")
        for name, entry in self.efficiency.items():
            if name not in _ABOVE_ONE and entry.value > _LARGEST_FRACTION:
                raise ValueError(f"efficiency {name} is a fraction, not {entry.value}")
        return self

    def peak_flops(self, dtype: Dtype) -> float:
        """Dense matrix peak in FLOP/s.

        Raises:
            UnknownFigureError: when the chip has no known peak in that precision.
        """
        return units.tflops_to_flops(self._known(getattr(self.peak_tflops, dtype), f"{dtype} peak"))

    def efficiency_value(self, name: str) -> float:
        """One figure of `EFFICIENCY_NAMES`, in the unit that its name says (fractions have none).

        Raises:
            UnknownFigureError: when the chip has no such figure (a loaded chip has them all).
        """
        entry = self.efficiency.get(name)
        return self._known(None if entry is None else entry.value, f"efficiency {name}")

    def uses_efficiency(self, name: str) -> bool:
        """Whether anything rests on the figure: no GEMM does in a type without a known peak."""
        return not name.startswith("gemm_") or getattr(self.peak_tflops, name.removeprefix("gemm_")) is not None

    def fast_domain(self, node: int) -> int:
        """Devices that share the fast fabric in nodes of so many: a node's, or more where the fabric spans nodes."""
        size = self.scale_up.domain_size
        return size if self.scale_up.spans_nodes else min(size, node)

    @property
    def memory_capacity_bytes(self) -> float:
        """What the framework can see: `usable_gib` where known, else the nominal capacity."""
        if self.memory.usable_gib is not None:
            return units.gib_to_bytes(self.memory.usable_gib)
        return units.gb_to_bytes(self._known(self.memory.capacity_gb, "memory capacity"))

    @property
    def memory_bandwidth_bytes_s(self) -> float:
        """Peak device-memory bandwidth in bytes/s."""
        return units.gb_s_to_bytes_s(self._known(self.memory.bandwidth_gb_s, "memory bandwidth"))

    @property
    def scale_up_bandwidth_bytes_s(self) -> float:
        """One way, all links of one device together, in bytes/s."""
        return units.gb_s_to_bytes_s(self._known(self.scale_up.bandwidth_gb_s, "scale-up bandwidth"))

    @property
    def peer_bandwidth_bytes_s(self) -> float:
        """One way between one pair of devices, in bytes/s (the device's own where none is known)."""
        if self.scale_up.peer_bandwidth_gb_s is None:
            return self.scale_up_bandwidth_bytes_s
        return units.gb_s_to_bytes_s(self.scale_up.peer_bandwidth_gb_s)

    @property
    def scale_out_bandwidth_bytes_s(self) -> float:
        """Line rate of the network per device, one way, in bytes/s."""
        return units.gbit_s_to_bytes_s(self._known(self.scale_out.bandwidth_gbit_s, "network bandwidth"))

    @property
    def host_bandwidth_bytes_s(self) -> float:
        """One way between device and host, achieved, in bytes/s.

        Raises:
            UnknownFigureError: when the chip has no known link to the host.
        """
        link = self._known(self.host_link and self.host_link.best_gb_s, "host link bandwidth")
        return units.gb_s_to_bytes_s(link) * self.efficiency_value("host_link")

    @property
    def collective_half_payload_bytes(self) -> float:
        """Payload in bytes at which a collective inside a node reaches half its bandwidth."""
        return units.mib_to_bytes(self.efficiency_value("collective_half_payload_mib"))

    @property
    def collective_latency_s(self) -> float:
        """Seconds of a tiny all-reduce over one node."""
        return units.microseconds_to_seconds(self.efficiency_value("collective_latency_us"))

    @property
    def network_latency_s(self) -> float:
        """Seconds of one hop between nodes."""
        return units.microseconds_to_seconds(self.efficiency_value("network_latency_us"))

    @property
    def kernel_latency_s(self) -> float:
        """Seconds that each kernel costs whatever its size."""
        return units.microseconds_to_seconds(self.efficiency_value("kernel_latency_us"))

    def _known(self, value: Any, figure: str) -> float:
        if value is None:
            raise UnknownFigureError(self.name, figure)
        return float(value)


def unusable_reasons(
    chip: Chip, dtype: Dtype = "bf16", host_link: bool = False, blocks: BlockFormat | None = None, fp32: bool = False
) -> tuple[str, ...]:
    """Why no plan can be made for this chip in this precision; empty when one can.

    `host_link`: the plan sends something to the host and back. `blocks`: the format that its GEMMs need. `fp32`: its
    optimizer multiplies in fp32.
    """
    figures = {
        f"no {each} matrix peak is known": getattr(chip.peak_tflops, each) for each in (dtype, *["fp32"] * fp32)
    } | {
        "no memory capacity is known": chip.memory.usable_gib or chip.memory.capacity_gb,
        "no memory bandwidth is known": chip.memory.bandwidth_gb_s,
        "no scale-up bandwidth is known": chip.scale_up.bandwidth_gb_s,
        "no network (scale-out) bandwidth is known": chip.scale_out.bandwidth_gbit_s,
    }
    if host_link:
        figures["no bandwidth of the link to the host (host_link) is known"] = chip.host_link
    reasons = [reason for reason, value in figures.items() if value is None]
    if blocks is not None and blocks not in chip.block_formats:
        reasons.append(f"its matrix units have no {blocks} (block_formats)")
    return tuple(reasons)
