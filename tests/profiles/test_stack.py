"""Software-stack profiles: every constant with its provenance."""

from __future__ import annotations

import pytest

from cpsolver.inputs.errors import InputError
from cpsolver.profiles.stack import Constants, load_stack, stack_names

SHARES = (
    "sharded_all_reduce",
    "single_adapter",
    "pipeline_scatter",
    "routing_overlap",
    "gradient_overlap",
    "parameter_overlap",
    "sharding_overlap",
    "tensor_overlap",
    "tensor_overlap_backward",
    "context_overlap",
    "pipeline_overlap_interleaved",
    "causal_fraction",
    "misaligned_gemm_speed",
    "straggling",
    "allocator_overhead",
)
STATES = {
    "megatron-core": (2, 4, 12),
    "megatron-2021": (2, 2, 16),
    "megatron-2022": (2, 2, 12),
    "megatron-deepspeed": (2, 2, 12),
}


@pytest.mark.parametrize("name", stack_names())
def test_every_constant_has_a_source(name: str) -> None:
    stack = load_stack(name)
    assert stack.name == name
    assert 20 < len(stack.title) < 130
    assert "\n" not in stack.title
    for constant in Constants.model_fields:
        entry = getattr(stack.constants, constant)
        assert len(entry.source) > 10, constant
        assert entry.value >= 0
        assert getattr(stack, constant) == entry.value
    assert all(0 <= getattr(stack, share) <= 1 for share in SHARES)


@pytest.mark.parametrize(("name", "states"), STATES.items())
def test_bytes_of_state(name: str, states: tuple[int, int, int]) -> None:
    stack = load_stack(name)
    assert (stack.parameter_bytes, stack.gradient_bytes, stack.optimizer_bytes) == states


@pytest.mark.parametrize("name", ["fsdp-composer", "composer-pure", "fsdp-torchtitan", "torchtitan-2026"])
def test_sharded_fp32_weights_are_gathered_in_two_bytes(name: str) -> None:
    stack = load_stack(name)
    assert stack.parameter_bytes + stack.gradient_bytes + stack.optimizer_bytes == 16
    assert stack.parameter_bytes == stack.parameter_gather_bytes == 2


def test_a_profile_has_what_it_extends() -> None:
    bloom, base = load_stack("megatron-deepspeed-bloom").constants, load_stack("megatron-2021").constants
    assert bloom.optimizer_bytes == load_stack("megatron-deepspeed").constants.optimizer_bytes != base.optimizer_bytes
    assert bloom.gradient_bytes == base.gradient_bytes


def test_unknown_names() -> None:
    with pytest.raises(InputError, match="megatron-core") as caught:
        load_stack("megatron")
    assert caught.value.troubles[0].where == "stack"
    with pytest.raises(AttributeError):
        _ = load_stack("megatron-core").no_such_constant
