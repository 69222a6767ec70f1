"""The network that a spec asks for: a preset of the catalogue, its own figures, links between chip types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field

from cpsolver.inputs.errors import Path, Trouble, dotted, nearest_names, number
from cpsolver.inputs.language import later
from cpsolver.spec.training import Name, Part
from hw_specs import FastDomain, NetworkFigures, NetworkLevel, UnknownNetworkError, load_network
from hw_specs.network import Figure, LatencyOr0, Share

NETWORK: Path = ("cluster", "network")
_BANDWIDTHS = ("gbit_s", "nics_per_node", "nic_gbit_s")


class ChipLink(Part):
    """What joins the islands of two chip types: so much for each device, or in all."""

    between: tuple[Name, Name] = Field(description="two names of cluster.chips")
    gbit_s: Figure | None = Field(default=None, description="bandwidth of each device over it, one way, in Gbit/s")
    total_gbit_s: Figure | None = Field(
        default=None, description="bandwidth of the whole link, one way, in Gbit/s, which all devices that send share"
    )
    efficiency: Share | None = Field(
        default=None, description="share of it that traffic reaches; null: the worse of the two chips' networks"
    )
    latency_us: LatencyOr0 | None = Field(
        default=None, description="one transfer over it, in microseconds; null: the slower of the two chips' networks"
    )


class Network(NetworkFigures):
    """The network between devices. With a preset, what else is given stands in place of what the preset says."""

    preset: Name | None = Field(default=None, description="a network of the catalogue, to start from")
    links: tuple[ChipLink, ...] = Field(
        default=(), description="links between chip types; others meet on its top level"
    )

    def figures(self) -> NetworkFigures:
        """The preset's figures under the spec's own. Raises UnknownNetworkError."""
        fields = NetworkFigures.model_fields
        own = {name: getattr(self, name) for name, field in fields.items() if getattr(self, name) != field.default}
        given = {} if self.preset is None else load_network(self.preset).figures()
        if set(own) & set(_BANDWIDTHS):
            given = {name: value for name, value in given.items() if name not in _BANDWIDTHS}
        return NetworkFigures.model_validate({**given, **own})


def one_name(value: Any) -> Any:
    """A preset's name alone, written out."""
    return {"preset": value} if isinstance(value, str) else value


def level_devices(level: NetworkLevel, node: int) -> int | None:
    """Devices of a level, None where it is the whole cluster."""
    return level.nodes * node if level.nodes is not None else level.devices


@dataclass(frozen=True)
class _Unit:
    """What a level may stand around, in words and devices."""

    words: str
    devices: int


def network_troubles(network: Network | None, total: int, node: int, chips: Sequence[str]) -> Iterator[Trouble]:
    """How a network contradicts itself, whatever the chips can do.

    `total`: devices of the cluster; `node`: of a node; `chips`: the names of the chip types.
    """
    if network is None:
        return
    yield from _links(network, chips)
    try:
        figures = network.figures()
    except UnknownNetworkError as error:
        allowed = later("a name that `apss-cp networks` lists, or the network's own figures")
        yield _trouble(later("unknown network"), ("preset",), network.preset, allowed, error.nearest)
        figures = NetworkFigures.model_validate({name: getattr(network, name) for name in NetworkFigures.model_fields})
    yield from _bandwidth(figures)
    yield from _sizes(figures, node)
    yield from _ends_early(figures, total, node)
    for index, level in enumerate(figures.levels):
        yield from _one_of(level, ("levels", index), "gbit_s", "oversubscription", later("says the level's bandwidth"))
        yield from _one_of(
            level, ("levels", index), "latency_us", "extra_latency_us", later("says the level's latency")
        )


def _trouble(
    message: str, path: Path, value: Any = None, allowed: str | None = None, nearest: tuple[str, ...] = ()
) -> Trouble:
    whole = (*NETWORK, *path)
    return Trouble(dotted(whole), message, value, allowed, nearest, path=whole)


def _one_of(part: Any, path: Path, first: str, second: str, what: str) -> Iterator[Trouble]:
    one, two = getattr(part, first), getattr(part, second)
    if one is not None and two is not None:
        message = later(
            "has {first} {one} and {second} {two}: each {what}",
            first=first,
            one=number(one),
            second=second,
            two=number(two),
            what=what,
        )
        yield _trouble(message, path, allowed=later("one of the two"))


def _bandwidth(figures: NetworkFigures) -> Iterator[Trouble]:
    count, each = figures.nics_per_node, figures.nic_gbit_s
    if figures.gbit_s is not None and (count is not None or each is not None):
        own = {"nics_per_node": count, "nic_gbit_s": each}
        told = " and ".join(f"{name} {number(value)}" for name, value in own.items() if value is not None)
        message = later(
            "has gbit_s {gbit_s} and {told}: both say a device's bandwidth", gbit_s=number(figures.gbit_s), told=told
        )
        yield _trouble(message, (), allowed=later("gbit_s, or nics_per_node with nic_gbit_s"))
    elif (count is None) != (each is None):
        given, lacks = ("nics_per_node", "nic_gbit_s") if each is None else ("nic_gbit_s", "nics_per_node")
        message = later(
            "has {given} {value} without {lacks}", given=given, value=number(getattr(figures, given)), lacks=lacks
        )
        yield _trouble(message, (), allowed=later("both of them, or gbit_s"))


