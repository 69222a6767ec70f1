"""The pipeline as events: Megatron's 1F1B and interleaved 1F1B, in-flight counts, exact makespan.

Words: pp stages s = 0 .. pp-1, each holding vpp chunks c = 0 .. vpp-1; m microbatches. A microbatch's
forward visits chunk 0 of stages 0 .. pp-1, then chunk 1 of stages 0 .. pp-1, and so on; its backward goes the
other way.

Every stage runs the same m*vpp forwards in the same order, and the same backwards: microbatches come in groups
of N (`group`, pp unless given), the last group with what is left, and each group passes chunk 0, then chunk 1,
and so on; backwards take chunk vpp-1 first. Stages differ only in their warm-up W, the number of forwards
before the first backward. After the warm-up, forward W+k is followed by backward k; what is left of the
backwards comes last. vpp = 1 is 1F1B, which knows no groups.

Source: NVIDIA Megatron-LM, megatron/core/pipeline_parallel/schedules.py (get_pp_rank_microbatches,
get_schedule_table, forward_backward_pipelining_with_interleaving and _without_interleaving), where N is
microbatch_group_size_per_vp_stage; core 0.12.1 and main of 2026 agree, tests/cost/data/megatron.yaml has what 0.16.1
does. The warm-up is W = pp-s-1 (1F1B) or 2*(pp-s-1) + (vpp-1)*N (interleaved), at most m*vpp; early releases that
ran everything as warm-up when m == pp are not modelled. This module imports nothing of the planner.

Where the experts' all-to-alls are overlapped, interleaving warms up with one forward more, W+1, and forward W+1+k runs
together with backward k, layer by layer: layer i of the one beside layer n-1-i of the other, which lets go of what it
kept (combined_1f1b.py, model_chunk_schedule_plan.py, at d98e8a6). So no more chunks stand than without, W+1, but while
both are at work a layer more (`runs_beside`). Without a pipeline the next microbatch's forward runs so beside this
one's backward: one microbatch and a layer.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

IntArray: TypeAlias = NDArray[np.int64]
FloatArray: TypeAlias = NDArray[np.float64]
BoolArray: TypeAlias = NDArray[np.bool_]
Durations: TypeAlias = tuple[FloatArray, FloatArray, FloatArray]
MOST_EVENTS = 200_000
"""Passes of a step that is run to see what a plan takes, at most: a tenth of a second."""


@dataclass(frozen=True, eq=False)
class Timeline:
    """When every forward and backward of one training step runs.

    The event arrays have shape (2 * pp * vpp * microbatches,), ordered by stage and, within a stage, by time; half as
    many more where backward is split (split_events.py).

    Attributes:
        stage: pipeline stage of the event.
        kind: "F" (forward), "B" (backward) or, of a split backward pass, "B" and "W".
        microbatch: microbatch of the event, from 0.
        chunk: virtual-pipeline chunk of the stage, from 0.
        start_s: seconds from the start of the step.
        end_s: seconds from the start of the step; start_s plus the chunk's duration.
        makespan_s: seconds until the last event ends.
        idle_s: shape (pp,), makespan_s less the stage's own work: seconds the stage waits (its bubble).
    """

    stage: IntArray
    kind: NDArray[np.str_]
    microbatch: IntArray
    chunk: IntArray
    start_s: FloatArray
    end_s: FloatArray
    makespan_s: float
    idle_s: FloatArray

    @property
    def longest_span_s(self) -> float:
        """The most seconds that a stage takes from its first event to its last."""
        own = [self.stage == stage for stage in range(self.num_stages)]
        return max(float(self.end_s[at].max() - self.start_s[at].min()) for at in own)

    @property
    def num_stages(self) -> int:
        """Pipeline stages (pp)."""
        return len(self.idle_s)


def peak_live_total(pp: int, vpp: int, microbatches: int, group: int | None = None) -> IntArray:
    """The most forward activations, over all chunks, that each stage holds at once, shape (pp,).

    It is min(m * vpp, W + 1) with the stage's warm-up W.

    Raises:
        ValueError: for sizes that the schedule does not run (see `check_sizes`).
    """
    check_sizes(pp, vpp, microbatches, group)
    return np.minimum(microbatches * vpp, warmups(pp, vpp, microbatches, group) + 1)


def runs_beside(live: ArrayLike, all_of_step: ArrayLike) -> BoolArray:
    """Where stages run a forward beside a backward if the experts' all-to-alls are overlapped.

    Args:
        live: what each stage holds at its peak (`peak_live_total`), in chunks or in microbatches.
        all_of_step: the same of a whole step, m * vpp chunks or m microbatches. Stages that hold all of it run every
            forward before the first backward, and nothing beside each other.
    """
    return np.asarray(np.asarray(live) < np.asarray(all_of_step))


def closed_form_s(stage_s: ArrayLike, microbatches: int, vpp: int = 1) -> float:
    """Seconds of one step by the usual formula, (m - 1/vpp) * slowest + sum / vpp.

    Args:
        stage_s: shape (pp,), seconds of forward plus backward of a microbatch through the whole stage.
        microbatches: m, microbatches per pipeline per step.
        vpp: virtual-pipeline size.

    Raises:
        ValueError: stage_s is not a non-empty vector.

    Equal stages and chunks, sending free: exactly the makespan. Otherwise it is an estimate. Observed against
    `simulate` for stage times within 30 % of their mean either way, m >= 2 * pp and pp <= 16 (random cases,
    two-valued ones and a search for the worst; backward / forward = 2 in `same`, free per stage otherwise):
    - 1F1B: never below the makespan (in `same` for any spread of stage times), at most 14 % above, 2 % on
      average. It charges stages behind the slowest in full though they partly hide; worst: a slow stage 0.
    - interleaved, a stage's chunks equal: never below it in `same`, up to 8 % below else; at most 15 % above.
    - interleaved, chunks unequal: the makespan is up to 20 % above it, as it knows only the stage totals. With all
      chunks as long as their stage's longest it bounds as for equal ones, above by what that adds to the slowest.
    Nothing is charged for sending. With equal stages and a link delay d, 1F1B takes 2 * d * (pp - 1) / pp
    longer per microbatch in its steady state; interleaving hides a small d there and pays only while filling.
    """
    times = np.asarray(stage_s, dtype=np.float64)
    if times.ndim != 1 or times.size == 0:
        raise ValueError(f"stage_s must have shape (pp,), got {times.shape}")
    return float((microbatches - 1 / vpp) * times.max() + times.sum() / vpp)


def most_excess(pp: ArrayLike, vpp: ArrayLike, microbatches: ArrayLike) -> FloatArray:
    """The most by which `closed_form_s` is above the makespan with sending free, as a share of it.

    Nothing of the slowest stage's work runs before a chunk's forward has passed the stages before it, or after its
    last backward has to pass them again. So the makespan is at least m * slowest + (sum of the stages before it) / vpp,
    of which the closed form exceeds (stages behind it) / vpp - no more than (pp - 1) * slowest / vpp.
    """
    pp, vpp, microbatches = np.asarray(pp), np.asarray(vpp), np.asarray(microbatches)
    return np.asarray((pp - 1) / (vpp * microbatches))


def detour_s(stage_s: ArrayLike, after_s: ArrayLike) -> FloatArray:
    """By how much 1F1B (vpp 1) of more than pp microbatches is longer than a stage's work on all of them, and what the
    first one's forward and the last one's backward take on the stages before it.

    The first microbatch passes the stages behind and comes back while the stage s runs its W = pp - s - 1 warm-up
    forwards, and so does the last microbatch while the stage has W backwards left. On that way through the schedule,
    from one event to the next that waits for it, nothing is left out but W forwards and W backwards of the stage.

    Args:
        stage_s: shape (.., pp), seconds of forward plus backward of a microbatch through each stage, or less.
        after_s: of the same shape, the same of all stages behind it, or less.

    The sum of all three only grows with these times: less of them bound it from below.
    """
    times, after = np.asarray(stage_s, dtype=np.float64), np.asarray(after_s, dtype=np.float64)
    warmup = np.arange(times.shape[-1] - 1, -1, -1)
    return np.asarray(np.maximum(0.0, 2.0 * after - warmup * times))


def simulate(
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    microbatches: int,
    p2p_s: ArrayLike | None = None,
    group: int | None = None,
    beside: bool = False,
) -> Timeline:
    """Run one step's schedule event by event; the makespan is exact for the given durations.

    A stage runs its events in order, one at a time, each as soon as the stage is free and its input is
    there: a forward waits for the same microbatch's forward one chunk earlier along the model, a backward for
    its backward one chunk later. Sending takes time but occupies neither stage.

    Args:
        forward_s: seconds of one microbatch's forward through each chunk, shape (pp, vpp), or (pp, vpp, m) where
            microbatches differ in size.
        backward_s: of the same shape, the same of its backward (recompute included).
        microbatches: m; for vpp > 1 and group None a multiple of pp.
        p2p_s: shape (pp,) or (pp, m), seconds to send between stage s and s + 1, in either direction; entry pp - 1
            is the link between the last stage and stage 0, used with vpp > 1 only. None: sending takes no time.
        group: N, microbatches that pass a chunk before the next chunk's turn; pp if None. Matters with vpp > 1.
        beside: forwards run beside backwards, as with the experts' all-to-alls overlapped: a forward more before the
            first backward. The two of a pair are told one after the other, and the forward's output leaves when both
            are done.

    Raises:
        ValueError: shapes do not fit, a duration is negative or not finite, or the schedule does not run
            these sizes (see `check_sizes`).
    """
    forward, backward, delay = _checked_durations(forward_s, backward_s, p2p_s, microbatches)
    pp, vpp, _ = forward.shape
    order = order_of(pp, vpp, microbatches, group, beside)
    micro, chunk, at = order.microbatch, order.chunk, order.at
    duration_s = by_position(at, forward[:, chunk, micro], backward[:, vpp - 1 - chunk, micro], np.float64)
    wait_s = order.inputs(delay[:, micro])[1] if delay.any() else None
    end = ends_s(order, wait_s, duration_s)
    # Only what an event waits for tells when it starts, its end being a rounded sum.
    start = np.maximum(end[order.before], end[order.source] + (0.0 if wait_s is None else wait_s))
    end = end[:-1]
    makespan_s = float(end.max())
    return Timeline(
        stage=np.repeat(np.arange(pp), 2 * len(micro)),
        kind=by_position(at, "F", "B", np.dtype("<U1")),
        microbatch=by_position(at, micro, micro, np.int64),
        chunk=by_position(at, chunk, vpp - 1 - chunk, np.int64),
        start_s=start,
        end_s=end,
        makespan_s=makespan_s,
        idle_s=makespan_s - duration_s.reshape(pp, -1).sum(axis=1),
    )


def check_sizes(pp: int, vpp: int, microbatches: int, group: int | None = None) -> None:
    """Refuse sizes that Megatron's schedules do not run.

    Raises:
        ValueError: a size is below 1; vpp > 1 with pp = 1; with vpp > 1, not pp <= group <= microbatches, or a last
            group of fewer than pp: for groups of pp, microbatches that are not a multiple of pp.
    """
    for name, value in (("pp", pp), ("vpp", vpp), ("microbatches", microbatches), ("group", group)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if vpp == 1:
        return
    if pp == 1:
        raise ValueError(f"vpp > 1 needs pp > 1, got vpp {vpp} with pp 1")
    if group in (None, pp):
        if microbatches % pp:
            raise ValueError(f"interleaving needs microbatches to be a multiple of pp, got {microbatches} with pp {pp}")
    elif not pp <= (group or pp) <= microbatches:
        raise ValueError(f"group must be in pp..microbatches = {pp}..{microbatches}, got {group}")
    elif 0 < microbatches % (group or pp) < pp:
        last = microbatches % (group or pp)
        raise ValueError(f"the last group must have no or at least pp = {pp} microbatches, got {last}")


def warmups(pp: int, vpp: int, microbatches: int, group: int | None, beside: bool = False) -> IntArray:
    """Forwards before the first backward, or before the first pair of both where they run beside each other: (pp,)."""
    behind = np.arange(pp - 1, -1, -1, dtype=np.int64)
    wanted = behind if vpp == 1 else 2 * behind + (vpp - 1) * (group or pp)
    return np.minimum(wanted + beside, microbatches * vpp)


def _units(pp: int, vpp: int, microbatches: int, group: int | None) -> tuple[IntArray, IntArray, IntArray]:
    """Microbatch, forward chunk, and size of the microbatch group of unit i, each of shape (m * vpp,)."""
    full = group or pp
    i = np.arange(microbatches * vpp, dtype=np.int64)
    first = i // (full * vpp) * full  # of the unit's group
    size = np.minimum(full, microbatches - first)
    chunk, microbatch = np.divmod(i - first * vpp, size)
    return first + microbatch, chunk, size


def _positions(warmups: IntArray, count: int) -> tuple[IntArray, IntArray]:
    """Where forward i and backward i of m * vpp = `count` stand in each stage's order, two arrays (pp, count)."""
    i, warmup = np.arange(count, dtype=np.int64), warmups[:, None]
    forward_at = np.where(i < warmup, i, 2 * i - warmup)
    backward_at = np.where(i < count - warmup, 2 * i + warmup + 1, i + count)
    return forward_at, backward_at


