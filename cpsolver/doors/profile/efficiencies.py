"""From measurements to the efficiencies of hw_specs.schema.EFFICIENCY_NAMES, each with where it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from cpsolver.doors.profile.settings import FitGrid, Settings
from cpsolver.doors.profile.shapes import COLLECTIVES, STREAMS
from cpsolver.doors.profile.task import Measurement, MeasurementSet, NotMeasured
from hw_specs import Chip

LARGEST = 1.25
"""Efficiencies above it the catalogue's schema refuses: the peak is another device's."""


@dataclass(frozen=True)
class Peak:
    """What a rate is a share of, in operations or bytes per second, and who says so."""

    value: float
    source: str


@dataclass(frozen=True)
class KnownPeaks:
    """Of each precision, of memory, of the fabric one way, of the host's link one way; None: not known."""

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
    """One measured efficiency; `spread`: the typical distance of the quartiles of its repeats, as a share."""

    name: str
    value: float
    spread: float
    source: str


def gemm_flops(each: Measurement) -> float:
    """Of a product."""
    m, n, k, batch = (each.number(name) for name in ("m", "n", "k", "batch"))
    return 2.0 * batch * m * n * k


def gemm_rate(each: Measurement) -> float:
    """FLOP/s of a product."""
    return gemm_flops(each) / each.median_s


def attention_rate(each: Measurement, flops_factor: float, causal: float) -> float:
    """FLOP/s of attention: the pairs that causal attention needs, times what backward does more."""
    batch, heads, sequence = (each.number(name) for name in ("batch", "heads", "sequence"))
    pairs = batch * heads * sequence**2 * causal
    return 2.0 * pairs * (each.number("keys") + each.number("values")) * flops_factor / each.median_s


def memory_rate(each: Measurement) -> float:
    """Bytes/s of a memory-bound kernel: each tensor read or written once."""
    return each.number("bytes") * STREAMS[str(each.size["kernel"])] / each.median_s


def large_gemms(products: Sequence[Measurement], least: int) -> tuple[list[Measurement], str]:
    """The large products, and in words which; where none is large enough, those next to the largest."""
    found = [each for each in products if min(each.number(name) for name in "mnk") >= least]
    if found:
        return found, f"products with m, n, k >= {least}"
    most = max(gemm_flops(each) for each in products)
    found = [each for each in products if gemm_flops(each) >= most / 2]
    return found, f"products of at least {most / 2e9:.3g} GFLOP, the largest measured (none has m, n, k >= {least})"


def peaks(entry: Chip | None, given: GivenPeaks, measured: MeasurementSet, settings: Settings) -> KnownPeaks:
    """The user's, else the entry's, else the best rate seen."""
    whose = "" if entry is None else f"the catalogue's {entry.name}"
    seen = "the best rate seen here, for want of a known peak"
    flops: dict[str, Peak] = {}
    for precision in ("bf16", "fp16", "fp8"):
        told = None if entry is None else getattr(entry.peak_tflops, precision)
        rates = [gemm_rate(each) for each in measured.of("gemm", precision=precision)]
        if precision in given.tflops:
            flops[precision] = Peak(given.tflops[precision] * 1e12, "the user")
        elif told is not None:
            flops[precision] = Peak(told * 1e12, whose)
        elif rates:
            flops[precision] = Peak(max(rates), seen)
    streams = [memory_rate(each) for each in measured.of("memory")]
    buses = [fit.value for fit in _fabric_rates(measured, settings).values()]
    memory = entry.memory.bandwidth_gb_s if entry else None
    fabric = entry.scale_up.bandwidth_gb_s if entry else None
    host = entry.host_link.best_gb_s if entry and entry.host_link else None
    copies = [each.number("bytes") / each.median_s for each in measured.of("host_link")]
    return KnownPeaks(
        flops,
        _peak(given.memory_gb_s, memory, max(streams, default=None), whose, seen),
        _peak(given.fabric_gb_s, fabric, max(buses, default=None), whose, seen),
        _peak(None, host, max(copies, default=None), whose, seen),
    )


def _peak(user: float | None, entry: float | None, seen: float | None, whose: str, best: str) -> Peak | None:
    if user is not None:
        return Peak(user * 1e9, "the user")
    if entry is not None:
        return Peak(entry * 1e9, whose)
    return None if seen is None else Peak(seen, best)


