"""A plan as a configuration of FlagScale: an experiment, its train section and a host file with chip types.

Read in FlagScale da4935ec (2025-11): flagscale/train/arguments.py (FSTrainArguments: the rules on meshes, layers and
recomputation by stage), flagscale/train/hetero/parallel_context.py (ranks sorted by device type, then a slice for each
mesh), flagscale/runner (host file, options from nested settings), and its patch of Megatron-LM.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from math import lcm
from typing import Any

from cpsolver.doors.export.dialect import CORE_0_15, Flag
from cpsolver.doors.export.launch import CannotExpress, Launch, refuse
from cpsolver.doors.export.megatron import environment_of, shared_flags
from cpsolver.doors.export.model_args import PADDING, expert_flags, model_flags, model_notes
from cpsolver.doors.export.parallel_args import (
    batch_flags,
    is_plain,
    layer_flags,
    recompute_flags,
    recomputes_by_stage,
    shares_checkpoints,
)
from cpsolver.doors.export.shared import Host, hostfile, hosts, yaml_text
from cpsolver.doors.export.training_args import activation_flags, check_switches, optimizer_flags, overlap_notes
from cpsolver.inputs.language import say
from cpsolver.plans.strategy import StageGroup, Strategy
from cpsolver.problem.problem import Problem
from cpsolver.spec.training import Training
from models_zoo import Architecture

MAIN, TRAIN = "plan.yaml", "plan_train.yaml"
FLAGSCALE = replace(
    CORE_0_15, name="flagscale", source="FlagScale da4935ec, flagscale/backends/Megatron-LM", quick_geglu=True
)
_METHODS = {"none": 0, "uniform": 0, "block": 1}
"""How recompute_method_per_stage_micro_batch tells a kind; `none` is told by the granularity."""


def export(problem: Problem, strategy: Strategy) -> Launch:
    """What FlagScale needs to run the plan; raises CannotExpress with every reason why it cannot."""
    refuse(_refused(problem.spec.training))
    listed = hosts(problem, strategy)
    types = host_types(strategy, listed) if _hetero(strategy) else ()
    train = train_section(problem, strategy)
    header = "A plan of apss-cp for FlagScale of late 2025."
    environment = environment_of(problem, strategy)
    main = _experiment(strategy, listed, train, environment)
    files = {
        MAIN: yaml_text(f"{header} In FlagScale's folder: python run.py ...", main),
        TRAIN: yaml_text(f"{header} The train section of {MAIN}.", train),
        "hostfile": hostfile(listed, types),
    }
    arguments = ("--config-path", "<folder of these files>", "--config-name", "plan", "action=run")
    return Launch("flagscale", arguments, environment, files, MAIN, tuple(_notes(problem, strategy)))


def _hetero(s: Strategy) -> bool:
    """The plan needs the heterogeneous mode: chips mix, or layers or recomputation differ by stage."""
    return len(s.meshes) > 1 or not is_plain(s) or recomputes_by_stage(s)


def _refused(training: Training) -> Iterator[str]:
    """Settings of the spec that FlagScale has no flag for, all at once."""
    checks: tuple[Callable[[], object], ...] = (
        lambda: check_switches(
            training,
            "FlagScale",
            ("moe_dispatcher", "gradient_accumulation_fusion", "distribute_saved_activations", "moe_grouped_gemm"),
        ),
        lambda: tuple(optimizer_flags(training, FLAGSCALE)),
        lambda: tuple(activation_flags(training, FLAGSCALE)),
    )
    for check in checks:
        try:
            check()
        except CannotExpress as refused:
            yield from refused.reasons


def host_types(s: Strategy, listed: Iterable[Host]) -> tuple[str, ...]:
    """The `type=` of every host, in order: its mesh's device type."""
    names = mesh_types(s)
    sizes = [mesh.stage_devices * _stages(groups) for mesh, groups in s.meshes]
    types: list[str] = []
    for host in listed:
        types.append(names[0])
        sizes[0] -= host.slots
        if not sizes[0]:
            names, sizes = names[1:], sizes[1:]
    return tuple(types)