def by_position(
    at: tuple[IntArray, IntArray], of_forward: ArrayLike, of_backward: ArrayLike, dtype: Any
) -> NDArray[Any]:
    """Values of the forwards and backwards, each broadcast to (pp, m * vpp), in the order of the events."""
    pp, count = at[0].shape
    rows = np.arange(pp)[:, None]
    table = np.empty((pp, 2 * count), dtype=dtype)
    table[rows, at[0]] = of_forward
    table[rows, at[1]] = of_backward
    return table.ravel()


@dataclass(frozen=True)
class Order:
    """What stages run: microbatch, forward chunk and size of the group of every unit, (m * vpp,); where its forward and
    backward stand `at` each stage; which forwards leave with the backward that follows (`paired`, (pp, m * vpp)); and
    all events in an order in which none waits for a later one (`turn`)."""

    microbatch: IntArray
    chunk: IntArray
    size: IntArray
    at: tuple[IntArray, IntArray]
    paired: BoolArray
    turn: IntArray

    @cached_property
    def source(self) -> IntArray:
        """For every event, the event it waits for (-1: none)."""
        return self.inputs(np.zeros(self.at[0].shape))[0]

    @cached_property
    def before(self) -> IntArray:
        """For every event, the one before it on its stage (-1: none)."""
        pp, count = self.at[0].shape
        before = np.arange(-1, 2 * pp * count - 1)
        before[:: 2 * count] = -1
        return before

    @cached_property
    def waits(self) -> tuple[list[int], list[int]]:
        """Of the events in turn those that each waits for: before it on its stage, and the source of its input; they
        are counted in turn from 1 (0: none)."""
        number = np.empty(len(self.turn) + 1, dtype=np.int64)
        number[self.turn], number[-1] = np.arange(1, len(self.turn) + 1), 0
        return number[self.before[self.turn]].tolist(), number[self.source[self.turn]].tolist()

    def inputs(self, delay_s: FloatArray) -> tuple[IntArray, FloatArray]:
        """For every event, the event it waits for (-1: none) and how long that one's output travels."""
        at, chunk = self.at, self.chunk
        pp, count = at[0].shape
        first = np.arange(pp)[:, None] * 2 * count
        before = np.where(chunk > 0, np.arange(count) - self.size, -1)  # the same microbatch, one chunk earlier
        source_f, wait_f = _inputs(at[0] + self.paired + first, delay_s, before)
        # the other way round
        source_b, wait_b = _inputs((at[1] + first)[::-1], np.roll(delay_s[::-1], -1, axis=0), before)
        return (
            by_position(at, source_f, source_b[::-1], np.int64),
            by_position(at, wait_f, wait_b[::-1], np.float64),
        )