def measured_efficiencies(
    measured: MeasurementSet, known: KnownPeaks, settings: Settings, causal: float, backward: float
) -> tuple[list[MeasuredEfficiency], list[NotMeasured]]:
    """Every efficiency that the measurements give, and those that cannot be right.

    `causal` and `backward`: the share of pairs that causal attention needs and how much more its backward pass does
    (the stack's causal_fraction and attention_backward_flops_factor).
    """
    found = [*_products(measured, known, settings), *_attention(measured, known, settings, causal, backward)]
    found += [*_memory(measured, known), *_host(measured, known), *_launch(measured)]
    found += _collectives(measured, known, settings)
    wrong = [each for each in found if each.value > LARGEST and not each.name.endswith(("_us", "_mib"))]
    told = f"above {LARGEST}: the peak is another device's (--replaces, --peak-tflops)"
    odd = [
        NotMeasured(each.name, f"{each.value:.3g} of {each.source.rpartition(' of ')[2]} is {told}") for each in wrong
    ]
    return [each for each in found if each not in wrong], odd


def _figure(
    name: str, each: Sequence[Measurement], rates: Sequence[float], peak: Peak, unit: float, word: str, what: str
) -> MeasuredEfficiency:
    """The median rate over a peak; `unit` and `word`: of the numbers in the source."""
    low, middle, high = (value / unit for value in (min(rates), median(rates), max(rates)))
    span = f" ({low:.4g} to {high:.4g})" if len(rates) > 1 else ""
    repeats = min(len(one.seconds) for one in each)
    told = f"median {middle:.4g} {word}{span} of {what}, {repeats} or more repeats each"
    source = f"{told}; over {peak.value / unit:.4g} {word} of {peak.source}"
    return MeasuredEfficiency(name, median(rates) / peak.value, median(one.spread for one in each), source)


def _products(measured: MeasurementSet, known: KnownPeaks, settings: Settings) -> Iterator[MeasuredEfficiency]:
    for precision, peak in known.flops.items():
        all_of_them = measured.of("gemm", precision=precision)
        if all_of_them:
            chosen, which = large_gemms(all_of_them, settings.large_dimension)
            rates = [gemm_rate(each) for each in chosen]
            yield _figure(f"gemm_{precision}", chosen, rates, peak, 1e12, "TFLOP/s", f"{len(chosen)} {which}")


def _attention(
    measured: MeasurementSet, known: KnownPeaks, settings: Settings, causal: float, backward: float
) -> Iterator[MeasuredEfficiency]:
    if "bf16" not in known.flops:
        return
    for name, factor in (("attention_forward", 1.0), ("attention_backward", backward)):
        listed = measured.of(name)
        if not listed:
            continue
        long = [each for each in listed if each.number("sequence") >= settings.long_sequence]
        longest = max(each.number("sequence") for each in listed)
        chosen = long or [each for each in listed if each.number("sequence") == longest]
        rates = [attention_rate(each, factor, causal) for each in chosen]
        lengths = sorted({each.number("sequence") for each in chosen})
        kernels = ", ".join(sorted({each.note for each in chosen}))
        what = f"{len(chosen)} causal shapes of {', '.join(map(str, lengths))} tokens ({kernels})"
        yield _figure(name, chosen, rates, known.flops["bf16"], 1e12, "TFLOP/s", what)


def _memory(measured: MeasurementSet, known: KnownPeaks) -> Iterator[MeasuredEfficiency]:
    chosen = measured.of("memory")
    if chosen and known.memory is not None:
        what = f"{len(chosen)} kernels ({', '.join(str(each.size['kernel']) for each in chosen)})"
        rates = [memory_rate(each) for each in chosen]
        yield _figure("memory", chosen, rates, known.memory, 1e9, "GB/s", what)


def _host(measured: MeasurementSet, known: KnownPeaks) -> Iterator[MeasuredEfficiency]:
    chosen = measured.of("host_link")
    if chosen and known.host is not None:
        what = f"copies of pinned memory {', '.join(str(each.size['direction']) for each in chosen)}"
        rates = [each.number("bytes") / each.median_s for each in chosen]
        yield _figure("host_link", chosen, rates, known.host, 1e9, "GB/s", what)


def _launch(measured: MeasurementSet) -> Iterator[MeasuredEfficiency]:
    for each in measured.of("launch"):
        told = f"{each.number('kernels')} tiny kernels in a row, {each.note}, {len(each.seconds)} repeats"
        yield MeasuredEfficiency("kernel_latency_us", each.median_s * 1e6, each.spread, told)


