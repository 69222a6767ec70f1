"""Measures collectives over the devices of this machine, in one process a device, joined by torch.distributed.

All processes run the same tasks in the same order. The first one takes the times, sends them to the parent, and decides
for all whether there is time for the next task.
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
from cpsolver.inputs.language import say

BACKENDS: dict[DeviceKind, str] = {"cuda": "nccl", "npu": "hccl", "cpu": "gloo"}
_MOST_IN_A_ROW = 50
"""Most collectives timed together: more would not change the time of one."""


@dataclass(frozen=True)
class _GroupOrders:
    """The settings of each process."""

    kind: DeviceKind
    devices: int
    port: int
    tasks: tuple[MeasurementTask, ...]
    timing: Timing


class CollectiveGroup:
    """Measures collectives in processes that start with the first task and end with the last, or on `close`.

    Call it with the tasks in the order of the constructor's.
    """

    def __init__(self, kind: DeviceKind, devices: int, tasks: Sequence[MeasurementTask], timing: Timing) -> None:
        self._orders = _GroupOrders(kind, devices, _free_port(), tuple(tasks), timing)
        self._processes: Any = None
        self._answers: Any = None

    def __call__(self, task: MeasurementTask, left_s: float) -> Outcome:
        """The measurement of the next task, or why there is none. All processes end `left_s` after the first."""
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

        deadline = time.monotonic() + settings().group_wait_s + self._orders.timing.longest_s
        while time.monotonic() < deadline:
            try:
                key, outcome = self._answers.get(timeout=0.2)
            except Empty:
                failed = [process for process in self._processes.processes if process.exitcode not in (None, 0)]
                if failed:
                    return say("a process of the group ended with code {code}", code=failed[0].exitcode)
                continue
            if key == task.key:
                return outcome if isinstance(outcome, Measurement) else str(outcome)
        return say("the processes of the group gave no answer")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _member(rank: int, orders: _GroupOrders, budget_s: float, answers: Any) -> None:
    """One process of the group."""
    import torch.distributed as distributed

    warnings.simplefilter("ignore")  # PyTorch warns of deprecated names once a process and call
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


def _one(task: MeasurementTask, device: TorchDevice, group: Any, rank: int, timing: Timing, deadline: float) -> Outcome:
    """Run one task in all processes. One that is not in the task's group waits for the others at the next decision."""
    import torch.distributed as distributed

    time_left = device.torch.tensor([int(time.monotonic() < deadline)], device=device.where)
    distributed.broadcast(time_left, 0)
    if not int(time_left.item()):
        return NO_TIME
    if rank >= int(task.size["group"]):
        return ""
    try:
        return Measurement(task.kind, task.size, _timed(task, device, group, timing), note=BACKENDS[device.kind])
    except (RuntimeError, TypeError, AttributeError, MemoryError) as error:
        return device.failure(error)


def _timed(task: MeasurementTask, device: TorchDevice, group: Any, timing: Timing) -> tuple[float, ...]:
    """Seconds of one collective, timed over several in a row, as in training. The slowest process counts."""
    torch, call = device.torch, _call(task, device, group)
    import torch.distributed as distributed

    for _ in range(timing.warmup):
        call()
    device.synchronize()
    first = torch.tensor([device.seconds_of(call)], dtype=torch.float32, device=device.where)
    distributed.all_reduce(first, distributed.ReduceOp.MAX, group=group)
    in_a_row = max(1, min(_MOST_IN_A_ROW, int(timing.seconds / timing.repeats / float(first.item()))))

    def several() -> None:
        for _ in range(in_a_row):
            call()

    repeats = max(timing.fewest, min(timing.repeats, int(timing.seconds / (in_a_row * float(first.item())))))
    seconds = torch.tensor([device.seconds_of(several) / in_a_row for _ in range(repeats)], dtype=torch.float32)
    seconds = seconds.to(device.where)
    distributed.all_reduce(seconds, distributed.ReduceOp.MAX, group=group)
    return tuple(map(float, seconds.tolist()))


def _call(task: MeasurementTask, device: TorchDevice, group: Any) -> Any:
    """The collective, bound to buffers. The payload is the whole buffer of a rank, in bf16."""
    import torch.distributed as distributed

    size, name = int(task.size["group"]), str(task.size["collective"])
    count = max(size, int(task.size["payload"]) // 2 // size * size)
    buffer = device.random(count)
    shard = device.random(count // size)
    received = device.torch.empty_like(buffer)
    calls = {
        "all_reduce": lambda: distributed.all_reduce(buffer, group=group),
        "all_gather": lambda: distributed.all_gather_into_tensor(buffer, shard, group=group),
        "reduce_scatter": lambda: distributed.reduce_scatter_tensor(shard, buffer, group=group),
        "all_to_all": lambda: distributed.all_to_all_single(received, buffer, group=group),
    }
    return calls[name]