@lru_cache(maxsize=8)
def order_of(pp: int, vpp: int, microbatches: int, group: int | None, beside: bool) -> Order:
    """That of a schedule; see `simulate`."""
    check_sizes(pp, vpp, microbatches, group)
    units = np.arange(microbatches * vpp)
    warmup = warmups(pp, vpp, microbatches, group, beside)
    paired = np.asarray(beside & (units >= warmup[:, None]))
    at = _positions(warmup, len(units))
    return Order(*_units(pp, vpp, microbatches, group), at, paired, _turns(at, vpp, group, beside))


def _turns(at: tuple[IntArray, IntArray], vpp: int, group: int | None, beside: bool) -> IntArray:
    """An order in which no event waits for a later one.

    Forward i of stage s comes at s + i, backward k when the first stage's warm-up is over, at -s + k; with one chunk,
    where warm-ups differ by one from stage to stage, at half of s. All that an event waits for comes before it.
    """
    pp, count = at[0].shape
    unit, stage = np.arange(count), np.arange(pp)[:, None] * (2 if vpp == 1 else 4)
    warmup = pp - 1 if vpp == 1 else 2 * (pp - 1) + (vpp - 1) * (group or pp)
    backward = 4 * (warmup + beside + unit) + 1 - stage
    return np.argsort(by_position(at, stage + 4 * unit, backward, np.int64), kind="stable")


