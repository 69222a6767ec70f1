"""Pipelines whose transfers are operations of their own: DeepSpeed's instructions, run one by one, take in each
microbatch what the slowest stage is charged with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from cpsolver.evaluation.evaluate import evaluate
from tests.support.problems import chip_spec, model_spec, problem_of, strategy_of, with_stack

MIB = 2**20
Instruction = tuple[str, int]
"""What is done, and of which microbatch: F and B, and send or recv of an act(ivation) or a grad(ient)."""


def micro_batch(step: int, stage: int, stages: int) -> tuple[int, bool]:
    """The microbatch of a step of TrainSchedule, and whether it is forward: forwards at steps of the stage's parity."""
    if step % 2 == stage % 2:
        return step // 2 - stage // 2, True
    if step % 2 == 0:
        return step // 2 - stages + (stage + 1) // 2, False
    return (step - 1) // 2 - stages + 1 + stage // 2, False


def instructions(stage: int, stages: int, microbatches: int, sends_first: bool) -> Iterator[Instruction]:
    """A stage's instructions in their order (DeepSpeed 0.9, TrainSchedule; `sends_first`: as before March 2023)."""
    before = -1
    for step in range(2 * (microbatches + stages - 1)):
        now, forward = micro_batch(step, stage, stages)
        held, asked = 0 <= before < microbatches, 0 <= now < microbatches
        if forward:
            peer = stage > 0
            exchange = [("send grad", before, held and peer), ("recv act", now, asked and peer)]
        else:
            peer = stage < stages - 1
            exchange = [("recv grad", now, asked and peer), ("send act", before, held and peer)]
        yield from ((what, of) for what, of, there in (reversed(exchange) if sends_first else exchange) if there)
        if asked:
            yield ("F" if forward else "B", now)
        before = now


@dataclass
class Run:
    """A run of all stages. Transfers that are `buffered` are on their way once they are sent, and keep no sender;
    others start when both ends are there, and keep both."""

    work_s: Sequence[float]
    link_s: Sequence[float]
    buffered: bool
    now_s: list[float] = field(default_factory=list)
    asked_s: dict[tuple[str, int, int], float] = field(default_factory=dict)
    sent_s: dict[tuple[str, int, int], float] = field(default_factory=dict)
    there_s: dict[tuple[str, int, int], float] = field(default_factory=dict)
    free_s: dict[tuple[str, int], float] = field(default_factory=dict)

    def step_s(self, microbatches: int, sends_first: bool) -> float:
        stages = len(self.work_s)
        left = [list(instructions(stage, stages, microbatches, sends_first))[::-1] for stage in range(stages)]
        self.now_s = [0.0] * stages
        while any(left):
            before = sum(map(len, left))
            for stage, own in enumerate(left):
                while own and self._done(stage, *own[-1]):
                    own.pop()
            assert sum(map(len, left)) < before, "all stages wait"
        return max(self.now_s)

    def _done(self, stage: int, what: str, microbatch: int) -> bool:
        """Whether the instruction is over; the stage's time goes on if so."""
        if what in "FB":
            self.now_s[stage] += self.work_s[stage] / 3 * (1 if what == "F" else 2)
            return True
        way, kind = what.split()
        link = stage if what in ("send act", "recv grad") else stage - 1
        key = (kind, link, microbatch)
        if self.buffered and way == "send":
            start = max(self.now_s[stage], self.free_s.get((kind, link), 0.0))
            self.there_s[key] = self.free_s[kind, link] = start + self.link_s[link]
            return True
        if not self.buffered:
            own, other = (self.sent_s, self.asked_s) if way == "send" else (self.asked_s, self.sent_s)
            own.setdefault(key, self.now_s[stage])
            if key in other:
                self.there_s[key] = max(own[key], other[key]) + self.link_s[link]
        if key not in self.there_s:
            return False
        self.now_s[stage] = max(self.now_s[stage], self.there_s[key])
        return True


@pytest.mark.parametrize("sends_first", [False, True], ids=["asks first", "sends first"])
@pytest.mark.parametrize("buffered", [False, True], ids=["nothing held", "all held"])
@pytest.mark.parametrize("groups", ["x:4 y:4", "y:2 x:6", "x:1 y:2 x:5", "y:3 x:1 y:2 x:2", "x:2 x:2 y:2 y:2"])
def test_a_microbatch_takes_what_the_slowest_stage_is_charged_with(
    groups: str, buffered: bool, sends_first: bool
) -> None:
    chips = {"x": chip_spec(out=4), "y": chip_spec(tflops=50, out=2)}
    problem = with_stack(
        problem_of(chips, model=model_spec(layers=8), gpus=16, node=1, batch=32),
        pipeline_transfers=4,
        pipeline_buffer_mib=1e6 * buffered,
        pipeline_sends_first=sends_first,
    )
    stages = evaluate(problem, strategy_of(groups, dp=1)).stages
    run = [stage.work_s for stage in stages], [stage.to_next_s for stage in stages[:-1]], buffered
    assert min(run[1]) > 0.02 * max(run[0])
    few, more = (Run(*run).step_s(m, sends_first) for m in (30, 60))
    assert (more - few) / 30 == pytest.approx(max(stage.microbatch_s for stage in stages), rel=1e-4)


def test_what_the_buffers_do_not_hold_keeps_both() -> None:
    problem = problem_of({"x": chip_spec(out=4)}, gpus=2, node=1, batch=32)
    plan = strategy_of("x:2,2", dp=1)
    sent = problem.sequence * problem.model.hidden * problem.element_bytes / MIB

    def waits(held: float) -> list[float]:
        changed = with_stack(problem, pipeline_transfers=4, pipeline_buffer_mib=held * sent)
        return [stage.pipeline_p2p_s for stage in evaluate(changed, plan).stages]

    first, last = waits(0)
    assert first == pytest.approx(last)
    assert waits(0.25) == pytest.approx([0.75 * first, last])
    assert waits(2) == pytest.approx([0, last])
