"""Takes one measurement, and says in words why one cannot be taken."""

from __future__ import annotations

from cpsolver.doors.profile.device import Device
from cpsolver.doors.profile.plan import Outcome
from cpsolver.doors.profile.settings import Timing, settings
from cpsolver.doors.profile.task import Measurement, Task
from cpsolver.doors.profile.timing import Clock
from models_zoo import Architecture


class Bench:
    """Measures tasks of one process on one device."""

    def __init__(self, device: Device, model: Architecture, timing: Timing) -> None:
        device.select()
        self.device, self.model = device, model
        self.clock = Clock(device, timing)

    def __call__(self, task: Task) -> Outcome:
        """The measurement, or why there is none: too large, not supported, out of memory."""
        most = self.device.free_bytes * settings().memory_share
        if task.bytes > most:
            return f"needs {task.bytes / 2**30:.1f} GiB, and {most / 2**30:.1f} may be taken"
        try:
            return self._taken(task)
        except (RuntimeError, TypeError, AttributeError, MemoryError) as error:
            if self.device.out_of_memory(error):
                return "out of memory"
            text = (str(error).strip() or type(error).__name__).splitlines()[0]
            return f"not supported here: {text[:120]}"
        finally:
            self.device.release()

    def _taken(self, task: Task) -> Outcome:
        from cpsolver.doors.profile import layer
        from cpsolver.doors.profile.operators import measure_operator

        if not task.kind.startswith("layer"):
            return measure_operator(task, self.device, self.clock)
        reason = layer.unsuitable(self.model)
        if reason:
            return reason
        tokens = int(task.size["tokens"])
        if task.kind == "layer_time":
            call = layer.stack_call(self.device, self.model, tokens, int(task.size["layers"]))
            return Measurement(task.kind, task.size, self.clock.seconds(call))
        ways = (str(task.size["attention"]), str(task.size["recompute"]))
        kept, allocated = layer.kept_bytes(self.device, self.model, tokens, *ways)
        return Measurement(task.kind, task.size, bytes=float(kept), allocated=allocated)
