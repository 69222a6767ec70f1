"""Brute force: every strategy of a tiny problem, judged by rules and cost model; knows nothing of the solver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from itertools import islice, permutations, product
from math import prod
from typing import Any

from cpsolver.cost.modules import module_sets
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.plans.strategy import SEARCHED_SCHEDULES, SHARDED, V_SHAPED, Mesh, StageGroup, Strategy
from cpsolver.problem.problem import Problem
from cpsolver.rules import RULES
from cpsolver.rules.base import Rule
from cpsolver.spec.search import forbidden_for, pinned_for

FLAGS_OF_A_MESH = ("sequence_parallel", "distributed_optimizer", "flash_attention")
SPLIT_RULES = ("layers", "layer_split", "recompute", "memory", "pin")  # these look at layers and recomputation


@cache
def _asked_first(leave_out: tuple[str, ...]) -> list[Rule]:
    """The rules, the one that refused last at the front: plans come in long runs that the same rule refuses."""
    return [rule for name, rule in RULES.items() if name not in leave_out]


def legal(problem: Problem, s: Strategy, leave_out: tuple[str, ...] = ()) -> bool:
    rules = _asked_first(leave_out)
    for at, rule in enumerate(rules):
        for _ in rule(problem, s):
            rules.insert(0, rules.pop(at))
            return False
    return True


def compositions(total: int, parts: int) -> list[tuple[int, ...]]:
    return [way for way in product(range(1, total + 1), repeat=parts) if sum(way) == total]


def wanted(problem: Problem, **choices: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Every combination of one value of each choice, without those that are pinned away or forbidden."""
    pin, forbid, left = problem.spec.search.pin, problem.spec.search.forbid, []
    for name, values in choices.items():
        pinned, banned = getattr(pin, name), getattr(forbid, name) or ()
        left.append([v for v in values if (pinned is None or v in pinned) and v not in banned])
    return (dict(zip(choices, picked, strict=True)) for picked in product(*left))


