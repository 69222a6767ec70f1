"""DualPipe's plans as a V: device s serves stages s and pp - 1 - s, each for half of the microbatches.

Folded in the middle such a pipeline is DualPipeV's of half as many stages, each with two chunks and on twice as many
devices: s and pp - 1 - s hold the same weights, run half of the microbatches each through both, and sum their
gradients. What is known of stages placed as a V holds of it as it is; the costs (cost/, evaluation/) and the search
take it folded, all else as its users write it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from cpsolver.plans.strategy import StageGroup, Strategy

CHUNKS = 2


@dataclass(frozen=True, order=True)
class Folded(Strategy):
    """A plan of `strategy.BOTH_WAYS`, folded: `short` is what the last stage has fewer layers than the first."""

    short: int = 0

    @property
    def both_ways(self) -> bool:
        """Not any longer."""
        return False

    @property
    def v_shaped(self) -> bool:
        """Each stage holds a chunk on the way in and one on the way out."""
        return True

    @property
    def slots(self) -> tuple[int, int]:
        """The head stands in the place of the layers that the last stage has fewer."""
        return 0, self.short

    @property
    def chunks(self) -> tuple[int, ...]:
        """As `Strategy.chunks`."""
        return tuple((count + self.slots_on(stage)) // self.vpp for stage, count in enumerate(self.layers))


def folded(strategy: Strategy) -> Strategy:
    """A plan of BOTH_WAYS as a V, any other as it is; by the rule `even_chunks` its pairs of stages are alike."""
    if not strategy.both_ways:
        return strategy
    half, layers = strategy.pp // 2, strategy.layers
    sizes = {field.name: getattr(strategy, field.name) for field in fields(Strategy)}
    sizes |= {"pp": half, "dp": 2 * strategy.dp, "vpp": CHUNKS, "groups": tuple(_first_half(strategy, half))}
    return Folded(**sizes, short=layers[0] - layers[-1])


def _first_half(strategy: Strategy, half: int) -> list[StageGroup]:
    """The groups of the first half of the stages, each stage with the layers of its mirrored one too."""
    groups, start, layers = list[StageGroup](), 0, strategy.layers
    for group in strategy.groups:
        end = min(half, start + group.num_stages)
        if start < end:
            both = tuple(layers[stage] + layers[-1 - stage] for stage in range(start, end))
            groups.append(replace(group, layers=both, recompute_layers=group.recompute_layers[: end - start]))
        start = end
    return groups


def unfolded(strategy: Strategy, short: int) -> Strategy:
    """The plan of which a V of BOTH_WAYS is the folded one, the last stage so many layers short of the first."""
    first, last = list[StageGroup](), list[StageGroup]()
    head = short
    for group in strategy.groups:
        chunks = tuple((count + (head if at == 0 else 0)) // CHUNKS for at, count in enumerate(group.layers))
        first.append(replace(group, layers=chunks))
        ends = (chunks[0] - head, *chunks[1:])
        back = replace(group, layers=ends[::-1], recompute_layers=group.recompute_layers[::-1])
        last.insert(0, back)
        head = 0
    middle = (*first[:-1], *_joined(first[-1], last[0]), *last[1:])
    names = {field.name: getattr(strategy, field.name) for field in fields(Strategy)}
    return Strategy(**names | {"pp": 2 * strategy.pp, "dp": strategy.dp // 2, "vpp": 1, "groups": middle})


def _joined(one: StageGroup, other: StageGroup) -> tuple[StageGroup, ...]:
    """The groups on either side of the middle, which are of one kind, as one."""
    amounts = (*one.recompute_layers, *other.recompute_layers)
    return (replace(one, layers=(*one.layers, *other.layers), recompute_layers=amounts),)
