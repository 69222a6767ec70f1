"""Turns measurements into the efficiencies of hw_specs.schema.EFFICIENCY_NAMES, each with its source.

Collectives are fitted to the cost model's own form (cpsolver/cost/collectives.py): seconds = latency * rounds / 2 +
rounds * (g - 1) / g * (p + min(p, half)) / bandwidth for a buffer of p bytes over g ranks. An all-reduce has two
rounds, other collectives have one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from cpsolver.doors.profile.settings import FitGrid, Settings
from cpsolver.doors.profile.shapes import COLLECTIVES, STREAMS
from cpsolver.doors.profile.task import Measurement, MeasurementSet, NotMeasured
from cpsolver.inputs.language import later, say
from hw_specs import Chip

LARGEST = 1.25
"""The catalogue's schema refuses larger efficiencies: the peak must be that of another device."""
_USERS, _CATALOGUES = later("the user"), "the catalogue's "


@dataclass(frozen=True)
class Peak:
    """The rate that an efficiency is relative to, in FLOP/s or bytes/s, and its source."""

    value: float
    source: str


@dataclass(frozen=True)
class KnownPeaks:
    """Peaks of each precision, of memory, and one way of the fabric and of the link to the host; None: not known."""

    flops: Mapping[str, Peak]
    memory: Peak | None
    fabric: Peak | None
    host: Peak | None


@dataclass(frozen=True)
class GivenPeaks:
    """Peaks that the user gives: TFLOP/s by precision, GB/s of memory and of the fabric, Gbit/s of the network."""

    tflops: Mapping[str, float]
    memory_gb_s: float | None = None
    fabric_gb_s: float | None = None
    network_gbit_s: float | None = None


@dataclass(frozen=True)
class MeasuredEfficiency:
    """One measured efficiency. `spread`: the typical distance of the quartiles of its repeats, as a fraction."""

    name: str
    value: float
    spread: float
    source: str


def gemm_flops(gemm: Measurement) -> float:
    """FLOP of a GEMM."""
    m, n, k, batch = (gemm.number(name) for name in ("m", "n", "k", "batch"))
    return 2.0 * batch * m * n * k


def gemm_rate(gemm: Measurement) -> float:
    """FLOP/s of a GEMM."""
    return gemm_flops(gemm) / gemm.median_s


class AttentionWork(NamedTuple):
    """What attention kernels compute, by the stack's constants `causal_fraction`, `masked_keys` and
    `attention_backward_flops_factor`: the fraction of pairs that is needed, the keys in vain of each query, and the
    FLOP of backward over those of forward."""

    causal: float
    masked_keys: float
    backward: float


def attention_rate(attention: Measurement, flops_factor: float, work: AttentionWork) -> float:
    """FLOP/s of causal attention, those in vain counted, as the cost model counts them (cost/selection.py).

    `flops_factor`: backward over forward.
    """
    batch, heads, sequence = (attention.number(name) for name in ("batch", "heads", "sequence"))
    pairs = batch * heads * sequence**2 * min(1.0, work.causal + work.masked_keys / sequence)
    return 2.0 * pairs * (attention.number("keys") + attention.number("values")) * flops_factor / attention.median_s


def memory_rate(kernel: Measurement) -> float:
    """Bytes/s of a memory-bound kernel, which reads or writes each tensor once."""
    return kernel.number("bytes") * STREAMS[str(kernel.size["kernel"])] / kernel.median_s


def large_gemms(gemms: Sequence[Measurement], least: int) -> tuple[list[Measurement], str]:
    """The large GEMMs, and a description of them; where none is large enough, those of at least half the largest."""
    chosen = [gemm for gemm in gemms if min(gemm.number(name) for name in "mnk") >= least]
    if chosen:
        return chosen, f"products with m, n, k >= {least}"
    largest = max(gemm_flops(gemm) for gemm in gemms)
    chosen = [gemm for gemm in gemms if gemm_flops(gemm) >= largest / 2]
    return chosen, f"products of at least {largest / 2e9:.3g} GFLOP, the largest measured (none has m, n, k >= {least})"


