"""Collectives over the devices of this machine: processes of their own, one a device, that meet over torch.distributed.

The first of them times and sends what it finds; all go through the same tasks in the same order. Whether there is
time for another one it tells the others.
"""

from __future__ import annotations

import os
import signal
import socket
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any

from cpsolver.doors.profile.budget import NO_TIME, Outcome
from cpsolver.doors.profile.device import TorchDevice
from cpsolver.doors.profile.settings import DeviceKind, Timing, settings
from cpsolver.doors.profile.task import Measurement, MeasurementTask

BACKENDS: dict[DeviceKind, str] = {"cuda": "nccl", "npu": "hccl", "cpu": "gloo"}


@dataclass(frozen=True)
class _GroupOrders:
    """What each process is told."""

    kind: DeviceKind
    devices: int
    port: int
    tasks: tuple[MeasurementTask, ...]
    timing: Timing


class CollectiveGroup:
    """Measures collectives in processes that start with the first task and end with the last, or on `close`.

    Call it with the tasks in the order in which they were given.
    """

    def __init__(self, kind: DeviceKind, devices: int, tasks: Sequence[MeasurementTask], timing: Timing) -> None:
        self._orders = _GroupOrders(kind, devices, _free_port(), tuple(tasks), timing)
        self._processes: Any = None
        self._answers: Any = None

    def __call__(self, task: MeasurementTask, left_s: float) -> Outcome:
        """The measurement of the next task, or why there is none; the processes end after `left_s` from the first."""
        multiprocessing: Any = import_module("torch.multiprocessing")

        if self._processes is None:
            context = multiprocessing.get_context("spawn")
            self._answers = context.Queue()
            listening = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, who ends these
            try:
                self._processes = multiprocessing.spawn(
                    _member, args=(self._orders, left_s, self._answers), nprocs=self._orders.devices, join=False
                )
            finally:
                signal.signal(signal.SIGINT, listening)
        return self._next(task)

    def close(self) -> None:
        """End the processes that are still there."""
        for process in () if self._processes is None else self._processes.processes:
            if process.is_alive():
                process.terminate()
            process.join()

    def _next(self, task: MeasurementTask) -> Outcome:
        from queue import Empty

        last = time.monotonic() + settings().group_wait_s + self._orders.timing.longest_s
        while time.monotonic() < last:
            try:
                key, outcome = self._answers.get(timeout=0.2)
            except Empty:
                lost = [p for p in self._processes.processes if p.exitcode not in (None, 0)]
                if lost:
                    return f"a process of the group ended with code {lost[0].exitcode}"
                continue
            if key == task.key:
                return outcome if isinstance(outcome, Measurement) else str(outcome)
        return "the processes of the group gave no answer"


def _free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


def _member(rank: int, orders: _GroupOrders, budget_s: float, answers: Any) -> None:
    """One process of the group."""
    import torch.distributed as distributed

    warnings.simplefilter("ignore")  # names that PyTorch will drop one day are told once a process and call
    device = TorchDevice(orders.kind, rank)
    if device.kind == "cpu":
        device.torch.set_num_threads(max(1, (os.cpu_count() or 1) // orders.devices))
    device.select()
    distributed.init_process_group(
        BACKENDS[orders.kind],
        init_method=f"tcp://127.0.0.1:{orders.port}",
        rank=rank,
        world_size=orders.devices,
        timeout=timedelta(seconds=settings().group_wait_s),
    )
    sizes = sorted({int(task.size["group"]) for task in orders.tasks})
    groups = {size: distributed.new_group(list(range(size))) for size in sizes}
    began = time.monotonic()
    for task in orders.tasks:
        outcome = _one(task, device, groups[int(task.size["group"])], rank, orders.timing, began + budget_s)
        if rank == 0:
            answers.put((task.key, outcome))
    distributed.barrier()
    distributed.destroy_process_group()


def _one(task: MeasurementTask, device: TorchDevice, group: Any, rank: int, timing: Timing, until: float) -> Outcome:
    """One task in all processes: whoever is not in the group waits for the others at the next decision."""
    import torch.distributed as distributed

    go_on = device.torch.tensor([int(time.monotonic() < until)], device=device.where)
    distributed.broadcast(go_on, 0)
    if not int(go_on.item()):
        return NO_TIME
    if rank >= int(task.size["group"]):
        return ""
    try:
        return Measurement(task.kind, task.size, _timed(task, device, group, timing), note=BACKENDS[device.kind])
    except (RuntimeError, TypeError, AttributeError, MemoryError) as error:
        if device.out_of_memory(error):
            return "out of memory"
        return f"not supported here: {(str(error).strip() or type(error).__name__).splitlines()[0][:120]}"


def _timed(task: MeasurementTask, device: TorchDevice, group: Any, timing: Timing) -> tuple[float, ...]:
    """Several in a row, as training has them, and the time of one; the slowest process counts."""
    torch, call = device.torch, _call(task, device, group)
    import torch.distributed as distributed

    for _ in range(timing.warmup):
        call()
    device.synchronize()
    once = torch.tensor([device.seconds_of(call)], dtype=torch.float32, device=device.where)
    distributed.all_reduce(once, distributed.ReduceOp.MAX, group=group)
    in_a_row = max(1, min(50, int(timing.seconds / timing.repeats / float(once.item()))))

    def several() -> None:
        for _ in range(in_a_row):
            call()

    repeats = max(timing.fewest, min(timing.repeats, int(timing.seconds / (in_a_row * float(once.item())))))
    taken = torch.tensor([device.seconds_of(several) / in_a_row for _ in range(repeats)], dtype=torch.float32)
    taken = taken.to(device.where)
    distributed.all_reduce(taken, distributed.ReduceOp.MAX, group=group)
    return tuple(float(each) for each in taken.tolist())


def _call(task: MeasurementTask, device: TorchDevice, group: Any) -> Any:
    """The collective on a buffer of the task's payload: the whole one of each rank."""
    import torch.distributed as distributed

    size, name = int(task.size["group"]), str(task.size["collective"])
    count = max(size, int(task.size["payload"]) // 2 // size * size)
    whole = device.random(count)
    part = device.random(count // size)
    other = device.torch.empty_like(whole)
    calls = {
        "all_reduce": lambda: distributed.all_reduce(whole, group=group),
        "all_gather": lambda: distributed.all_gather_into_tensor(whole, part, group=group),
        "reduce_scatter": lambda: distributed.reduce_scatter_tensor(part, whole, group=group),
        "all_to_all": lambda: distributed.all_to_all_single(other, whole, group=group),
    }
    return calls[name]
