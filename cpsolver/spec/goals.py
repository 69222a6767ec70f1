"""What makes one plan better than another, as a user writes it: objective and deadline, and where they clash."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Annotated, Literal

from pydantic import Field

from cpsolver.inputs.errors import Trouble, dotted, nearest_names, shown
from cpsolver.spec.cluster import Cluster
from cpsolver.spec.training import Number, Part

ObjectiveName = Literal["throughput", "cost", "fewest_chips"]
_DAY_S = 86_400.0


class Deadline(Part):
    """So many tokens in so many days."""

    tokens: Annotated[Number, Field(ge=1)] = Field(description="tokens to train on")
    days: Annotated[Number, Field(gt=0)] = Field(description="days in which that must be done")

    def step_time_s(self, tokens_per_step: int) -> float:
        """The longest step with which the deadline is met."""
        return self.days * _DAY_S / ceil(self.tokens / tokens_per_step)


def price_troubles(cluster: Cluster, objective: ObjectiveName) -> Iterator[Trouble]:
    """Prices of chips that the cluster does not have, and those that the objective needs and are missing."""
    chips, prices = list(cluster.chips), cluster.prices or {}
    for name in prices:
        if name not in chips:
            path = ("cluster", "prices", name)
            message, near = f"{shown(name)} is not one of cluster.chips", nearest_names(name, chips)
            yield Trouble(dotted(path), message, allowed=", ".join(chips), nearest=near, path=path)
    missing = [name for name in chips if name not in prices]
    if objective == "cost" and missing:
        message = f"lacks {', '.join(missing)}: search.objective = 'cost' needs a price for every chip"
        allowed = f"dollars per device-hour, {{{missing[0]}: 2.5}} say"
        yield Trouble("cluster.prices", message, allowed=allowed, path=("cluster", "prices"))


def deadline_troubles(deadline: Deadline | None, objective: ObjectiveName) -> Iterator[Trouble]:
    """A deadline that the objective needs and is missing, or that it does not look at."""
    path = ("search", "deadline")
    if objective == "fewest_chips" and deadline is None:
        message = "is missing: search.objective = 'fewest_chips' looks for the fewest devices that meet it"
        yield Trouble(dotted(path), message, allowed="{tokens: 1.0e+12, days: 30} say", path=path)
    if objective == "throughput" and deadline is not None:
        message = "says nothing to search.objective = 'throughput': the fastest plan is the fastest"
        yield Trouble(dotted(path), message, allowed="objective: fewest_chips or cost, or no deadline", path=path)
