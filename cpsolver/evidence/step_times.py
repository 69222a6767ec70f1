"""The distribution of a plan's step time, the one that every day, dollar and chance in a report comes from.

A split log-normal: the logarithm of the time is normal on either side of its median, with a standard deviation below
it and another above. Median and both ends of the 80 % interval decide it, so the interval's ends are its 10 % and 90 %
quantiles. The median is the predicted step time, or where the user's own runs were learnt from the middle of the
interval: a plan whose prediction just meets a deadline meets it with even odds. The mean lies above the median where
the interval reaches further up than down, and below it where it reaches further down.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from statistics import NormalDist

from cpsolver.evidence.intervals import WITHIN_80

_NORMAL = NormalDist()


@dataclass(frozen=True)
class StepTimes:
    """How long a step may take: its median in seconds, and the standard deviations of its logarithm on either side."""

    median_s: float
    below: float
    above: float

    @classmethod
    def through(cls, low_s: float, median_s: float, high_s: float) -> StepTimes:
        """That of these 10 %, 50 % and 90 % quantiles; a median outside the other two is moved to the nearer one."""
        median_s = min(max(median_s, low_s), high_s)
        return cls(median_s, log(median_s / low_s) / WITHIN_80, log(high_s / median_s) / WITHIN_80)

    @property
    def mean_s(self) -> float:
        """The expected step time: each half's mean, half a log-normal's."""
        lower = exp(self.below**2 / 2) * _NORMAL.cdf(-self.below)
        upper = exp(self.above**2 / 2) * _NORMAL.cdf(self.above)
        return self.median_s * (lower + upper)

    def quantile(self, share: float) -> float:
        """The seconds that a step stays within with that probability, between 0 and 1."""
        deviations = _NORMAL.inv_cdf(share)
        return self.median_s * exp((self.below if deviations < 0 else self.above) * deviations)

    def within(self, limit_s: float) -> float:
        """The probability that a step takes no longer than that."""
        ratio = log(limit_s / self.median_s)
        spread = self.below if ratio < 0 else self.above
        if spread == 0:
            return 0.0 if ratio < 0 else 1.0 if ratio > 0 else _NORMAL.cdf(0.0)
        return _NORMAL.cdf(ratio / spread)