def _inputs(at: IntArray, delay_s: FloatArray, before: IntArray) -> tuple[IntArray, FloatArray]:
    """The event that each unit waits for (-1: none) and how long its output travels, both of shape at.shape.

    `at` holds event numbers by stage in the order of travel; delay_s[s] is each unit's link from that stage to the
    next, the last entry the link from the last back to the first; `before` is each unit's predecessor there.
    """
    source = np.empty_like(at)
    wait = np.zeros(at.shape)
    source[1:] = at[:-1]
    wait[1:] = delay_s[:-1]
    source[0] = np.where(before >= 0, at[-1, before], -1)
    wait[0] = np.where(before >= 0, delay_s[-1], 0.0)
    return source, wait


def ends_s(order: Order, wait_s: FloatArray | None, duration_s: FloatArray) -> FloatArray:
    """End of every event, and 0 for none; each stage runs its events in order, waiting for their inputs, which travel
    for `wait_s` (None: for no time)."""
    before, source = order.waits
    seconds, ends = duration_s[order.turn].tolist(), [0.0]
    if wait_s is None:
        for previous, needed, own in zip(before, source, seconds, strict=True):
            free, there = ends[previous], ends[needed]
            ends.append((free if free > there else there) + own)
    else:
        for previous, needed, wait, own in zip(before, source, wait_s[order.turn].tolist(), seconds, strict=True):
            free, there = ends[previous], ends[needed] + wait
            ends.append((free if free > there else there) + own)
    found = np.zeros(len(ends))
    found[order.turn] = ends[1:]
    return found


