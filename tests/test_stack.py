"""Software-stack profiles: every constant with its provenance."""

from __future__ import annotations

import pytest

from cpsolver.errors import InputError
from cpsolver.stack import Constants, load_stack, stack_names

SHARES = (
    "gradient_overlap",
    "parameter_overlap",
    "pipeline_overlap_interleaved",
    "causal_fraction",
    "allocator_overhead",
)


@pytest.mark.parametrize("name", stack_names())
def test_every_constant_has_a_source(name: str) -> None:
    stack = load_stack(name)
    assert stack.name == name
    assert stack.title
    for constant in Constants.model_fields:
        entry = getattr(stack.constants, constant)
        assert len(entry.source) > 10 or entry.source.startswith("as "), constant
        assert entry.value >= 0
        assert getattr(stack, constant) == entry.value
    assert all(0 <= getattr(stack, share) <= 1 for share in SHARES)


def test_mixed_precision_with_adam() -> None:
    stack = load_stack("megatron-core")
    assert (stack.parameter_bytes, stack.gradient_bytes, stack.optimizer_bytes) == (2, 4, 12)


def test_unknown_names() -> None:
    with pytest.raises(InputError, match="megatron-core") as caught:
        load_stack("megatron")
    assert caught.value.troubles[0].where == "stack"
    with pytest.raises(AttributeError):
        _ = load_stack("megatron-core").no_such_constant
