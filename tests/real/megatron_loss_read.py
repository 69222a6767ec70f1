"""What Megatron-LM's own loss takes of memory, on the CPU: bytes a logit at its peak and while it waits.

Run by `readers.read`: a JSON list of cases on stdin, the tokens and vocabulary of each, and the answers on stdout.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from megatron.core.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy
from torch.profiler import ProfilerActivity, profile

HIDDEN = 8


def taken(ask: Callable[[], Any]) -> tuple[float, float, Any]:
    """Bytes at the peak and at the end of a call beyond those before it, and what it gives."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        found = ask()
    events = seen.profiler.kineto_results.events()
    held = peak = 0
    for event in sorted((each for each in events if each.name() == "[memory]"), key=lambda each: each.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak, held, found


def measured(case: dict[str, int]) -> dict[str, float]:
    """A head without bias and its loss, forward and backward, in bf16."""
    inputs, weights = (
        torch.randn(*shape, dtype=torch.bfloat16, requires_grad=True)
        for shape in ((case["tokens"], 1, HIDDEN), (case["vocabulary"], HIDDEN))
    )
    labels, logits = torch.randint(0, case["vocabulary"], (case["tokens"], 1)), case["tokens"] * case["vocabulary"]

    def forward() -> torch.Tensor:
        return vocab_parallel_cross_entropy(torch.nn.functional.linear(inputs, weights), labels).sum()

    forward().backward()  # the first call makes what stays
    ahead, kept, loss = taken(forward)
    back, _, _ = taken(loss.backward)
    return {"peak": max(ahead, kept + back) / logits, "waiting": kept / logits}


def main() -> None:
    """Answer the cases."""
    from megatron.core import parallel_state

    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group("gloo", f"file://{Path(folder) / 'store'}", rank=0, world_size=1)
        parallel_state.initialize_model_parallel()
        json.dump([measured(case) for case in json.load(sys.stdin)], sys.stdout)


if __name__ == "__main__":
    main()
