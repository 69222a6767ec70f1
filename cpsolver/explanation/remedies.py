"""Single changes to a spec, each proven by solving it: those that make a plan possible, and what wishes cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

from cpsolver.explanation.alternatives import layouts_without
from cpsolver.explanation.changes import SHORTEST, Budget, Changer, Remedy, grown, is_better, rank_of
from cpsolver.explanation.closest import states_share
from cpsolver.explanation.wishes import taken, wishes
from cpsolver.inputs.language import say
from cpsolver.problem.problem import Problem
from cpsolver.profiles.default_stack import NAMED, usual_stack
from cpsolver.profiles.switches import DTYPES
from cpsolver.search.result import Plan
from cpsolver.search.space import divisors
from cpsolver.spec.training import MOST
from hw_specs import Chip, Dtype, list_chips, unusable_reasons
from hw_specs.units import GIB

_TIMES = 64  # most by which the cluster grows, or the sequence shrinks
_PRICES_S = 40.0  # for the prices of all wishes
_STEPS = 5  # tries between a cluster that is too small and one that is not
_TRIES = 6  # batches, clusters or chips that are tried, nearest first
Path = tuple[str, ...]
_SEQUENCE: Path = ("training", "sequence_length")
_BATCH: Path = ("training", "global_batch_size")


def remedies(changer: Changer, least_factor: float | None, rules: tuple[str, ...]) -> Iterator[Remedy]:
    """Remedies as they are found.

    Args:
        changer: solves the changed specs.
        least_factor: memory is what is short, by that factor on the closest plan; None: it is not memory.
        rules: rules that together leave no row.
    """
    helped = False
    for kind in (_wishes, _settings):
        for remedy in filter(None, kind(changer)):
            helped = True
            yield remedy
    counted = bool({"batch", "interleaving"} & set(rules))
    kinds: list[Iterable[Remedy | None]] = [_batches(changer) if counted else (), _limits(changer)]
    if least_factor is not None:
        kinds = [_margin(changer, least_factor), _limits(changer), _more_gpus(changer), _shorter(changer)]
        kinds.append(_chips(changer, least_factor))
    elif counted or not helped:
        kinds += [_near_gpus(changer), _nodes(changer)]
    yield from filter(None, chain.from_iterable(kinds))


# What the user wishes


def _wishes(changer: Changer) -> Iterator[Remedy | None]:
    found = wishes(changer.problem)
    helped = False
    for wish in found:
        remedy = changer.remedy({wish.path: None}, say("without {wish}", wish=wish), 0.0)
        if remedy is not None:
            helped = True
            yield replace(
                remedy,
                text=say(
                    "{text} ({name} {taken} instead)",
                    text=remedy.text,
                    name=wish.name,
                    taken=taken(remedy.plan.strategy, wish.name),
                ),
            )
    if len(found) > 1 and not helped:
        none: dict[Path, Any] = {wish.path: None for wish in found}
        yield changer.remedy(
            none, say("without all {found} entries of search.pin and search.forbid", found=len(found)), 0.01
        )


def _settings(changer: Changer) -> Iterator[Remedy | None]:
    for changes, text in settings_freed(changer.problem):
        yield changer.remedy(changes, text, 0.005)


def settings_freed(problem: Problem) -> list[tuple[dict[Path, Any], str]]:
    """Every setting of a spec that narrows the search, freed: the change to the spec, and what to call it."""
    found: list[tuple[dict[Path, Any], str]] = []
    launcher, stack, search = problem.named_launcher, problem.stack, problem.spec.search
    other, comes_along = usual_stack(), stack.runs is not None and problem.stack_why != NAMED
    if launcher is not None and comes_along:  # and goes with it: it is what the framework runs
        text = say("with another launcher than {name} (stack {other})", name=launcher.name, other=other)
        found.append(({("launcher",): None, ("stack",): other}, text))
    elif launcher is not None:
        found.append(({("launcher",): None}, say("with another launcher than {name}", name=launcher.name)))
    if stack.runs is not None and not comes_along:
        found.append(
            ({("stack",): other}, say("with another stack than {name} ({other})", name=stack.name, other=other))
        )
    wider = {"layer_split": (search.layer_split, "auto"), "recompute_scope": (search.recompute_scope, "stage")}
    for name, (now, free) in wider.items():
        if now != free:
            found.append(
                (
                    {("search", name): free},
                    say("with search.{name} {free} instead of {now}", name=name, free=free, now=now),
                )
            )
    return found


# Memory


def _margin(changer: Changer, least_factor: float) -> Iterator[Remedy | None]:
    """The largest margin, in thousandths, that leaves enough."""
    path, margin = ("cluster", "memory_margin"), changer.problem.memory_margin
    if margin <= 0 or (1 - margin) * least_factor > 1.0:
        return
    best, low, high = None, 0, int(margin * 1000)
    while low <= high:
        middle = (low + high) // 2 if best else 0
        text = say(
            "with a memory margin of {middle:g} % instead of {margin:g} %", middle=middle / 10, margin=margin * 100
        )
        remedy = changer.remedy({path: middle / 1000}, text, margin - middle / 1000)
        best = remedy or best
        if best is None:
            return
        low, high = (middle + 1, high) if remedy else (low, middle - 1)
    yield best


def _with_gpus(changer: Changer, num_gpus: int) -> Remedy | None:
    now = changer.problem.num_gpus
    limited = any(request.max is not None for request in changer.problem.spec.cluster.chips.values())
    more = say(" (chip limits raised to match)") if limited and num_gpus > now else ""
    text = say("with {num_gpus:,} GPUs instead of {now:,}{more}", num_gpus=num_gpus, now=now, more=more)
    return changer.remedy(grown(changer.problem, num_gpus), text, abs(num_gpus / now - 1))


def _more_gpus(changer: Changer) -> Iterator[Remedy | None]:
    """Twice as many until it is enough, then as few as a few tries find."""
    now, node = changer.problem.num_gpus, changer.problem.node
    few, many, best = now, 2 * now, None
    while many < now * states_share(changer.problem):
        few, many = many, 2 * many
    while best is None and many <= min(MOST, _TIMES * now):
        best = _with_gpus(changer, many)
        few, many = (few, many) if best else (many, 2 * many)
    for _ in range(_STEPS if best else 0):
        middle = (few + many) // 2 // node * node
        if middle <= few:
            break
        remedy = _with_gpus(changer, middle)
        best = remedy or best
        few, many = (few, middle) if remedy else (middle, many)
    yield best


def _shorter(changer: Changer) -> Iterator[Remedy | None]:
    now = changer.problem.sequence
    if changer.problem.spec.training.lengths is not None:  # which say how long sequences are
        return
    for times in (2**power for power in range(1, _TIMES.bit_length())):
        if now % times == 0 and now // times >= SHORTEST:
            text = say("with sequences of {now:,} tokens instead of {now2:,}", now=now // times, now2=now)
            if remedy := changer.remedy({_SEQUENCE: now // times}, text, times - 1):
                yield remedy
                return


def _chips(changer: Changer, least_factor: float) -> Iterator[Remedy | None]:
    """Other chips with more memory: of the present makers first, the least memory that may do."""
    problem = changer.problem
    present = [supply.chip for supply in problem.supplies]
    most = max(chip.memory_capacity_bytes for chip in present)
    training = problem.spec.training
    dtype = DTYPES[training.precision]
    vendors = {chip.vendor for chip in present}
    larger = [
        chip
        for chip in list_chips()
        if not unusable_reasons(chip, dtype, blocks=training.block_format)
        and chip.memory_capacity_bytes >= max(0.98 * least_factor * most, 1.001 * most)
        and any(_as_fast(chip, other, dtype) for other in present)
    ]
    larger.sort(key=lambda chip: (chip.vendor not in vendors, chip.memory_capacity_bytes, chip.name))
    for chip in larger[:_TRIES]:
        gib = chip.memory_capacity_bytes / GIB
        text = say(
            "with {name} ({gib:.1f} GiB) in place of {present}",
            name=chip.name,
            gib=gib,
            present=", ".join(c.name for c in present),
        )
        size = chip.memory_capacity_bytes / most - 1
        if remedy := changer.remedy({("cluster", "chips"): {chip.name: {}}}, text, size):
            yield remedy
            return


def _as_fast(chip: Chip, other: Chip, dtype: Dtype) -> bool:
    """No slower than the other in any way, so that more memory is not bought with time."""
    return (
        chip.peak_flops(dtype) >= other.peak_flops(dtype)
        and chip.memory_bandwidth_bytes_s >= other.memory_bandwidth_bytes_s
        and chip.scale_up_bandwidth_bytes_s >= other.scale_up_bandwidth_bytes_s
    )


# Degrees and counts


def _limits(changer: Changer) -> Iterator[Remedy | None]:
    """Without the limit of one chip type, else without any."""
    problem = changer.problem
    limited = [name for name, request in problem.spec.cluster.chips.items() if request.max is not None]
    helped = False
    for name in limited:
        now = problem.spec.cluster.chips[name].max or 0
        path = ("cluster", "chips", name, "max")
        remedy = changer.remedy(
            {path: None}, say("with no limit on {name} ({now:,} now)", name=name, now=now), problem.num_gpus / now
        )
        helped = helped or remedy is not None
        yield remedy
    if len(limited) > 1 and not helped:
        none: dict[Path, Any] = {("cluster", "chips", name, "max"): None for name in limited}
        yield changer.remedy(none, say("with no limit on any chip type"), float(len(limited)))


def _batches(changer: Changer) -> Iterator[Remedy | None]:
    """The nearest batches, one smaller and one larger, that a legal layout divides."""
    problem, now = changer.problem, changer.problem.batch
    pin = problem.spec.search.pin
    legal = layouts_without("batch", problem)
    pieces = {
        d * m * (p if v > 1 else 1)
        for d, p in zip(legal.dp.tolist(), legal.pp.tolist(), strict=True)
        for m in pin.mbs or (1,)
        for v in pin.vpp or (1,)
    }
    below = sorted({now // piece * piece for piece in pieces} - {0, now}, reverse=True)
    above = sorted({-(-now // piece) * piece for piece in pieces} - {now})
    for batches in (below, above):
        tried = (_with_batch(changer, batch) for batch in islice(batches, _TRIES) if batch <= MOST)
        yield next((remedy for remedy in tried if remedy), None)


def _with_batch(changer: Changer, batch: int) -> Remedy | None:
    now = changer.problem.batch
    text = say("with a global batch of {batch:,} instead of {now:,}", batch=batch, now=now)
    return changer.remedy({_BATCH: batch}, text, abs(batch / now - 1))


def _near_gpus(changer: Changer) -> Iterator[Remedy | None]:
    """The nearest numbers of whole nodes, and of powers of two, one smaller and one larger."""
    now, node = changer.problem.num_gpus, changer.problem.node
    power = 1 << (now.bit_length() - 1)
    near = {now + step * node for step in range(-_TRIES, _TRIES + 1)} | {power, 2 * power}
    fit = [count for count in near if 0 < count <= MOST and count % node == 0]
    for side in (sorted((n for n in fit if n < now), reverse=True), sorted(n for n in fit if n > now)):
        yield next((remedy for count in side if (remedy := _with_gpus(changer, count))), None)


def _nodes(changer: Changer) -> Iterator[Remedy | None]:
    now, total = changer.problem.node, changer.problem.num_gpus
    sizes = sorted((size for size in divisors(total) if size != now and size <= 8 * now), key=lambda s: abs(s - now))
    for size in sizes[:_TRIES]:
        text = say("with {size} GPUs in a node instead of {now}", size=size, now=now)
        if remedy := changer.remedy({("cluster", "gpus_per_node"): size}, text, abs(size - now) / min(size, now)):
            yield remedy
            return


@dataclass(frozen=True)
class Prices:
    """Wishes that cost something, each with the best plan without it, the dearest first.

    `settled`: all of it is proven, that the other wishes cost nothing too, and there was time for every one.
    `interrupted`: by Ctrl-C, before every one was tried.
    """

    found: tuple[Remedy, ...]
    settled: bool
    interrupted: bool = False


def wish_prices(problem: Problem, best: Plan, seconds: float = _PRICES_S) -> Prices:
    """The single wishes without which a plan exists that is better than `best` in the spec's objective; on Ctrl-C those
    that are known so far.
    """
    budget, interrupted = Budget(seconds), False
    changer = Changer(problem, budget)
    single: list[tuple[dict[Path, Any], str]] = [
        ({wish.path: None}, say("without {wish}", wish=wish)) for wish in wishes(problem)
    ]
    single += settings_freed(problem)
    tried: list[Remedy] = []
    try:
        for changes, text in single:
            tried += filter(None, [changer.remedy(changes, text, 0.0)])
    except KeyboardInterrupt:
        interrupted = True
    own = rank_of(problem, best)
    better = (price for price in tried if is_better(rank_of(problem, price.plan), own))
    found = sorted(better, key=lambda price: rank_of(problem, price.plan))
    in_time = budget.left > 0 and not budget.cut_short and not interrupted
    return Prices(tuple(found), best.proven and in_time and all(price.plan.proven for price in tried), interrupted)
