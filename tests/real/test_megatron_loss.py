"""What the stack says of a loss's logits is what Megatron-LM's own takes, run on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpsolver.profiles.stack import load_stack
from tests.real.readers import read

READER = Path(__file__).with_name("megatron_loss_read.py")


def test_the_loss_takes_as_many_bytes_a_logit_as_the_stack_says() -> None:
    stack = load_stack("megatron-core")
    (found,) = read(READER, ("MEGATRON_LM",), [{"tokens": 512, "vocabulary": 16_384}])
    assert found["peak"] == pytest.approx(stack.logits_bytes, rel=0.02)
    assert found["waiting"] == pytest.approx(stack.waiting_logits_bytes, rel=0.02)