def peaks(entry: Chip | None, given: GivenPeaks, measured: MeasurementSet, settings: Settings) -> KnownPeaks:
    """Each peak as the user gives it, else by the catalogue's entry, else the best rate measured."""
    entry_source = "" if entry is None else f"{_CATALOGUES}{entry.name}"
    best_source = "the best rate seen here, for want of a known peak"
    flops: dict[str, Peak] = {}
    for precision in ("bf16", "fp16", "fp8"):
        published = None if entry is None else getattr(entry.peak_tflops, precision)
        rates = [gemm_rate(measurement) for measurement in measured.of("gemm", precision=precision)]
        if precision in given.tflops:
            flops[precision] = Peak(given.tflops[precision] * 1e12, _USERS)
        elif published is not None:
            flops[precision] = Peak(published * 1e12, entry_source)
        elif rates:
            flops[precision] = Peak(max(rates), best_source)
    streams = [memory_rate(measurement) for measurement in measured.of("memory")]
    buses = [fit.value for fit in _fabric_rates(measured, settings).values()]
    memory = entry.memory.bandwidth_gb_s if entry else None
    fabric = entry.scale_up.bandwidth_gb_s if entry else None
    host = entry.host_link.best_gb_s if entry and entry.host_link else None
    copies = [measurement.number("bytes") / measurement.median_s for measurement in measured.of("host_link")]
    return KnownPeaks(
        flops,
        _peak(given.memory_gb_s, memory, max(streams, default=None), entry_source, best_source),
        _peak(given.fabric_gb_s, fabric, max(buses, default=None), entry_source, best_source),
        _peak(None, host, max(copies, default=None), entry_source, best_source),
    )


def _peak(
    user: float | None, entry: float | None, best: float | None, entry_source: str, best_source: str
) -> Peak | None:
    if user is not None:
        return Peak(user * 1e9, _USERS)
    if entry is not None:
        return Peak(entry * 1e9, entry_source)
    return None if best is None else Peak(best, best_source)


def measured_efficiencies(
    measured: MeasurementSet, known_peaks: KnownPeaks, settings: Settings, work: AttentionWork
) -> tuple[list[MeasuredEfficiency], list[NotMeasured]]:
    """Every efficiency that the measurements give, and those that are left out because they cannot be right."""
    figures = list(_gemms(measured, known_peaks, settings))
    figures += _attention(measured, known_peaks, settings, work)
    figures += [*_memory(measured, known_peaks), *_host(measured, known_peaks), *_launch(measured)]
    figures += _collectives(measured, known_peaks, settings)
    too_large = [figure for figure in figures if figure.value > LARGEST and not figure.name.endswith(("_us", "_mib"))]
    rejected = [NotMeasured(figure.name, _too_large(figure)) for figure in too_large]
    return [figure for figure in figures if figure not in too_large], rejected


def _too_large(figure: MeasuredEfficiency) -> str:
    peak = figure.source.rpartition(" of ")[2]  # the chip file's, in English
    if peak.startswith(_CATALOGUES):
        peak = say("the catalogue's {name}", name=peak.removeprefix(_CATALOGUES))
    return say(
        "{value:.3g} of {peak} is above {largest}: the peak is another device's (--replaces, --peak-tflops)",
        value=figure.value,
        peak=say(peak),
        largest=LARGEST,
    )


def _figure(
    name: str,
    measurements: Sequence[Measurement],
    rates: Sequence[float],
    peak: Peak,
    unit: float,
    unit_name: str,
    what: str,
) -> MeasuredEfficiency:
    """The median rate over a peak; `unit` and `unit_name` are those of the numbers in the source."""
    low, middle, high = (value / unit for value in (min(rates), median(rates), max(rates)))
    span = f" ({low:.4g} to {high:.4g})" if len(rates) > 1 else ""
    repeats = min(len(measurement.seconds) for measurement in measurements)
    summary = f"median {middle:.4g} {unit_name}{span} of {what}, {repeats} or more repeats each"
    source = f"{summary}; over {peak.value / unit:.4g} {unit_name} of {peak.source}"
    spread = median(measurement.spread for measurement in measurements)
    return MeasuredEfficiency(name, median(rates) / peak.value, spread, source)