@dataclass(frozen=True)
class _BusBandwidth:
    """A collective of the whole group: bandwidth of an endless payload in bytes/s, and how it was found."""

    value: float
    spread: float
    told: str


def _whole_group(measured: MeasurementSet, collective: str) -> list[Measurement]:
    listed = measured.of("collective", collective=collective)
    most = max((each.number("group") for each in listed), default=0)
    return sorted((e for e in listed if e.number("group") == most), key=lambda each: each.number("payload"))


def _latency_and_half(measured: MeasurementSet, settings: Settings) -> tuple[float, float] | None:
    """Seconds of the smallest all-reduce, and the half payload in bytes; None without several all-reduces."""
    reduces = _whole_group(measured, "all_reduce")
    if len(reduces) < 3:
        return None
    latency = reduces[0].median_s
    half = fit_half_payload(_points(reduces[1:]), reduces[0].number("group"), latency, settings.half_payload_mib)
    return None if half is None else (latency, half)


def _fabric_rates(measured: MeasurementSet, settings: Settings) -> dict[str, _BusBandwidth]:
    start = _latency_and_half(measured, settings)
    if start is None:
        return {}
    found = {}
    for collective in COLLECTIVES:
        listed = _whole_group(measured, collective)[1:]
        if not listed:
            continue
        group = listed[0].number("group")
        fit = fit_bandwidth(_points(listed), collective, group, *start)
        if fit is not None:
            sizes = f"{listed[0].number('payload'):,} to {listed[-1].number('payload'):,} bytes"
            told = f"{fit.bandwidth / 1e9:.4g} GB/s for an endless payload, fitted to {len(listed)} payloads of {sizes}"
            told += f" over {group} devices ({fit.error:.0%} off)"
            found[collective] = _BusBandwidth(fit.bandwidth, median(each.spread for each in listed), told)
    return found


def _collectives(measured: MeasurementSet, known: KnownPeaks, settings: Settings) -> Iterator[MeasuredEfficiency]:
    start, peak = _latency_and_half(measured, settings), known.fabric
    if start is None or peak is None:
        return
    for collective, bus in _fabric_rates(measured, settings).items():
        source = f"{bus.told}; over {peak.value / 1e9:.4g} GB/s of {peak.source}"
        yield MeasuredEfficiency(collective, bus.value / peak.value, bus.spread, source)
    reduces = _whole_group(measured, "all_reduce")
    what = f"all-reduces over {reduces[0].number('group')} devices"
    spread = median(each.spread for each in reduces)
    yield MeasuredEfficiency(
        "collective_half_payload_mib", start[1] / _MIB, spread, f"fitted to {len(reduces) - 1} {what}"
    )
    told = f"{what} of {reduces[0].number('payload'):,} bytes, {len(reduces[0].seconds)} repeats"
    yield MeasuredEfficiency("collective_latency_us", start[0] * 1e6, reduces[0].spread, told)


def _points(listed: Sequence[Measurement]) -> list[tuple[int, float]]:
    return [(each.number("payload"), each.median_s) for each in listed]


Points = Sequence[tuple[int, float]]
"""Payload in bytes, seconds."""
_MIB = 2.0**20


@dataclass(frozen=True)
class BandwidthFit:
    """Bus bandwidth for an endless payload in bytes/s, and the root mean square of the relative errors."""

    bandwidth: float
    error: float


def rounds(collective: str) -> float:
    """How often the buffer goes around."""
    return 2.0 if collective == "all_reduce" else 1.0


def fit_bandwidth(points: Points, collective: str, group: int, latency_s: float, half: float) -> BandwidthFit | None:
    """Least squares of the relative errors with latency and half payload given; None where latency is all there is."""
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
    """Half payload of all-reduces in bytes: the one under which the seconds are matched best. None: no bandwidth."""
    ratio = (search.most / search.least) ** (1.0 / (search.steps - 1))
    best: tuple[float, float] | None = None
    for step in range(search.steps):
        half = search.least * ratio**step * _MIB
        fit = fit_bandwidth(points, "all_reduce", group, latency_s, half)
        if fit is not None and (best is None or fit.error < best[0]):
            best = fit.error, half
    return None if best is None else best[1]
