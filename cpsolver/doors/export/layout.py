"""Layers by stage and chunk, and the ways in which the Megatron family can tell them."""

from __future__ import annotations

from itertools import groupby

from cpsolver.plans.strategy import Strategy


def stage_chunks(s: Strategy) -> tuple[tuple[int, ...], ...]:
    """Layers of every chunk of every stage: all of a stage alike, one fewer where the embedding or the head stands."""
    chunks = [[width] * s.vpp for width in s.chunks]
    embedding, head = s.slots
    chunks[0][0] -= embedding
    chunks[-1][-1] -= head
    return tuple(map(tuple, chunks))


def is_even(s: Strategy) -> bool:
    """All stages have as many layers, and all chunks."""
    return len(set(s.layers)) == 1 and not any(s.slots)


def is_accounted(s: Strategy) -> bool:
    """All chunks are alike once the embedding or the head, or both, count as a layer."""
    return any(s.slots) and len(set(s.chunks)) == 1


def is_first_last(s: Strategy) -> bool:
    """All stages between the first and the last have as many layers, and chunks hold nothing but layers."""
    return s.pp > 1 and not any(s.slots) and len(set(s.layers[1:-1])) < 2


def is_plain(s: Strategy) -> bool:
    """A flag or two say the layers of all stages, without a list of them."""
    return is_even(s) or is_accounted(s) or is_first_last(s)


def layout_string(s: Strategy, mtp_layers: int = 0) -> str:
    """Megatron-LM's --pipeline-model-parallel-layout: E embedding, t layer, m multi-token prediction, L head.

    Stages stand in the order of the first chunks of all, then the second chunks (pipeline_parallel_layer_layout.py);
    "|" separates them, "x*n" and "(x)*n" repeat.
    """
    by_stage = stage_chunks(s)
    parts = [_letters(by_stage[stage][chunk]) for chunk in range(s.vpp) for stage in range(s.pp)]
    parts[0] = "E" + parts[0]
    parts[-1] += "m" * mtp_layers + "L"
    if len(parts) < 3:
        return "|".join(parts)
    middle = ""
    for part, alike in groupby(parts[1:-1]):
        times = len(list(alike))
        middle += f"({part}|)*{times}" if times > 1 and part else f"{part}|" * times
    return f"{parts[0]}|{middle}{parts[-1]}"


def _letters(layers: int) -> str:
    return "t" * layers if layers < 2 else f"t*{layers}"
