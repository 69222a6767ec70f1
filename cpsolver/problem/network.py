"""The network of a spec with its preset looked up: levels in devices, links by chip types, chips with its figures.

What the network says of adapters and of the fast domain is put into the chips, so that everything which reads a chip's
network reads the cluster's. What lies further out stands here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cpsolver.inputs.errors import Path, Trouble, dotted, number
from cpsolver.inputs.language import later, say
from cpsolver.spec.cluster import Cluster
from cpsolver.spec.network import NETWORK, ChipLink, level_devices
from hw_specs import Chip, Efficiency, FastDomain, NetworkFigures, NetworkLevel
from hw_specs.network import MOST_DEVICES
from hw_specs.schema import LEAST_FIGURE
from hw_specs.units import gbit_s_to_bytes_s, microseconds_to_seconds

_GIVEN = "given by the user"
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""Efficiencies of the fast fabric."""


@dataclass(frozen=True)
class Tier:
    """What a device has for traffic between units of `unit` devices that stay within `devices` of them.

    Bandwidth (one way, achieved) and latency of a hop include what lies inside: traffic that goes far goes through all.
    """

    name: str
    unit: int
    devices: int
    bandwidth_bytes_s: float
    latency_s: float


@dataclass(frozen=True)
class ClusterNetwork:
    """The network of a cluster. `levels` from the inside out; `node`: devices in a node."""

    name: str
    figures: NetworkFigures
    links: Mapping[frozenset[str], ChipLink]
    node: int

    @classmethod
    def of(cls, cluster: Cluster) -> ClusterNetwork | None:
        """The cluster's, None where its spec names none. Raises UnknownNetworkError."""
        given = cluster.network
        if given is None:
            return None
        links = {frozenset(link.between): link for link in given.links}
        return cls(given.preset or "own figures", given.figures(), links, cluster.gpus_per_node)

    @property
    def levels(self) -> tuple[NetworkLevel, ...]:
        """Those around the fast domain; one, the whole cluster, where none is given."""
        return self.figures.levels or (NetworkLevel(name="network"),)

    def size(self, level: NetworkLevel) -> int:
        """Devices of a level; more than any cluster has where it is the whole cluster."""
        return level_devices(level, self.node) or MOST_DEVICES

    def device_gbit_s(self) -> float | None:
        """Line rate of a device's adapter, or its share of the node's; None: the chip's own."""
        own = self.figures
        if own.nics_per_node is not None and own.nic_gbit_s is not None:
            return own.nics_per_node * own.nic_gbit_s / self.node
        return own.gbit_s

    def chip(self, chip: Chip, own_bandwidth: bool = False) -> Chip:
        """The chip with the network's figures; with `own_bandwidth` its adapter is as it is."""
        own, changed = self.figures, dict[str, Any]()
        rate = None if own_bandwidth else self.device_gbit_s()
        rate = chip.scale_out.bandwidth_gbit_s if rate is None else rate
        if rate is not None:
            rate = rate / (own.oversubscription or 1.0)
            if rate != chip.scale_out.bandwidth_gbit_s:
                out = {"bandwidth_gbit_s": rate, "detail": _GIVEN}
                changed["scale_out"] = chip.scale_out.model_copy(update=out)
        told = {"network": own.efficiency, "network_latency_us": own.latency_us}
        if own.domain is not None:
            changed["scale_up"] = chip.scale_up.model_copy(update=self._domain(chip, own.domain))
            told |= dict.fromkeys(COLLECTIVES, own.domain.efficiency)
            told["collective_latency_us"] = own.domain.latency_us
        return chip.model_copy(update={**changed, "efficiency": chip.efficiency | given_efficiencies(told, _GIVEN)})

    def _domain(self, chip: Chip, domain: FastDomain) -> dict[str, Any]:
        """The fields of a chip's fast fabric that the domain changes."""
        changed: dict[str, Any] = {}
        if domain.devices is not None:
            changed |= {"domain_size": domain.devices, "spans_nodes": domain.devices > self.node}
        if domain.gb_s is not None:
            pair = chip.scale_up.peer_bandwidth_gb_s
            whole = pair is None or pair == chip.scale_up.bandwidth_gb_s
            changed |= {"bandwidth_gb_s": domain.gb_s}
            changed |= {"peer_bandwidth_gb_s": domain.gb_s if whole or pair is None else min(pair, domain.gb_s)}
        return changed

    def tiers(self, chip: Chip) -> tuple[Tier, ...]:
        """What lies between the chip's fast domains, from the inside out; levels within one are left out."""
        domain = chip.fast_domain(self.node)
        rate, share = chip.scale_out_bandwidth_bytes_s, chip.efficiency_value("network")
        bandwidth, latency, unit = rate * share, chip.network_latency_s, domain
        found = []
        for level in self.levels:
            share = level.efficiency or share
            rate = gbit_s_to_bytes_s(level.gbit_s) if level.gbit_s else rate / (level.oversubscription or 1.0)
            bandwidth, latency = min(bandwidth, rate * share), max(latency, _latency_s(level, latency))
            if self.size(level) > domain:
                found.append(Tier(level.name, unit, self.size(level), bandwidth, latency))
                unit = self.size(level)
        return tuple(found)

    def words(self, chips: Iterable[Chip]) -> Iterator[str]:
        """The network in lines: what a device of each chip reaches on its way out, and links."""
        summed = say(", all-reduces summed in its switches") if self.figures.in_network_reduction else ""
        told = later("Network: {name}{summed}. What a device reaches, one way, and a hop's latency:")
        yield say(told, name=self.name, summed=summed)
        for chip in chips:
            devices, rate = chip.fast_domain(self.node), number(chip.scale_up.bandwidth_gb_s or 0.0)
            inside = say("fast domain of {devices} {rate} GB/s", devices=devices, rate=rate)
            yield f"  {chip.name}: {say('; ').join([inside, *map(_in_words, self.tiers(chip))])}"
        for pair, link in self.links.items():
            each, whole = link.gbit_s, link.total_gbit_s
            rate = say("{rate} Gbit/s in all", rate=number(whole or 0.0))
            rate = rate if each is None else say("{rate} Gbit/s a device", rate=number(each))
            yield say("  between {chips}: {rate}", chips=say(" and ").join(sorted(pair)), rate=rate)

    def troubles(self, chips: Iterable[Chip]) -> Iterator[Trouble]:
        """Where the network contradicts what the chips are, its figures in them already: levels that whole fast domains
        do not fill, and what is slower than what lies around it, unless the network says that it may be; or where
        oversubscription leaves nothing that could be planned with."""
        told = set()
        for chip in chips:
            slower = () if self.figures.allow_slower_inside else self._slower_than_outside(chip)
            for trouble in (*self._uneven(chip), *slower, *self._next_to_nothing(chip)):
                if (trouble.where, trouble.message) not in told:
                    told.add((trouble.where, trouble.message))
                    yield trouble

    def _uneven(self, chip: Chip) -> Iterator[Trouble]:
        domain = chip.fast_domain(self.node)
        for index, level in enumerate(self.figures.levels):
            size = self.size(level)
            if size < MOST_DEVICES and size > domain and size % domain:
                message = later(
                    "{name} has {size:,} devices, no multiple of the fast domain of {chip}: {domain:,}",
                    name=level.name,
                    size=size,
                    chip=chip.name,
                    domain=domain,
                )
                whole = (*NETWORK, "levels", index)
                yield Trouble(dotted(whole), message, path=whole)

    def _next_to_nothing(self, chip: Chip) -> Iterator[Trouble]:
        """The first place where a device has less than any bandwidth that can be stated."""
        rate = chip.scale_out.bandwidth_gbit_s
        places: list[tuple[Path, NetworkFigures | NetworkLevel]] = [((), self.figures)]
        places += [(("levels", index), level) for index, level in enumerate(self.figures.levels)]
        for path, place in places:
            if isinstance(place, NetworkLevel) and rate is not None:
                rate = place.gbit_s or rate / (place.oversubscription or 1.0)
            if rate is not None and rate < LEAST_FIGURE:
                message = later("leaves a device {rate:.3g} Gbit/s", rate=rate)
                allowed = later("{least:g} Gbit/s or more left", least=LEAST_FIGURE)
                whole = (*NETWORK, *path, "oversubscription")
                yield Trouble(dotted(whole), message, place.oversubscription, allowed, path=whole)
                return

    def _slower_than_outside(self, chip: Chip) -> Iterator[Trouble]:
        rate, latency, inner = chip.scale_out.bandwidth_gbit_s, chip.efficiency_value("network_latency_us"), "a node"
        fabric = chip.scale_up.bandwidth_gb_s
        if rate is not None and fabric is not None and 8 * fabric < rate:
            inside = (
                f"the fast fabric of {chip.name} gives a device {number(fabric)} GB/s ({number(8 * fabric)} Gbit/s)"
            )
            yield _slower(later("{inside}, and the network {rate} Gbit/s", inside=inside, rate=number(rate)), ())
        for index, level in enumerate(self.levels):
            path: Path = ("levels", index)
            own, hop = level.gbit_s, level.latency_us
            if own is not None and rate is not None and own > rate:
                message = later(
                    "{name} gives a device {own} Gbit/s, and {inner} inside it {rate} Gbit/s",
                    name=level.name,
                    own=number(own),
                    inner=inner,
                    rate=number(rate),
                )
                yield _slower(message, (*path, "gbit_s"))
            if hop is not None and hop < latency:
                message = later(
                    "a hop in {name} takes {hop} us, and in {inner} inside it {latency} us",
                    name=level.name,
                    hop=number(hop),
                    inner=inner,
                    latency=number(latency),
                )
                yield _slower(message, (*path, "latency_us"))
            rate = own or (None if rate is None else rate / (level.oversubscription or 1.0))
            latency, inner = (latency + (level.extra_latency_us or 0.0) if hop is None else hop), level.name