def mesh_types(s: Strategy) -> tuple[str, ...]:
    """The device type of every mesh: its chip, numbered where the chip serves several meshes.

    FlagScale sorts ranks by the first place of their type in the list, so that two meshes with the same type would
    not stand where the list has them; any name will do, as nothing but this order and the user's own settings ask.
    It stands unquoted in the host file and in the command that FlagScale makes, so it is a plain word.
    """
    chips = [_word(groups[0].chip) for _, groups in s.meshes]
    return tuple(chip if chips.count(chip) == 1 else f"{chip}-{place}" for place, chip in enumerate(chips))


def _word(name: str) -> str:
    """The name as a word of letters, digits, `.`, `_` and `-`, that is no option and no interpolation of OmegaConf."""
    return re.sub(r"^[^A-Za-z0-9]|[^\w.-]", "_", name, flags=re.ASCII)


def process_meshes(s: Strategy) -> list[int]:
    """hetero_process_meshes: tp, cp, ep, dp and pp of every mesh."""
    meshes = ((mesh.tp, mesh.cp, mesh.ep, mesh.dp, _stages(groups)) for mesh, groups in s.meshes)
    return [number for numbers in meshes for number in numbers]


def _stages(groups: Iterable[StageGroup]) -> int:
    return sum(group.num_stages for group in groups)


def train_section(problem: Problem, s: Strategy) -> dict[str, Any]:
    """The settings that FlagScale turns into options of its training script, whatever they are nested in."""
    grouped = problem.spec.training.moe_grouped_gemm
    flags = [*model_flags(problem.model, problem.sequence, FLAGSCALE), *expert_flags(problem.model, FLAGSCALE, grouped)]
    model = settings([*flags, *batch_flags(problem, s)])
    system = settings(shared_flags(problem, s, FLAGSCALE))
    for name in model:
        del system[name]
    system |= settings(recompute_flags(problem, s)) if not recomputes_by_stage(s) else _recompute_by_stage(problem, s)
    if _hetero(s):
        system["hetero"] = _hetero_section(problem.model, s)
    else:
        system |= settings(layer_flags(problem, s, FLAGSCALE))
    if _shares_in_parts(problem.model, s):
        model["make_vocab_size_divisible_by"] = lcm(PADDING, s.meshes[0][0].dp, s.meshes[-1][0].dp)
    system |= {"logging": {"log_interval": 1, "log_throughput": True}, "checkpoint": {"save_interval": 1000}}
    tokenizer = {"tokenizer_type": "???", "tokenizer_path": "???", "vocab_size": problem.model.vocab}
    return {
        "system": system,
        "model": {"transformer_impl": "transformer_engine", **model, "train_iters": "???"},
        "data": {"data_path": "???", "split": 1, "tokenizer": tokenizer},
    }


def settings(flags: Iterable[Flag]) -> dict[str, Any]:
    """Options as settings: --hidden-size 4096 is hidden_size: 4096, a switch is true."""
    return {name[2:].replace("-", "_"): _value(values) for name, *values in flags}


def _value(values: list[str]) -> Any:
    numbers = [_number(value) for value in values]
    return True if not numbers else numbers[0] if len(numbers) == 1 else numbers


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _recompute_by_stage(problem: Problem, s: Strategy) -> dict[str, Any]:
    """Recomputation of every stage and microbatch; each list is one stage, all its microbatches, the value."""
    count = s.microbatches(problem.batch)
    stages = list(zip(s.recompute, s.recompute_layers, strict=True))

    def by_stage(values: Iterable[int]) -> list[list[int]]:
        return [[1, count, value] for value in values]

    return {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
        **({"distribute_saved_activations": True} if shares_checkpoints(problem, s) else {}),
        "recompute_granularity_per_stage_micro_batch": by_stage(int(kind != "none" and n > 0) for kind, n in stages),
        "recompute_method_per_stage_micro_batch": by_stage(_METHODS[kind] for kind, _ in stages),
        "recompute_num_layers_per_stage_micro_batch": by_stage(n if kind != "none" else 0 for kind, n in stages),
    }


