"""A small calibration with round numbers, for tests of what is shown of one."""

from __future__ import annotations

from cpsolver.evidence.intervals import EVERY, UNSEEN
from cpsolver.profiles.constants import ALL, Calibration, Fitted, Residuals


def entry(value: float, rows: int, error: float = 0.1, start: float = 1.0) -> Fitted:
    """A fitted number."""
    return Fitted(value=value, start=start, error=error, rows=rows)


FITTED = Calibration(
    name="test",
    method="made up",
    chips={ALL: {"gemm": entry(0.5, 90), "memory": entry(0.8, 80)}, "ampere": {"gemm": entry(1.2, 40)}},
    stacks={
        ALL: {"elementwise_traffic": entry(1.5, 70), "sharding_overlap": entry(0.75, 20, error=0.4)},
        "megatron-core": {"elementwise_traffic": entry(2.0, 30), "allocator_overhead": entry(0.25, 12, error=0.0)},
    },
    residuals={
        EVERY: Residuals(rows=123, low=-0.15, high=0.15),
        UNSEEN["dense"]: Residuals(rows=100, low=-0.2, high=0.3),
        UNSEEN["experts"]: Residuals(rows=40, low=-0.3, high=0.4),
        "megatron-core/ampere": Residuals(rows=30, low=-0.1, high=0.1),
        "megatron-core/ampere/dense": Residuals(rows=25, low=-0.08, high=0.08),
        "megatron-core/ampere/dense/one node": Residuals(rows=12, low=-0.05, high=0.05),
        "nemo/hopper": Residuals(rows=40, low=-0.1, high=0.1),
    },
)
