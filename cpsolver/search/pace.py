"""The time that a search has: how much it works on in one go, and what it looks for first in a short one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from cpsolver.plans.dimensions import DIMENSIONS, MUST_BE_SAID
from cpsolver.problem.problem import Problem
from cpsolver.search.space import all_layouts, divisors

_SHARE = 0.05
"""A step of the search takes no more than this share of the time limit, and `_LEAST_S` besides: so much it may be
late."""
_LEAST_S = 0.1
_LONG_S = 60.0
"""With a time limit of so much steps may be as long as they like: none takes as long as a tenth of that."""
_FIRST = 512
"""Rows or mixes of a first step, of which is not known how long they take."""
_PLAIN = tuple(
    each.name
    for each in DIMENSIONS.values()
    if each.part in ("frame", "variant") and each.name != "ep" and each.default not in (None, MUST_BE_SAID)
)
"""Decisions that a first plan leaves at their defaults."""
_EXCHANGE = tuple(each.name for each in DIMENSIONS.values() if each.group == "exchange")
"""Those of them that some kinds of attention have another default for."""
_LARGE = 2000
"""Layouts times grids of experts, chip types and numbers of devices from which on a first plan is worth a search of its
own."""
_TICK_S = 1e-9


class OutOfTime(Exception):
    """The time is over in the middle of something that is no use as a part."""


class Pace:
    """A clock, and how many rows or mixes a step may work on: as many as will do, as fast as the last ones went.

    Without a time limit, or with a long one, steps are as long as they like: what they do depends on no clock.
    """

    def __init__(self, limit_s: float | None) -> None:
        self._started, self._limit_s = time.monotonic(), limit_s
        self._each_s: dict[str, float] = {}

    @property
    def short(self) -> bool:
        """There is little time."""
        return self._limit_s is not None and self._limit_s < _LONG_S

    @property
    def seconds(self) -> float:
        """Since the search began."""
        return time.monotonic() - self._started

    @property
    def left_s(self) -> float | None:
        """Seconds that are left, below 0 when it is late; None: there is no limit."""
        return None if self._limit_s is None else self._limit_s - self.seconds

    @property
    def late(self) -> bool:
        """The time is over."""
        return self._limit_s is not None and self.seconds > self._limit_s

    def check(self) -> None:
        """Raises OutOfTime where it is late."""
        if self.late:
            raise OutOfTime

    def most(self, work: str, most: int) -> int:
        """How many to work on in one go, `most` of them if there is time."""
        if self._limit_s is None or not self.short:
            return most
        if work not in self._each_s:
            return min(most, _FIRST)
        return max(1, min(most, int((_LEAST_S + _SHARE * self._limit_s) / self._each_s[work])))

    @contextmanager
    def working(self, work: str, count: int) -> Iterator[None]:
        """Measure a step that works on so many of a kind."""
        began = self.seconds
        yield
        self._each_s[work] = max(_TICK_S, self.seconds - began) / max(1, count)


def is_large(problem: Problem, short: bool) -> bool:
    """Whether it takes long to make the space, or to bound the numbers of devices: then, or in a short time sooner, a
    first plan is worth a search of its own. Where the fewest devices are asked for one of all devices is no answer.
    """
    moe, idle = problem.model.moe, problem.may_idle
    if problem.spec.search.objective == "fewest_chips" or not (short or idle):
        return False
    grids = 1 if moe is None else len(divisors(moe.experts))
    numbers = problem.num_gpus // problem.node if idle and short else 1
    return len(all_layouts(problem)) * grids * len(problem.supplies) * numbers > _LARGE


def plain(problem: Problem, limit_s: float | None) -> Problem:
    """The problem of one plan on all devices, with what neither pin nor forbid names and seldom decides whether a plan
    fits left at its default.
    """
    search = problem.spec.search
    attention = problem.model.attention
    free_exchange = attention.indexer or attention.sliding_window
    names = [name for name in _PLAIN if not (free_exchange and name in _EXCHANGE)]
    values = {name: DIMENSIONS[name].default for name in names} | {"mbs": 1, "distributed_optimizer": True}
    given = {name for name in values if getattr(search.pin, name) or getattr(search.forbid, name)}
    free = {name: (value,) for name, value in values.items() if name not in given}
    changes = {"top": 1, "degrees_by_chip": False, "time_limit_s": limit_s, "pin": search.pin.model_copy(update=free)}
    return problem.with_(search=changes, cluster={"idle": False})


def with_time_left(problem: Problem, used_s: float) -> Problem:
    """The problem with what is left of its time limit, if it has one."""
    limit = problem.spec.search.time_limit_s
    return problem if limit is None else problem.with_(search={"time_limit_s": max(_LEAST_S, limit - used_s)})