def _sizes(figures: NetworkFigures, node: int) -> Iterator[Trouble]:
    """Levels of no size, of two sizes, that do not grow, or that the units inside do not fill evenly."""
    domain = None if figures.domain is None else figures.domain.devices
    if domain is not None and max(domain, node) % min(domain, node):
        message = later(
            "{domain:,} devices, and a node has {node:,}: neither divides the other", domain=domain, node=node
        )
        yield _trouble(
            message,
            ("domain", "devices"),
            domain,
            later("a multiple of {node:,}, or a number that divides it", node=node),
        )
    inside = _Unit(later("a node"), node)
    if domain is not None and domain % node == 0:
        inside = _Unit(later("the fast domain"), domain)
    last = len(figures.levels) - 1
    for index, level in enumerate(figures.levels):
        path: Path = ("levels", index)
        if level.nodes is not None and level.devices is not None:
            message = later(
                "{name} has devices {devices:,} and nodes {nodes:,}: each says its size",
                name=level.name,
                devices=level.devices,
                nodes=level.nodes,
            )
            yield _trouble(message, path, allowed=later("one of the two"))
            continue
        size = level_devices(level, node)
        if size is None and index < last:
            message = later(
                "{name} has no size, which makes it the whole cluster, and is not the last of the levels",
                name=level.name,
            )
            yield _trouble(message, path, allowed=later("devices or nodes"))
        if size is None:
            continue
        yield from _around(level, size, inside, path, index == 0)
        inside = _Unit(level.name, size)


def _ends_early(figures: NetworkFigures, total: int, node: int) -> Iterator[Trouble]:
    if figures.levels and (size := level_devices(figures.levels[-1], node)) is not None and size < total:
        last, index = figures.levels[-1], len(figures.levels) - 1
        message = later(
            "{name}, the last of the levels, has {size:,} devices, and the cluster has {total:,}",
            name=last.name,
            size=size,
            total=total,
        )
        yield _trouble(
            message, ("levels", index), allowed=later("a last level without a size, which is the whole cluster")
        )


def _around(level: NetworkLevel, size: int, inside: _Unit, path: Path, first: bool) -> Iterator[Trouble]:
    """Whether a level can stand around the units inside it; the first one may be a part of a node or all of it."""
    fits = size % inside.devices == 0 and (first or size > inside.devices)
    if fits or (first and inside.devices % size == 0):
        return
    where = (*path, "devices" if level.nodes is None else "nodes")
    value = level.devices if level.nodes is None else level.nodes
    inner = later("{words}, which it stands around, has {devices:,}", words=inside.words, devices=inside.devices)
    if size <= inside.devices:
        yield _trouble(
            later("{name} has {size:,} devices and is no larger than {inner}", name=level.name, size=size, inner=inner),
            where,
            value,
        )
    else:
        yield _trouble(
            later(
                "{name} has {size:,} devices, no multiple of what is inside: {inner}",
                name=level.name,
                size=size,
                inner=inner,
            ),
            where,
            value,
        )


def _links(network: Network, chips: Sequence[str]) -> Iterator[Trouble]:
    seen: dict[frozenset[str], int] = {}
    for index, link in enumerate(network.links):
        path: Path = ("links", index)
        for at, name in enumerate(link.between):
            if name not in chips:
                near = nearest_names(name, chips)
                message = later("links a chip that is not one of cluster.chips")
                yield _trouble(message, (*path, "between", at), name, ", ".join(chips), near)
        pair = frozenset(link.between)
        if len(pair) == 1:
            yield _trouble(
                later("joins {chip} with itself", chip=link.between[0]),
                (*path, "between"),
                allowed=later("two chip types"),
            )
        if pair in seen:
            both = " and ".join(link.between)
            yield _trouble(
                later("{both} have a link already, links[{index}]", both=both, index=seen[pair]), (*path, "between")
            )
        seen.setdefault(pair, index)
        if (link.gbit_s is None) == (link.total_gbit_s is None):
            message = later("has both of gbit_s (of each device) and total_gbit_s (of the whole link)")
            if link.gbit_s is None:
                message = later("has neither of gbit_s (of each device) and total_gbit_s (of the whole link)")
            yield _trouble(message, path, allowed=later("one of the two"))


def fields_at(path: Path) -> Mapping[str, Any]:
    """The fields of what stands at a path inside the network's section."""
    if not path:
        return Network.model_fields
    if path == ("domain",):
        return FastDomain.model_fields
    parts: dict[str, type[BaseModel]] = {"levels": NetworkLevel, "links": ChipLink}
    return parts[str(path[0])].model_fields if path[0] in parts and len(path) == 2 else {}
