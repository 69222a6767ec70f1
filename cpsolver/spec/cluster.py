"""The devices that a spec asks for: how many, of which types, at what price."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    StrictBool,
    StrictInt,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from cpsolver.inputs.errors import Path, Trouble, dotted, nearest_names, shown
from cpsolver.inputs.language import later
from cpsolver.spec.network import Network, one_name
from cpsolver.spec.training import MOST, Count, Name, Number, Part
from hw_specs.network import Figure
from hw_specs.schema import LEAST_FIGURE, MOST_FIGURE

NO_LIMIT = -1
"""In a spec: this chip has no limit of its own (the cluster's size is the limit)."""


def wrong(text: str, allowed: str | None = None) -> PydanticCustomError:
    """An error for a validator to raise, in its own words; `allowed` says what would be right."""
    return PydanticCustomError("rule", "{text}", {"text": text, "allowed": allowed})


def _limit(value: Any) -> Any:
    if value == NO_LIMIT and type(value) is int:
        return None
    if type(value) is int and not 1 <= value <= MOST:
        raise wrong(
            later("must be at least 1 and at most {most:,}", most=MOST), later("-1 for no limit, or leave the chip out")
        )
    return value


def _requests(value: Any) -> Any:
    """Every short form of `chips` as a mapping name -> mapping."""
    if isinstance(value, str):
        value = [value]
    if isinstance(value, (list, tuple)):
        odd = [item for item in value if not isinstance(item, str)]
        if odd:
            raise wrong("must list chip names as text (quote a name that looks like a number)")
        if len(set(value)) < len(value):
            raise wrong("names a chip twice")
        return {name: {} for name in value}
    if not isinstance(value, Mapping):
        raise wrong("must be a mapping name -> number, a list of names or one name")
    return {key: item if isinstance(item, Mapping) else {"max": item} for key, item in value.items()}


_LIMIT_SCHEMA: dict[str, Any] = {
    "anyOf": [{"type": "integer", "minimum": 1, "maximum": MOST}, {"const": NO_LIMIT}, {"type": "null"}]
}
_FIGURE: dict[str, Any] = {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "null"}]}
_CHANGES: dict[str, str] = {
    "network_gbit_s": "bandwidth of a device out of its node, one way, in Gbit/s, in place of the catalogue's",
    "memory_gib": "memory of a device that a framework sees, in GiB, in place of the catalogue's",
    "memory_gb_s": "bandwidth of the device's memory, in GB/s, in place of the catalogue's",
    "nvlink": "one-way bandwidth of a device in the fast fabric, in GB/s, in place of the catalogue's; none: PCIe only",
}
_CHIP_SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        **{name: {**_FIGURE, "description": about} for name, about in _CHANGES.items()},
        "nvlink": {"anyOf": [{"const": "none"}, *_FIGURE["anyOf"]], "description": _CHANGES["nvlink"]},
        "max": {**_LIMIT_SCHEMA, "description": "at most this many devices; -1 or null: no limit of its own"},
        "spec": {"type": ["object", "null"], "description": "the chip's fields, written here"},
        "file": {"type": ["string", "null"], "description": "a file with the chip's fields"},
    },
}
_CHIPS_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1, "uniqueItems": True},
        {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": {"anyOf": [*_LIMIT_SCHEMA["anyOf"], _CHIP_SCHEMA]},
        },
    ]
}


_PRICE_SCHEMA: dict[str, Any] = {"type": "number", "exclusiveMinimum": 0}
_PRICES_SCHEMA: dict[str, Any] = {
    "anyOf": [_PRICE_SCHEMA, {"type": "object", "additionalProperties": _PRICE_SCHEMA}, {"type": "null"}]
}


def _link(value: Any) -> Any:
    figure = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None or value == "none" or (figure and LEAST_FIGURE <= value <= MOST_FIGURE):
        return value
    raise wrong(
        "must be none or a bandwidth",
        later(
            "none (PCIe only), or {least:g} to {most:g} GB/s of a device, one way", least=LEAST_FIGURE, most=MOST_FIGURE
        ),
    )