def _gemms(measured: MeasurementSet, known_peaks: KnownPeaks, settings: Settings) -> Iterator[MeasuredEfficiency]:
    for precision, peak in known_peaks.flops.items():
        gemms = measured.of("gemm", precision=precision)
        if gemms:
            chosen, which = large_gemms(gemms, settings.large_dimension)
            rates = [gemm_rate(gemm) for gemm in chosen]
            yield _figure(f"gemm_{precision}", chosen, rates, peak, 1e12, "TFLOP/s", f"{len(chosen)} {which}")


def _attention(
    measured: MeasurementSet, known_peaks: KnownPeaks, settings: Settings, work: AttentionWork
) -> Iterator[MeasuredEfficiency]:
    if "bf16" not in known_peaks.flops:
        return
    for name, factor in (("attention_forward", 1.0), ("attention_backward", work.backward)):
        shapes = measured.of(name)
        if not shapes:
            continue
        least = min(settings.long_sequence, max(shape.number("sequence") for shape in shapes))
        chosen = [shape for shape in shapes if shape.number("sequence") >= least]
        rates = [attention_rate(shape, factor, work) for shape in chosen]
        lengths = sorted({shape.number("sequence") for shape in chosen})
        kernels = ", ".join(sorted({shape.note for shape in chosen}))
        shapes_of = f"{len(chosen)} causal shapes of {', '.join(map(str, lengths))} tokens"
        what = f"{shapes_of}, {work.masked_keys:.0f} keys of each query in vain ({kernels})"
        yield _figure(name, chosen, rates, known_peaks.flops["bf16"], 1e12, "TFLOP/s", what)


def _memory(measured: MeasurementSet, known_peaks: KnownPeaks) -> Iterator[MeasuredEfficiency]:
    chosen = measured.of("memory")
    if chosen and known_peaks.memory is not None:
        what = f"{len(chosen)} kernels ({', '.join(str(kernel.size['kernel']) for kernel in chosen)})"
        rates = [memory_rate(kernel) for kernel in chosen]
        yield _figure("memory", chosen, rates, known_peaks.memory, 1e9, "GB/s", what)


def _host(measured: MeasurementSet, known_peaks: KnownPeaks) -> Iterator[MeasuredEfficiency]:
    chosen = measured.of("host_link")
    if chosen and known_peaks.host is not None:
        what = f"copies of pinned memory {', '.join(str(copy.size['direction']) for copy in chosen)}"
        rates = [copy.number("bytes") / copy.median_s for copy in chosen]
        yield _figure("host_link", chosen, rates, known_peaks.host, 1e9, "GB/s", what)


def _launch(measured: MeasurementSet) -> Iterator[MeasuredEfficiency]:
    for row in measured.of("launch"):
        source = f"{row.number('kernels')} tiny kernels in a row, {row.note}, {len(row.seconds)} repeats"
        yield MeasuredEfficiency("kernel_latency_us", row.median_s * 1e6, row.spread, source)


def _whole_group(measured: MeasurementSet, collective: str) -> list[Measurement]:
    measurements = measured.of("collective", collective=collective)
    largest = max((measurement.number("group") for measurement in measurements), default=0)
    whole = [measurement for measurement in measurements if measurement.number("group") == largest]
    return sorted(whole, key=lambda measurement: measurement.number("payload"))


def _latency_and_half(measured: MeasurementSet, settings: Settings) -> tuple[float, float] | None:
    """Seconds of the smallest all-reduce, and the half payload in bytes; None without several all-reduces."""
    reduces = _whole_group(measured, "all_reduce")
    if len(reduces) < 3:  # one gives the latency; bandwidth and half payload need two more
        return None
    latency = reduces[0].median_s
    half = fit_half_payload(_points(reduces[1:]), reduces[0].number("group"), latency, settings.half_payload_mib)
    return None if half is None else (latency, half)


