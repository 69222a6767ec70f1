"""Megatron's own process groups of every rank, on torch's fake backend."""

from __future__ import annotations

import torch
from megatron.core import parallel_state
from torch.testing._internal.distributed.fake_pg import FakeStore

from cpsolver.plans.strategy import Strategy


def groups_of(s: Strategy) -> dict[str, list[list[int]]]:
    """Kind of group -> groups, by their first rank; the names are those of cpsolver.problem.ranks."""
    found: dict[str, set[tuple[int, ...]]] = {}
    for rank in range(s.devices):
        for kind, ranks in _of_rank(s, rank).items():
            found.setdefault(kind, set()).add(ranks)
    return {kind: [list(ranks) for ranks in sorted(groups)] for kind, groups in found.items()}


def _of_rank(s: Strategy, rank: int) -> dict[str, tuple[int, ...]]:
    hierarchy = [s.ulysses, s.cp // s.ulysses] if s.cp_comm_type == "a2a+p2p" else None
    torch.distributed.init_process_group("fake", rank=rank, world_size=s.devices, store=FakeStore())
    try:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=s.tp,
            pipeline_model_parallel_size=s.pp,
            virtual_pipeline_model_parallel_size=s.vpp if s.vpp > 1 else None,
            context_parallel_size=s.cp,
            hierarchical_context_parallel_sizes=hierarchy,
            expert_model_parallel_size=s.ep,
            expert_tensor_parallel_size=s.etp,
            num_distributed_optimizer_instances=s.dp * s.cp // s.sharding_group if s.sharding_group else 1,
            create_gloo_process_groups=False,
        )
        groups = {
            "tp": parallel_state.get_tensor_model_parallel_group(),
            "cp": parallel_state.get_context_parallel_group(),
            "dp": parallel_state.get_data_parallel_group(),
            "dp_cp": parallel_state.get_data_parallel_group(with_context_parallel=True),
            "pp": parallel_state.get_pipeline_model_parallel_group(),
            "model": parallel_state.get_model_parallel_group(),
            "ep": parallel_state.get_expert_model_parallel_group(),
            "etp": parallel_state.get_expert_tensor_parallel_group(),
            "edp": parallel_state.get_expert_data_parallel_group(),
        }
        if hierarchy is not None:
            levels = parallel_state.get_hierarchical_context_parallel_groups()
            groups |= {"cp_a2a": levels[0], "cp_p2p": levels[1]}
        if s.sharding_group:
            part = parallel_state.get_data_parallel_group(with_context_parallel=True, partial_data_parallel=True)
            groups["instance"] = part
            groups["expert_instance"] = parallel_state.get_expert_data_parallel_group(partial_expert_data_parallel=True)
        return {kind: tuple(torch.distributed.get_process_group_ranks(group)) for kind, group in groups.items()}
    finally:
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()
