"""The runnable script, and the order of the nodes."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping

from cpsolver.doors.export.dialect import Flag
from cpsolver.inputs.errors import one_line
from cpsolver.inputs.language import say
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.ranks import node_blocks

_DATA = ("--train-iters 10", "--lr 1e-4", "--mock-data", "--tokenizer-type NullTokenizer", "--vocab-size {vocab}")
"""A try-out on made-up data. NullTokenizer adds one token of its own (megatron/training/tokenizer)."""


def shell_lines(flags: Iterable[Flag]) -> Iterator[str]:
    """One option a line, quoted for a shell."""
    return (" ".join(map(shlex.quote, flag)) for flag in flags)


def grouped(arguments: Iterable[str]) -> list[Flag]:
    """Tokens of a command line, each option with its values."""
    options: list[Flag] = []
    for token in arguments:
        if token.startswith("--") or not options:
            options.append((token,))
        else:
            options[-1] = (*options[-1], token)
    return options


def train_script(
    problem: Problem,
    s: Strategy,
    flags: Iterable[Flag],
    environment: Mapping[str, str],
    script: str,
    data: Iterable[str] = _DATA,
    setup: Iterable[str] = (),
    more: Iterable[str] = (),
) -> str:
    """A bash script that starts torchrun on one node; every node runs it with its own NODE_RANK.

    `setup` are lines of bash after the environment, `more` such of options that a shell has to work out.
    """
    node, title = min(problem.node, s.devices), f"{one_line(problem.model.name)} on {s.devices} devices"
    lines = [
        "#!/usr/bin/env bash",
        f"# {title}, written by apss-cp export. Run it on every node with the",
        "# NODE_RANK that nodes.txt gives it, and with the address of node 0 as MASTER_ADDR.",
        "set -euo pipefail",
        *(f"export {name}={shlex.quote(value)}" for name, value in environment.items()),
        *setup,
        f"NNODES=${{NNODES:-{s.devices // node}}}",
        f"GPUS_PER_NODE=${{GPUS_PER_NODE:-{node}}}",
        "NODE_RANK=${NODE_RANK:?the number of this node, from 0 (nodes.txt)}" if s.devices > node else "NODE_RANK=0",
        "MASTER_ADDR=${MASTER_ADDR:?address of node 0}" if s.devices > node else "MASTER_ADDR=localhost",
        "MASTER_PORT=${MASTER_PORT:-29500}",
        f"SCRIPT=${{SCRIPT:-{script}}}",
        "PLAN_ARGS=(",
        *(f"  {line}" for line in shell_lines(flags)),
        *more,
        ")",
        "# Data, tokenizer, learning rate and checkpoints are yours; these try the plan out on made-up data.",
        "DATA_ARGS=(",
        *("  " + line.replace("{vocab}", str(problem.model.vocab - 1)) for line in data),
        ")",
        'exec torchrun --nproc_per_node "$GPUS_PER_NODE" --nnodes "$NNODES" --node_rank "$NODE_RANK" \\',
        '  --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \\',
        '  "$SCRIPT" "${PLAN_ARGS[@]}" "${DATA_ARGS[@]}" "$@"',
    ]
    return "\n".join(lines) + "\n"


def nodes_file(problem: Problem, s: Strategy) -> str:
    """Which chip and stages each node rank has, a run of like nodes a line."""
    lines = ["# node ranks, chip, stages, global ranks: hosts of that chip get these node ranks, in any order"]
    for block in node_blocks(problem, s):
        chip = one_line(block.chip)
        lines.append(f"{span(block.nodes)}\t{chip}\tstages {span(block.stages)}\tranks {span(block.ranks)}")
    return "\n".join(lines) + "\n"


def node_notes(problem: Problem, s: Strategy) -> Iterator[str]:
    """The order of the nodes, where it matters: chip types differ by stage."""
    blocks = node_blocks(problem, s)
    if len({block.chip for block in blocks}) > 1:
        order = say("; ").join(
            say("{nodes} {chip} (stages {stages})", nodes=span(block.nodes), chip=block.chip, stages=span(block.stages))
            for block in blocks
        )
        yield say("node ranks must follow the chips: {order}", order=order)


def span(numbers: range) -> str:
    """Neighbouring numbers in words: `3`, `0-7`."""
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