def _fabric_rates(measured: MeasurementSet, settings: Settings) -> dict[str, MeasuredEfficiency]:
    """Bandwidths of collectives over the whole group for an endless payload in bytes/s, and how they were fitted."""
    latency_and_half = _latency_and_half(measured, settings)
    if latency_and_half is None:
        return {}
    rates = {}
    for collective in COLLECTIVES:
        payloads = _whole_group(measured, collective)[1:]
        if not payloads:
            continue
        group = payloads[0].number("group")
        fit = fit_bandwidth(_points(payloads), collective, group, *latency_and_half)
        if fit is not None:
            sizes = f"{payloads[0].number('payload'):,} to {payloads[-1].number('payload'):,} bytes"
            fitted = f"fitted to {len(payloads)} payloads of {sizes} over {group} devices ({fit.error:.0%} off)"
            source = f"{fit.bandwidth / 1e9:.4g} GB/s for an endless payload, {fitted}"
            spread = median(payload.spread for payload in payloads)
            rates[collective] = MeasuredEfficiency(collective, fit.bandwidth, spread, source)
    return rates


def _collectives(measured: MeasurementSet, known_peaks: KnownPeaks, settings: Settings) -> Iterator[MeasuredEfficiency]:
    latency_and_half, peak = _latency_and_half(measured, settings), known_peaks.fabric
    if latency_and_half is None or peak is None:
        return
    for collective, bus in _fabric_rates(measured, settings).items():
        source = f"{bus.source}; over {peak.value / 1e9:.4g} GB/s of {peak.source}"
        yield MeasuredEfficiency(collective, bus.value / peak.value, bus.spread, source)
    reduces = _whole_group(measured, "all_reduce")
    what = f"all-reduces over {reduces[0].number('group')} devices"
    spread, (latency, half) = median(reduce.spread for reduce in reduces), latency_and_half
    source = f"fitted to {len(reduces) - 1} {what}"
    yield MeasuredEfficiency("collective_half_payload_mib", half / _MIB, spread, source)
    source = f"{what} of {reduces[0].number('payload'):,} bytes, {len(reduces[0].seconds)} repeats"
    yield MeasuredEfficiency("collective_latency_us", latency * 1e6, reduces[0].spread, source)


def _points(measurements: Sequence[Measurement]) -> list[tuple[int, float]]:
    return [(measurement.number("payload"), measurement.median_s) for measurement in measurements]


Points = Sequence[tuple[int, float]]
"""Payload in bytes, seconds."""
_MIB = 2.0**20


@dataclass(frozen=True)
class BandwidthFit:
    """Bus bandwidth for an endless payload in bytes/s, and the root mean square of the relative errors."""

    bandwidth: float
    error: float


def rounds(collective: str) -> float:
    """How many times a collective sends the buffer around."""
    return 2.0 if collective == "all_reduce" else 1.0


def fit_bandwidth(points: Points, collective: str, group: int, latency_s: float, half: float) -> BandwidthFit | None:
    """The bandwidth by least squares of the relative errors, latency and half payload given; None: only latency."""
    turns = rounds(collective)
    fixed = latency_s * turns / 2
    rows = [
        (turns * (group - 1) / group * (payload + min(payload, half)) / seconds, 1.0 - fixed / seconds)
        for payload, seconds in points
    ]
    inverse = sum(x * y for x, y in rows) / sum(x * x for x, _ in rows)
    if inverse <= 0:
        return None
    error = (sum((x * inverse - y) ** 2 for x, y in rows) / len(rows)) ** 0.5
    return BandwidthFit(1.0 / inverse, error)


def fit_half_payload(points: Points, group: int, latency_s: float, search: FitGrid) -> float | None:
    """The half payload in bytes that fits the all-reduces best; None where no bandwidth fits."""
    ratio = (search.most / search.least) ** (1.0 / (search.steps - 1))
    best: tuple[float, float] | None = None
    for step in range(search.steps):
        half = search.least * ratio**step * _MIB
        fit = fit_bandwidth(points, "all_reduce", group, latency_s, half)
        if fit is not None and (best is None or fit.error < best[0]):
            best = fit.error, half
    return None if best is None else best[1]