def _hetero_section(model: Architecture, s: Strategy) -> dict[str, Any]:
    types, etps = mesh_types(s), [mesh.etp for mesh, _ in s.meshes]
    experts = any(mesh.ep * mesh.etp > 1 for mesh, _ in s.meshes)
    return {
        "enable_hetero": True,
        "hetero_device_types": list(types),
        "hetero_current_device_type": types[0],
        "hetero_process_meshes": process_meshes(s),
        "hetero_pipeline_layer_split": list(s.layers),
        **({"expert_tensor_parallel_size_per_process_mesh": etps} if experts else {}),
        **({"use_partial_reduce_for_shared_embedding": True} if _shares_in_parts(model, s) else {}),
        "standalone_embedding_stage": False,
    }


def _shares_in_parts(model: Architecture, s: Strategy) -> bool:
    """The first and the last stage hold one table, and different numbers of replicas shard its states.

    Each replica then sums a share of its rows (finalize_model_grads): every dp must divide those of a tp rank.
    """
    first, last = s.meshes[0][0], s.meshes[-1][0]
    return model.embeds_at_both_ends and s.distributed_optimizer and first.dp != last.dp


def _miscounts(s: Strategy) -> bool:
    """FlagScale's own arithmetic, in which no stride has dp in it, or for experts ep, finds wrong ranks at a border."""
    meshes = [(mesh, _stages(groups)) for mesh, groups in s.meshes]
    if len(meshes) == 1:
        return False
    of_experts = any(mesh.ep > 1 and mesh.stage_devices * pp > mesh.ep * mesh.etp for mesh, pp in meshes)
    return of_experts or any(mesh.dp > 1 and pp > 1 for mesh, pp in meshes[:-1])


def _of_types(s: Strategy, system: dict[str, Any]) -> dict[str, Any]:
    """Options that hosts of some type do not get: without tensor parallelism FlagScale turns sequence parallelism off
    there, with which alone Megatron-LM overlaps what tensor-parallel ranks say to each other."""
    alone = [name for name, (mesh, _) in zip(mesh_types(s), s.meshes, strict=True) if mesh.tp == 1]
    if "tp_comm_overlap" not in system or not alone:
        return {}
    return {"device_type_specific": {name: {"tp_comm_overlap": "false"} for name in alone}}


def _experiment(
    s: Strategy, listed: tuple[Host, ...], train: dict[str, Any], environment: dict[str, str]
) -> dict[str, Any]:
    return {
        "defaults": [f"{TRAIN.removesuffix('.yaml')}@train", "_self_"],
        "experiment": {
            "exp_name": "plan",
            "exp_dir": "./outputs_plan",
            "task": {"type": "train", "backend": "megatron", "entrypoint": "./flagscale/train/train_gpt.py"},
            "runner": {
                "backend": "torchrun",
                "rdzv_backend": "static",
                "nnodes": len(listed),
                "nproc_per_node": listed[0].slots,
                "hostfile": "hostfile",
            },
            "envs": environment,
        },
        **_of_types(s, train["system"]),
        "action": "run",
        "hydra": {"run": {"dir": "${experiment.exp_dir}/hydra"}},
    }


def _notes(problem: Problem, s: Strategy) -> Iterator[str]:
    yield say("fill in what {train} has as ???: data, tokenizer, train_iters; and the names in hostfile", train=TRAIN)
    yield say("run.py is started in FlagScale's folder: give runner.hostfile in {main} with its path", main=MAIN)
    if _hetero(s):
        yield say("ranks are sorted by the host's type: every host needs the type that hostfile gives it")
    if len(s.meshes) > 1:
        yield say(
            "chips whose libraries do not speak to each other need FlagCX (distributed_backend: "
            "flagcx), or hetero_use_cpu_communication: true"
        )
    if _miscounts(s):
        yield say(
            "FlagScale up to da4935ec takes other ranks for the last stage of a mesh of several "
            "stages and replicas (its issue 658): in logical_coords_to_physical_ranks of "
            "flagscale/train/hetero/parallel_context.py the axes to leave out are 2, not 3, and of "
            "experts 1, not 2"
        )
    yield from overlap_notes(problem, s)
    yield from model_notes(problem.model, problem.sequence, FLAGSCALE)
