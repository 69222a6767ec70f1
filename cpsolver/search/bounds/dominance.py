"""Sharding groups that need no bound: a larger group is no slower in anything, and needs no more memory.

Which replicas share states out changes no layer's compute. It changes memory, where more shards never need more: a
larger group fits wherever a smaller one does, with the same layers and recomputation. And it changes what is gathered
and scattered for every microbatch, what replicas communicate once a step, and the optimizer's step, all of which are
coefficients of `TimeTable`: a stage of n layers pays n times what each layer takes, what the stage takes, and on the
first and the last stage what these take besides. Where no sum of these is smaller for any n from 1 with the smaller
group, on any chip type, no plan with it is faster than the same plan with the larger one. What may not be sharded over
the larger group (a rule, a launcher, a pin or a ban) is not in the space, and dominates nothing; a rule that looks at a
whole plan may ask more of groups than of all replicas, never less, and asks the same of all groups.
"""

from __future__ import annotations

import numpy as np

from cpsolver.cost.shard import Bools, Candidates, Floats, Ints
from cpsolver.cost.tables import TimeTable
from cpsolver.search.space import first_of_groups


def undominated(rows: Candidates, time: TimeTable) -> tuple[Ints, Ints]:
    """The rows whose sharding groups may be best, by their places, and how many each stands for if it does not fit.

    Rows that differ in nothing else stand together, the largest group first: it has the least states, and counts for
    all that are left out beside it. `time`: seconds by chip type and row.
    """
    begins = first_of_groups(rows, rows.tp)
    run = np.cumsum(begins) - 1
    keep = ~_dominated(time, run)
    stands_for = np.ones(len(rows), dtype=np.int64)
    stands_for[begins] += np.bincount(run[~keep], minlength=int(begins.sum()))
    return np.flatnonzero(keep), stands_for[keep]


def _dominated(time: TimeTable, run: Ints) -> Bools:
    """Rows that another of the same `run` dominates."""
    dominated, longest = np.zeros(len(run), dtype=np.bool_), int(np.bincount(run).max(initial=0))
    if longest < 2:
        return dominated
    parts = [part for of_all in _parts(time) for part in of_all]
    for apart in range(1, longest):
        small = np.nonzero((run[apart:] == run[:-apart]) & ~dominated[apart:])[0] + apart
        for part in parts:
            small = small[part[small] >= part[small - apart]]
        dominated[small] = True
    return dominated


def _parts(time: TimeTable) -> list[Floats]:
    """Seconds none of which may be less with the smaller group, by chip type and row. Of one layer more, and of a stage
    with one layer: from these follow those of any number."""
    layer = time.sync_layer + time.update_layer
    each_microbatch = (time.gather, time.scatter, time.gather_ends, time.scatter_ends)
    return [
        layer,
        layer + time.sync_stage + time.update_stage,
        time.sync_first + time.update_first,
        time.sync_last + time.update_last,
        *(column for column in each_microbatch if column.any()),
    ]
