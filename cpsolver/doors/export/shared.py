"""What exporters for PyTorch frameworks share: hosts in the order of the stages, and what no file of theirs says."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from io import StringIO
from itertools import groupby
from typing import Any

from cpsolver.doors.export.launch import CannotExpress
from cpsolver.inputs.errors import one_line
from cpsolver.inputs.language import say
from cpsolver.plans.strategy import StageGroup, Strategy
from cpsolver.problem.problem import Problem

MODEL_SIDE = ("global_batch_size", "sequence_length", "precision", "dropout", "fused_kernels", "fused_gate_up")
"""Fields of the spec's training section that every exporter states, or that are the model's own."""
LOAD = ("expert_imbalance", "expert_capacity_factor")
"""Those that say what the experts' load is, or is cut to: the router's."""
ASKED = ("tokens",)
"""Those that only ask for figures of a report, its days and dollars: nothing of a run."""


@dataclass(frozen=True)
class Host:
    """A node: the name that stands for it in the files, its chip, and how many ranks it has, all in order."""

    name: str
    chip: str
    slots: int


@dataclass(frozen=True)
class ChipStages:
    """Neighbouring stages on one chip type, whatever else differs between them."""

    chip: str
    groups: tuple[StageGroup, ...]

    @property
    def num_stages(self) -> int:
        """How many pipeline stages the run has."""
        return sum(group.num_stages for group in self.groups)


def runs(strategy: Strategy) -> tuple[ChipStages, ...]:
    """The stages as runs of one chip type, in order."""
    return tuple(ChipStages(chip, tuple(groups)) for chip, groups in groupby(strategy.groups, lambda group: group.chip))


def hosts(problem: Problem, strategy: Strategy) -> tuple[Host, ...]:
    """The nodes in the order of their ranks, in which the pipeline's stages are the slowest axis.

    Raises CannotExpress where two chip types would share a node.
    """
    node, stages = problem.node, zip(strategy.stage_chips, strategy.widths, strict=True)
    ranks = [chip for chip, width in stages for _ in range(width)]
    nodes = [ranks[first : first + node] for first in range(0, len(ranks), node)]
    mixed = [say("{one} and {other}", one=chips[0], other=chips[-1]) for chips in nodes if len(set(chips)) > 1]
    if mixed:
        reason = say(
            "a node of {node} devices would have {mixed}: a line of the host file is a node of one chip type",
            node=node,
            mixed=mixed[0],
        )
        raise CannotExpress((reason,))
    return tuple(Host(f"host{place}", chips[0], len(chips)) for place, chips in enumerate(nodes))


def hostfile(listed: tuple[Host, ...], types: tuple[str, ...] = ()) -> str:
    """A host file as DeepSpeed and FlagScale read it, one node a line; `types`: the type of each, if it is given."""
    lines = ["# Put your own names in place of host0, ...; the order is that of the pipeline's stages."]
    for place, host in enumerate(listed):
        kind = f" type={types[place]}" if types else f"  # {one_line(host.chip)}"
        lines.append(f"{host.name} slots={host.slots}{kind}")
    return "\n".join(lines) + "\n"


def allocator_variables(problem: Problem) -> dict[str, str]:
    """What the allocator of the chips' PyTorch is told where the plan's memory counts on segments that grow in place.

    torch_npu has a variable of its own (docs of Ascend Extension for PyTorch, PYTORCH_NPU_ALLOC_CONF).
    """
    if not problem.expandable_segments:
        return {}
    names = ("NPU" if supply.chip.vendor == "huawei" else "CUDA" for supply in problem.supplies)
    return {f"PYTORCH_{name}_ALLOC_CONF": "expandable_segments:True" for name in dict.fromkeys(names)}


def unset_switches(problem: Problem, target: str, stated: Container[str] = ()) -> Iterator[str]:
    """Switches of the spec's training section that are on and that the target's files do not say.

    `stated`: fields that they do say, or that the exporter judges itself.
    """
    for name, field in type(problem.spec.training).model_fields.items():
        value = getattr(problem.spec.training, name)
        if name not in (*MODEL_SIDE, *LOAD, *ASKED) and name not in stated and value != field.default:
            shown = ", ".join(value) if isinstance(value, tuple) else str(value).lower()
            yield say("{target} has no setting for training.{name} = {shown}", target=target, name=name, shown=shown)


def sharding_instances(s: Strategy) -> int:
    """How many times over all replicas hold the sharded states: 1 where all of them share one copy."""
    return s.replicas // s.sharding_ranks


def replicate_and_shard(s: Strategy) -> tuple[int, int]:
    """Replicas that hold whole copies, and those that shard one, as PyTorch's device mesh has them.

    The sharding mesh has the context-parallel ranks folded in: a group of g ranks is g / cp replicas.
    """
    if not s.distributed_optimizer:
        return s.dp, 1
    shard = max(s.sharding_ranks // s.cp, 1)
    return s.dp // shard, shard


def mixture_note(strategy: Strategy) -> tuple[str, ...]:
    """What the user must see to where chip types mix."""
    chips = tuple(run.chip for run in runs(strategy))
    if len(chips) < 2:
        return ()
    order = say(", then ").join(chips)
    return (say("give the nodes their ranks in the order {order}, with a backend that connects them all", order=order),)


def layers_by_part(strategy: Strategy) -> tuple[tuple[int, ...], ...]:
    """The layers, counted from 0, of every model chunk in the order in which a microbatch passes them.

    Chunk c of stage s comes at place c * pp + s, but of a V the second chunks begin with the last stage's. An embedding
    or head that stands in layers' places makes the first chunk, or the last, so many shorter.
    """
    first, last = strategy.slots
    parts: list[tuple[int, ...]] = []
    at = 0
    for chunk in range(strategy.vpp):
        back = strategy.v_shaped and chunk == 1
        for stage in reversed(range(strategy.pp)) if back else range(strategy.pp):
            size, short = strategy.chunks[stage], first * (chunk == 0 and stage == 0)
            short += last * (chunk == strategy.vpp - 1 and stage == strategy.head_stage)
            parts.append(tuple(range(at, at + size - short)))
            at += size - short
    return tuple(parts)


def yaml_text(header: str, data: Any) -> str:
    """Plain data as YAML in its own order, lists of numbers in one line; `header`: comment lines before it."""
    from ruamel.yaml import YAML

    writer = YAML()
    writer.width = 4096
    out = StringIO()
    writer.dump(_flow(data), out)
    return "".join(f"# {line}\n" for line in header.splitlines()) + out.getvalue()


def _flow(data: Any) -> Any:
    from ruamel.yaml.comments import CommentedSeq

    if isinstance(data, dict):
        return {key: _flow(value) for key, value in data.items()}
    if not isinstance(data, list | tuple):
        return data
    made = CommentedSeq([_flow(item) for item in data])
    if not any(isinstance(item, list | tuple | dict) for item in data):
        made.fa.set_flow_style()
    return made
