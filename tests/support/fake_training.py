"""A training that is none: prints Megatron-LM's lines. Run by tests of `apss-cp tune` as a script, and read by them."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

FILE = Path(__file__)


def iteration_line(number: int, milliseconds: float, *, batch: int = 32, skipped: int = 0, nan: int = 0) -> str:
    """Megatron-LM's line on an iteration (training_log)."""
    return (
        f" [2026-08-01 12:00:00.000000] iteration {number:8d}/{100:8d} | consumed samples: {number * batch:12d} |"
        f" elapsed time per iteration (ms): {milliseconds:.1f} | throughput per GPU (TFLOP/s/GPU): 400.1 |"
        f" learning rate: 1.000000E-04 | global batch size: {batch:5d} | lm loss: 1.037500E+01 | loss scale: 1.0 |"
        f" grad norm: 12.345 | number of skipped iterations: {skipped:3d} | number of nan iterations: {nan:3d} |"
    )


def memory_line(rank: int, allocated_mib: float, reserved_mib: float) -> str:
    """Megatron-LM's line on memory (report_memory)."""
    return (
        f"[Rank {rank}] (after 2 iterations) memory (MB) | allocated: 20000.00 | max allocated: {allocated_mib:.2f} |"
        f" reserved: {reserved_mib:.2f} | max reserved: {reserved_mib:.2f}"
    )


OUT_OF_MEMORY = "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total ..."


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tensor-model-parallel-size", type=int, default=1)
    parser.add_argument("--global-batch-size", type=int, default=32)
    parser.add_argument("--iters", type=int, default=8)
    parser.add_argument("--ms", type=float, default=2000.0)
    parser.add_argument("--sleep", type=float, default=0.0)
    parser.add_argument("--ends", choices=["well", "oom", "error"], default="well")
    parser.add_argument("--ledger", help="a file that gets a line a run, before anything else")
    parser.add_argument("--trial", default="")
    parser.add_argument("--until", help="a file that is waited for at the end")
    told, _ = parser.parse_known_args()
    if told.ledger:
        with Path(told.ledger).open("a", encoding="utf-8") as ledger:
            ledger.write(f"{told.trial}\n")
    for number in range(1, told.iters + 1):
        time.sleep(told.sleep)
        slow = 3.0 if number <= 2 else 1.0
        print(iteration_line(number, told.ms * slow, batch=told.global_batch_size), flush=True)
        if number == 2:
            print(memory_line(0, 51200.0, 61440.0), flush=True)
    while told.until and not Path(told.until).exists():
        time.sleep(0.02)
    if told.ends == "oom":
        sys.exit(OUT_OF_MEMORY)
    if told.ends == "error":
        raise RuntimeError(f"rank {told.trial} lost its data")


if __name__ == "__main__":
    main()