def given_efficiencies(values: Mapping[str, float | None], source: str) -> dict[str, Efficiency]:
    """Efficiencies with that source; those that are None are left out."""
    return {
        name: Efficiency(value=value, confidence="assumed", source=source, origin="spec")
        for name, value in values.items()
        if value is not None
    }


def _in_words(tier: Tier) -> str:
    """A tier in words: `rack of 32 92.8 Gbit/s, 10 us`."""
    size = "" if tier.devices >= MOST_DEVICES else say(" of {devices:,}", devices=tier.devices)
    rate, latency = number(round(tier.bandwidth_bytes_s * 8e-9, 1)), number(round(tier.latency_s * 1e6, 1))
    return say("{tier}{size} {rate} Gbit/s, {latency} us", tier=tier.name, size=size, rate=rate, latency=latency)


def _latency_s(level: NetworkLevel, inside_s: float) -> float:
    if level.latency_us is not None:
        return microseconds_to_seconds(level.latency_us)
    return inside_s + microseconds_to_seconds(level.extra_latency_us or 0.0)


def _slower(message: str, path: Path) -> Trouble:
    whole = (*NETWORK, *path)
    allowed = later("no faster outside than inside, or allow_slower_inside: true")
    return Trouble(dotted(whole), message, allowed=allowed, path=whole)
