"""Ways through ZB-V, DualPipeV and V-Half: passes of which each waits for the one before. A step takes them all.

They matter where stages differ. The step's bubble (split_backward.py) takes the stages beside the longest one as if
they worked like it, less what they differ in; a way takes of every stage what is its own. Each was read off the events
(split_events.py), which take no less than any of them where both chunks of a stage take as long.

A way is counted in halves of F, B and W of each stage, (pp, 3): a stage runs two passes of each kind a microbatch.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cpsolver.cost.shard import Ints


def zbv_ways(pp: int, microbatches: int) -> Iterator[Ints]:
    """ZB-V, for every stage but the last: it works until its last B of chunk 1, on all but a last few W and B.

    That B goes on to the last stage, which has all its W of the last microbatches left then, and its last B.
    """
    for stage in range(pp - 1):
        way = np.zeros((pp, 3), dtype=np.int64)
        way[:stage] = 1, 0, 0
        way[stage] = _work(microbatches) - (0, pp - stage, pp + max(1, stage))
        way[stage + 1 :] = 0, 1, 0
        way[-1] += 0, 1, 2 * pp - 1
        yield way


def dualpipev_ways(pp: int, microbatches: int) -> Iterator[Ints]:
    """DualPipeV: the last stage works as long as its forwards run beside backwards.

    Before that the first microbatch comes from the first stage, or all of those which that one starts with; after it
    the last B goes back to the first stage, which has its own last passes left. Passes of both ends by stage: of the
    first, of those between, and what the last leaves out of its work.
    """
    late, many = 2 * pp, 2 * pp + 1
    for first, between, left in (
        ((2, pp + 2, pp + 2), (2, 1, 1), (0, late, late)),
        ((many, 4, 3), (1, 4, 1), (many, 2 * (pp - 1), late)),
        ((many, pp + 3, pp + 2), (1, 2, 1), (many, late, late)),
        ((late, 2, 1), (0, 2, 0), (many, 0, pp)),
    ):
        way = np.tile(np.array(between), (pp, 1))
        way[0], way[-1] = first, _work(microbatches) - left
        yield way


def v_half_way(pp: int, microbatches: int) -> Ints:
    """V-Half: the last stage works, and before it the first microbatch passes all stages, those behind a third twice.

    The order of passes repeats with every six stages, and so does what the last one leaves out.
    """
    odd = pp % 2
    way = np.zeros((pp, 3), dtype=np.int64)
    once = (pp if odd else pp + 2) // 3
    way[:once], way[once:] = (1, 1, 0), (2, 2, 0)
    way[0, 2] = 1
    way[-1] = _work(microbatches) - (2 * ((pp + odd) // 6), 0, 2 if odd else 4)
    return way


def _work(microbatches: int) -> Ints:
    """All that a stage works."""
    return np.full(3, 2 * microbatches)