def rows(problem: Problem) -> Iterator[Strategy]:
    gpus, batch, layers = problem.num_gpus, problem.batch, problem.model.layers
    sizes, flag, chip = range(1, gpus + 1), (False, True), problem.chip_names[0]
    for d in wanted(problem, tp=sizes, cp=sizes, pp=range(1, layers + 1), dp=sizes):
        if prod(d.values()) != gpus or batch % d["dp"] != 0:
            continue
        flags: dict[str, Iterable[Any]] = {
            "sequence_parallel": flag,
            "distributed_optimizer": flag,
            "flash_attention": flag,
            "ulysses": range(1, d["cp"] + 1),
            "cp_gather": flag,
            "ep": range(1, problem.model.moe.experts + 1 if problem.model.moe else 2),
            "etp": range(1, d["tp"] + 1 if problem.model.moe else 2),
            "expert_overlap": overlaps(problem),
            "sharded": SHARDED,
            "sharding_group": range(d["dp"] * d["cp"]),
        }
        depths: dict[str, Iterable[Any]] = {
            "mbs": range(1, batch // d["dp"] + 1),
            "vpp": range(1, max(2, (layers + 2) // d["pp"]) + 1),
            "schedule": problem.spec.search.schedules or schedules(problem),
        }
        for depth in wanted(problem, **depths):
            ways, groups = slots(problem, depth, d["pp"]), (StageGroup(chip, (depth["vpp"],) * d["pp"]),)
            for more in wanted(problem, **flags) if ways else ():
                plain = Strategy(**d, **depth, **more, groups=groups)
                if legal(problem, plain, (*SPLIT_RULES, "chip_count")):
                    for chips, way in product(chips_by_stage(problem, plain), ways):
                        yield short_of(replace(plain, groups=chips), way)


def schedules(problem: Problem) -> tuple[str, ...]:
    """Those that are searched, as far as a launcher or the stack has them; rules refuse what does not suit them.
    Breadth-first is asked for, or left out."""
    asked = problem.spec.search.pin.schedule or ()
    has = problem.launcher is not None or problem.stack.name in ("zero-bubble", "deepseek", "primus")
    known = [name for name in SEARCHED_SCHEDULES if name != "breadth_first" or name in asked]
    return tuple(known) if has or asked else ("1f1b",)


def overlaps(problem: Problem) -> tuple[bool, ...]:
    """With a stack that hides nothing the overlap only forbids: left out unless it is asked for."""
    asked = problem.spec.search.pin.expert_overlap or ()
    return (False, True) if problem.model.moe and (problem.stack.routing_overlap > 0 or True in asked) else (False,)


def slots(problem: Problem, depth: dict[str, Any], pp: int) -> list[tuple[int, int]]:
    """Layers in whose places the embedding, and the head, may stand: what makes all chunks equally long. Each is in a
    chunk of its own, of stages that have a place at least in every chunk. Of a V it is the head alone; DualPipe's last
    stage may have a few layers less than the first."""
    vpp, layers = depth["vpp"], problem.model.layers
    if depth["schedule"] == "dualpipe":
        short = range(layers % 2, 2 * problem.model.mtp_layers + 2, 2)
        return [(0, each) for each in short if vpp == 1 and pp % 2 == 0 and layers + each >= pp + 2 * each]
    if depth["schedule"] in V_SHAPED:
        return [(0, layers % 2)] if vpp == 2 and layers + layers % 2 >= 2 * pp else []
    ways = product((0, 1), range(vpp)) if vpp > 1 else [(0, 0)]
    chunks = [(way, (layers + sum(way)) // vpp) for way in ways if (layers + sum(way)) % vpp == 0]
    return [way for way, places in chunks if places - (pp - 1) >= max(1, way[1])]


def short_of(s: Strategy, slots: tuple[int, int]) -> Strategy:
    """With the embedding, or the head, in the place of layers: of as many as the last chunk has, if it has fewer."""
    if slots == (0, 0) or s.both_ways:
        return s
    if s.v_shaped:
        first, *inner = s.groups
        layers = (max(first.layers[0], 2) - slots[1], *first.layers[1:])
        return replace(s, groups=(replace(first, layers=layers), *inner))
    first, *inner = s.groups
    groups = [replace(first, layers=(first.layers[0] - slots[0], *first.layers[1:])), *inner]
    last = max(groups[-1].layers[-1], s.vpp * slots[1]) - slots[1]
    groups[-1] = replace(groups[-1], layers=(*groups[-1].layers[:-1], last))
    return replace(s, groups=tuple(groups))


def chips_by_stage(problem: Problem, s: Strategy) -> Iterator[tuple[StageGroup, ...]]:
    for used in range(1, min(s.pp, len(problem.supplies)) + 1):
        for order, counts in product(permutations(problem.chip_names, used), compositions(s.pp, used)):
            yield tuple(StageGroup(chip, (s.vpp,) * count) for chip, count in zip(order, counts, strict=True))


def splits(problem: Problem, row: Strategy) -> Iterator[Strategy]:
    """Every split of a row's layers, with every recomputation that is not pinned away."""
    search, chips, layers = problem.spec.search, row.stage_chips, problem.model.layers
    if row.both_ways:
        yield from splits_both_ways(problem, row)
        return
    most = (layers + sum(row.slots)) // row.vpp - row.pp + 1
    sizes = {*range(1, most + 1), *(pinned_for(search.pin.recompute_num_layers, chips[0]) or ())} - {0}
    options: list[tuple[Any, ...]] = [("none", 0, ()), *(("selective", 0, names) for names in module_sets(problem))]
    options += product(("block", "uniform"), sorted(sizes), ((),))
    keys = list(range(row.pp)) if search.recompute_scope == "stage" else [chips.index(chip) for chip in chips]
    left = {key: [o for o in options if may_recompute(problem, chips[key], *o)] for key in keys}
    ways = [way for way in compositions((layers + sum(row.slots)) // row.vpp, row.pp) if way[-1] >= row.slots[1]]
    for split, chosen in product(ways, product(*left.values())):
        told = dict(zip(left, chosen, strict=True))
        meshes = row.stage_meshes if row.unequal else [None] * row.pp
        stages = zip(chips, split, (told[key] for key in keys), meshes, strict=True)
        groups = tuple(StageGroup(c, (row.vpp * n,), k, (a,), m, mesh) for c, n, (k, a, m), mesh in stages)
        yield short_of(replace(row, groups=groups).canonical(), row.slots)


def splits_both_ways(problem: Problem, row: Strategy) -> Iterator[Strategy]:
    """The same of DualPipe's: every split, of which rules refuse those whose pairs of stages are not alike."""
    search, chip, pp = problem.spec.search, row.stage_chips[0], row.pp
    sizes = {*range(1, problem.model.layers - pp + 2), *(pinned_for(search.pin.recompute_num_layers, chip) or ())} - {0}
    options: list[tuple[Any, ...]] = [("none", 0, ()), *(("selective", 0, names) for names in module_sets(problem))]
    options += product(("block", "uniform"), sorted(sizes), ((),))
    left = [o for o in options if may_recompute(problem, chip, *o)]
    half = pp // 2 if search.recompute_scope == "stage" else 1
    for split in compositions(problem.model.layers, pp):
        alike = all(one == other for one, other in zip(split[1:-1], split[-2:0:-1], strict=True))
        if not alike or split[0] < split[-1]:  # what is no plan at all has no memory either
            continue
        for chosen in product(left, repeat=half):
            told = [*chosen, *chosen[::-1]] if half > 1 else [*chosen] * pp
            groups = tuple(StageGroup(chip, (n,), k, (a,), m) for n, (k, a, m) in zip(split, told, strict=True))
            yield replace(row, groups=groups)


def may_recompute(problem: Problem, chip: str, kind: str, _amount: int, modules: tuple[str, ...]) -> bool:
    pin, forbid = problem.spec.search.pin, problem.spec.search.forbid
    wanted, sets = pinned_for(pin.recompute, chip), pinned_for(pin.recompute_modules, chip)
    banned = modules in forbidden_for(forbid.recompute_modules, chip)
    return not banned and (wanted is None or kind in wanted) and (sets is None or modules in sets)


def mesh_rows(problem: Problem) -> Iterator[Strategy]:
    """Rows whose chip types have degrees of their own: every order of some types, with a mesh of each."""
    batch, flag = problem.batch, (False, True)
    for used in range(2, len(problem.supplies) + 1):
        for order, together in product(permutations(problem.supplies, used), range(1, batch + 1)):
            choices = [list(meshes_on(problem, supply.limit, together)) for supply in order]
            for picked in product(*choices) if batch % together == 0 else ():
                devices = sum(mesh.stage_devices * count for mesh, count in picked)
                pp, first, cp = sum(count for _, count in picked), picked[0][0], max(mesh.cp for mesh, _ in picked)
                if devices != problem.num_gpus or len({mesh for mesh, _ in picked}) == 1 or pp > problem.model.layers:
                    continue
                groups = tuple(
                    StageGroup(supply.name, (1,) * count, mesh=mesh)
                    for supply, (mesh, count) in zip(order, picked, strict=True)
                )
                flags: dict[str, Iterable[Any]] = {
                    "sequence_parallel": flag,
                    "distributed_optimizer": flag,
                    "flash_attention": flag,
                    "ulysses": range(1, cp + 1),
                    "cp_gather": flag,
                }
                for more in wanted(problem, **flags):
                    sizes: dict[str, Any] = {**vars(first), "pp": pp, "mbs": together // first.dp, "vpp": 1}
                    plain = Strategy(**sizes, **more, groups=groups).canonical()
                    if legal(problem, plain, SPLIT_RULES):
                        yield plain


def meshes_on(problem: Problem, limit: int, together: int) -> Iterator[tuple[Mesh, int]]:
    """What a chip type with so many devices may do where a round has so many sequences: a mesh, and its stages."""
    moe, sizes = problem.model.moe, range(1, limit + 1)
    experts = range(1, moe.experts + 1) if moe else (1,)
    for d in wanted(problem, tp=sizes, cp=sizes, dp=sizes, ep=experts, etp=sizes if moe else (1,)):
        mesh = Mesh(**d)
        flags: dict[str, Any] = dict.fromkeys(FLAGS_OF_A_MESH, False)
        alone = Strategy(**d, pp=1, mbs=1, vpp=1, groups=(), **flags)
        if any(next(iter(RULES[name](problem, alone)), None) for name in ("heads", "context_parallel", "experts")):
            continue
        for count in range(1, limit // mesh.stage_devices + 1):
            if together % mesh.dp == 0 and mesh.stage_devices * count % problem.node == 0:
                yield mesh, count


def strategies(problem: Problem) -> Iterator[Strategy]:
    """Every strategy; of a problem that was found to be small enough, from the list made then."""
    known = _listed.get(id(problem))
    return iter(known[1]) if known and known[0] is problem else _enumerated(problem)


_listed: dict[int, tuple[Problem, list[Strategy]]] = {}


def _enumerated(problem: Problem) -> Iterator[Strategy]:
    if problem.degrees_by_chip:
        yield from (s for row in mesh_rows(problem) for s in splits(problem, row))
    yield from (s for row in rows(problem) if legal(problem, row, SPLIT_RULES) for s in splits(problem, row))


def grouped_key(s: Strategy) -> tuple[object, ...]:
    """What tells a row and its chips from others: the key of the plan, its sharding group, whether experts' exchange
    overlaps, and what stands in the place of a layer."""
    slots = (0, s.layers[0] - s.layers[-1]) if s.both_ways else s.slots
    return (*s.key(), s.sharding_group, s.expert_overlap, slots)


def brute_force(
    problem: Problem, key: Callable[[Strategy], tuple[object, ...]] = Strategy.key
) -> dict[tuple[object, ...], float]:
    """The best step time of every legal plan key."""
    best: dict[tuple[object, ...], float] = {}
    for s in (s for s in strategies(problem) if legal(problem, s)):
        best[key(s)] = min(evaluate(problem, s).step_time_s, best.get(key(s), float("inf")))
    return best


def small_enough(problem: Problem, most: int) -> bool:
    """Whether brute force has at most that many strategies to judge."""
    found = list(islice(strategies(problem), most + 1))
    if len(found) <= most:
        _listed[id(problem)] = (problem, found)
    return len(found) <= most
