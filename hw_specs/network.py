"""What the catalogue knows of networks between accelerators: presets, a YAML file each, with sources.

A network is a tree. Innermost is the fast domain, whose devices share NVLink or its like; around it lie levels, each
of so many devices: a rack, a pod, the whole cluster. What a level says is of traffic between its parts, which are the
units of the level inside it: `oversubscription` of a pod is that of the links which join its racks.
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt

from hw_specs.schema import LEAST_FIGURE, MOST_FIGURE, Confidence

_DATA = Path(__file__).parent / "networks"
MOST_DEVICES = 2**30
"""More than any cluster has."""
Devices = Annotated[StrictInt, Field(ge=1, le=MOST_DEVICES)]
Figure = Annotated[float, Field(strict=True, ge=LEAST_FIGURE, le=MOST_FIGURE)]
"""A bandwidth or a size of memory, as specs say it."""
LONGEST_HOP_US = 1e7
"""Ten seconds: no hop between devices takes so long, and sums of such times stay finite."""
Latency = Annotated[float, Field(strict=True, gt=0, le=LONGEST_HOP_US)]
LatencyOr0 = Annotated[float, Field(strict=True, ge=0, le=LONGEST_HOP_US)]
Share = Annotated[float, Field(strict=True, ge=1e-3, le=1)]
Ratio = Annotated[float, Field(strict=True, ge=1)]


class UnknownNetworkError(KeyError):
    """No network of that name or alias; `nearest` holds the closest names, best first."""

    def __init__(self, name: str, nearest: tuple[str, ...]) -> None:
        super().__init__(name)
        self.name = name
        self.nearest = nearest


class _Figures(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class FastDomain(_Figures):
    """The fast fabric that neighbours share; what is left out is each chip's own."""

    devices: Devices | None = Field(default=None, description="devices that share the fast fabric")
    gb_s: Figure | None = Field(default=None, description="bandwidth of a device in it, one way, in GB/s")
    efficiency: Share | None = Field(default=None, description="share of that bandwidth which collectives reach")
    latency_us: Latency | None = Field(default=None, description="a tiny all-reduce over it, in microseconds")


class NetworkLevel(_Figures):
    """A level of the network around the fast domain: what a device has for traffic between the level's parts.

    Without a size it is the whole cluster. What is left out is as in the level inside.
    """

    name: Annotated[str, Field(min_length=1)] = Field(description="what reports call it: rack, pod")
    devices: Devices | None = Field(default=None, description="its size in devices; null: in nodes, or the cluster")
    nodes: Devices | None = Field(default=None, description="its size in nodes; null: in devices, or the cluster")
    gbit_s: Figure | None = Field(
        default=None, description="bandwidth of a device between its parts, one way, in Gbit/s"
    )
    oversubscription: Ratio | None = Field(
        default=None, description="how many times less a device has between its parts than inside them"
    )
    efficiency: Share | None = Field(default=None, description="share of that bandwidth which traffic reaches")
    latency_us: LatencyOr0 | None = Field(default=None, description="one hop between its parts, in microseconds")
    extra_latency_us: LatencyOr0 | None = Field(
        default=None, description="what one hop between its parts takes more than inside them, in microseconds"
    )


class NetworkFigures(_Figures):
    """What presets and specs say of a network; bandwidths are of one device, one way, as adapters are sold."""

    gbit_s: Figure | None = Field(default=None, description="bandwidth of a device out of its node, in Gbit/s")
    nics_per_node: Devices | None = Field(default=None, description="network adapters of a node; with nic_gbit_s")
    nic_gbit_s: Figure | None = Field(default=None, description="bandwidth of an adapter, in Gbit/s")
    oversubscription: Ratio | None = Field(
        default=None, description="how many times less a device has between nodes than its adapter gives"
    )
    efficiency: Share | None = Field(
        default=None, description="share of the bandwidth that traffic reaches; null: the chip's, as fitted to runs"
    )
    latency_us: Latency | None = Field(default=None, description="one hop between nodes, in microseconds")
    in_network_reduction: StrictBool = Field(
        default=False, description="switches sum what all-reduces send between nodes (SHARP over InfiniBand)"
    )
    domain: FastDomain | None = Field(default=None, description="the fast fabric; null: the chip's own")
    levels: tuple[NetworkLevel, ...] = Field(
        default=(), description="levels around the fast domain, from the inside out; none: one, the cluster"
    )
    allow_slower_inside: StrictBool = Field(
        default=False, description="true: an inner level may be slower than an outer one"
    )


class NetworkPreset(NetworkFigures):
    """A network of the catalogue. `chips`: those that it was built with."""

    name: str = Field(min_length=1)
    aliases: tuple[str, ...] = ()
    about: str = Field(min_length=1)
    chips: tuple[str, ...] = ()
    sources: str = Field(min_length=1)
    confidence: Confidence

    def figures(self) -> dict[str, Any]:
        """What it says of a network, as a spec would write it."""
        return self.model_dump(include=set(NetworkFigures.model_fields), exclude_unset=True)


def network_names() -> tuple[str, ...]:
    """The networks' names, sorted. Reads no file."""
    return tuple(sorted(path.stem for path in _DATA.glob("*.yaml")))


def list_networks() -> list[NetworkPreset]:
    """Every network of the catalogue, sorted by name."""
    return [_load_file(_DATA / f"{name}.yaml") for name in network_names()]


def load_network(name: str) -> NetworkPreset:
    """The network of that name or alias; case does not matter and "_" reads as "-".

    Raises:
        UnknownNetworkError: there is none.
    """
    wanted = name.strip().lower().replace("_", "-")
    if wanted in network_names():
        return _load_file(_DATA / f"{wanted}.yaml")
    owner = {alias: each for each in list_networks() for alias in (each.name, *each.aliases)}
    if wanted not in owner:
        close = get_close_matches(wanted, owner, n=5, cutoff=0.5)
        raise UnknownNetworkError(name, tuple(dict.fromkeys(owner[match].name for match in close))[:3])
    return owner[wanted]


@cache
def _load_file(path: Path) -> NetworkPreset:
    from ruamel.yaml import YAML

    return NetworkPreset.model_validate(YAML(typ="safe").load(path))