def _checked_durations(forward_s: ArrayLike, backward_s: ArrayLike, p2p_s: ArrayLike | None, m: int) -> Durations:
    """The durations by microbatch: shapes (pp, vpp, m) and (pp, m)."""
    forward, backward = np.asarray(forward_s, dtype=np.float64), np.asarray(backward_s, dtype=np.float64)
    if forward.ndim < 2 or forward.shape[2:] not in ((), (m,)) or not forward.size or forward.shape != backward.shape:
        both = f"{forward.shape} and {backward.shape}"
        raise ValueError(f"forward_s and backward_s must both have shape (pp, vpp) or (pp, vpp, {m}), got {both}")
    delay = np.zeros(len(forward)) if p2p_s is None else np.asarray(p2p_s, dtype=np.float64)
    if delay.shape not in ((len(forward),), (len(forward), m)):
        raise ValueError(f"p2p_s must have shape ({len(forward)},), got {delay.shape}")
    for name, values in (("forward_s", forward), ("backward_s", backward), ("p2p_s", delay)):
        if not np.all(np.isfinite(values) & (values >= 0)):
            raise ValueError(f"{name} must be finite and not negative")
    to, wide = np.broadcast_to, (max(m, 1), *forward.T.shape[-2:])
    return to(forward.T, wide).T, to(backward.T, wide).T, to(delay.T, wide[::2]).T


def run_steps(forward_s: FloatArray, backward_s: FloatArray) -> tuple[FloatArray, BoolArray]:
    """Many steps of 1F1B at once, of equal pp and microbatches that may differ in size, sending free.

    Their seconds, (n,), and the passes that make each as long as it is, (n, 2, pp, microbatches), forwards first: those
    before the last one to end, each of which another had to wait for.

    Args:
        forward_s: seconds of every microbatch's forward on every stage, (n, pp, microbatches).
        backward_s: the same of its backward.
    """
    count, pp, microbatches = forward_s.shape
    both = np.concatenate([forward_s.reshape(count, -1), backward_s.reshape(count, -1)], axis=1)
    seconds, (before, source, own) = np.ascontiguousarray(both.T), _steps_in_turn(pp, microbatches)
    ends = np.zeros((1 + len(seconds), count))
    for event, (first, second, place) in enumerate(zip(*map(np.ndarray.tolist, (before, source, own)), strict=True), 1):
        np.maximum(ends[first], ends[second], out=ends[event])
        ends[event] += seconds[place]
    last = ends.argmax(axis=0)
    chain, at, now = np.zeros(both.shape, dtype=np.bool_), np.arange(count), last
    while len(at):
        chain[at, own[now - 1]] = True
        first, second = before[now - 1], source[now - 1]
        now = np.where(ends[first, at] >= ends[second, at], first, second)
        at, now = at[now > 0], now[now > 0]
    return ends[last, np.arange(count)], chain.reshape(count, 2, pp, microbatches)


@lru_cache(maxsize=8)
def _steps_in_turn(pp: int, microbatches: int) -> tuple[IntArray, IntArray, IntArray]:
    """Of the passes in an order in which none waits for a later one: the two that each waits for, counted from 1 (0:
    none), and its place among all forwards, then all backwards, by stage and microbatch."""
    order = order_of(pp, 1, microbatches, None, False)
    place = np.arange(pp)[:, None] * microbatches + order.microbatch
    own = by_position(order.at, place, pp * microbatches + place, np.int64)[order.turn]
    return np.array(order.waits[0]), np.array(order.waits[1]), np.asarray(own)