class ChipRequest(Part):
    """How many devices of a chip type there are, and where its fields stand if not in the catalogue.

    The last four stand in place of what the catalogue says of the chip.
    """

    max: Annotated[StrictInt | None, BeforeValidator(_limit)] = Field(
        default=None, description="at most this many devices; None: no limit of its own"
    )
    spec: dict[str, Any] | None = Field(default=None, description="the chip's fields, written in the spec")
    file: Name | None = Field(default=None, description="a file with the chip's fields")
    network_gbit_s: Figure | None = Field(default=None, description=_CHANGES["network_gbit_s"])
    memory_gib: Figure | None = Field(default=None, description=_CHANGES["memory_gib"])
    memory_gb_s: Figure | None = Field(default=None, description=_CHANGES["memory_gb_s"])
    nvlink: Annotated[Literal["none"] | Figure | None, BeforeValidator(_link)] = Field(
        default=None, description=_CHANGES["nvlink"]
    )

    @property
    def changes(self) -> dict[str, Any]:
        """What stands in place of the catalogue's figures, by field."""
        return {name: getattr(self, name) for name in _CHANGES if getattr(self, name) is not None}

    @model_validator(mode="after")
    def _one_source(self) -> ChipRequest:
        if self.spec is not None and self.file is not None:
            raise wrong("has both spec and file: give one of them")
        own = "spec" if self.spec is not None else "file"
        if self.changes and (self.spec, self.file) != (None, None):
            raise wrong(
                later(
                    "changes a chip of the catalogue ({changes}) and has its own fields in {own}",
                    changes=", ".join(self.changes),
                    own=own,
                )
            )
        return self


class Cluster(Part):
    """The devices: how many, how many in a node, of which types."""

    num_gpus: Count = Field(
        description="devices that the training uses, all of them unless `idle`; a multiple of gpus_per_node"
    )
    gpus_per_node: Count = Field(default=8, description="devices in a node")
    chips: Annotated[
        dict[Name, ChipRequest], BeforeValidator(_requests), WithJsonSchema(_CHIPS_SCHEMA), Field(min_length=1)
    ] = Field(description="chip types: name -> most devices (-1: no limit); or a list of names; or one name")
    memory_margin: Number | None = Field(
        default=None,
        ge=0,
        le=0.5,
        description="share of each device's memory that the plan must leave free; null: the stack's own",
    )
    idle: StrictBool = Field(default=False, description="a plan may leave whole nodes idle")
    network: Annotated[Network | None, BeforeValidator(one_name)] = Field(
        default=None,
        description="the network between devices: a preset (`apss-cp networks`), or its figures; null: each chip's own",
    )
    prices: Annotated[dict[Name, Annotated[Number, Field(gt=0)]] | None, WithJsonSchema(_PRICES_SCHEMA)] = Field(
        default=None, description="dollars per device-hour: one number, or chip name -> number; null: not known"
    )

    @field_validator("prices", mode="before")
    @classmethod
    def _one_price(cls, value: Any, info: ValidationInfo) -> Any:
        """One number is the price of every chip of the cluster."""
        if value is None or isinstance(value, Mapping):
            return value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong("must be a number for all chips, or a mapping name -> number")
        if not (value > 0 and math.isfinite(value)):
            raise wrong("must be more than 0")
        return dict.fromkeys(info.data.get("chips", ()), value)


def not_a_chip(path: Path, name: str, chips: list[str]) -> Trouble:
    """A name at a path of the spec that is not one of the cluster's chips."""
    message, nearest = later("{name} is not one of cluster.chips", name=shown(name)), nearest_names(name, chips)
    return Trouble(dotted(path), message, allowed=", ".join(chips), nearest=nearest, path=path)


def price_troubles(cluster: Cluster, objective: str) -> Iterator[Trouble]:
    """Prices of chips that the cluster does not have, and those that the objective needs and are missing."""
    chips, prices = list(cluster.chips), cluster.prices or {}
    for name in prices:
        if name not in chips:
            yield not_a_chip(("cluster", "prices", name), name, chips)
    missing = [name for name in chips if name not in prices]
    if objective == "cost" and missing:
        message = later(
            "lacks {missing}: search.objective = 'cost' needs a price for every chip", missing=", ".join(missing)
        )
        allowed = later("dollars per device-hour, {{{chip}: 2.5}} say", chip=missing[0])
        yield Trouble("cluster.prices", message, allowed=allowed, path=("cluster", "prices"))
