"""Plans in a process of their own: one at a time, stopped, ended, outlived."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cpsolver.doors.serve import planner as planners
from cpsolver.doors.serve.planner import BusyError, Outcome, Planner, outcome_of
from cpsolver.doors.serve.spec_text import PageLimits
from tests.support.command import in_tmp as in_tmp
from tests.support.served import SPEC, stand_in, waits_for, with_batch

pytestmark = pytest.mark.full  # every test starts a worker process and ends it

LIMITS = PageLimits(60.0)


async def here() -> bool:
    return False


async def gone() -> bool:
    return Path("asleep").exists()


@asynccontextmanager
async def started(limits: PageLimits = LIMITS) -> AsyncIterator[Planner]:
    made = Planner(stand_in, limits)
    try:
        yield made
    finally:
        made.close()


def pid(planner: Planner) -> int | None:
    worker: Any = planner._worker
    return None if worker is None else worker._process.pid


@pytest.fixture
def as_it_was() -> Iterator[None]:
    """SIGINT as before a test that plans in this process."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def test_outcomes(as_it_was: None) -> None:
    assert outcome_of(SPEC, stand_in, LIMITS) == Outcome("optimal", "<!DOCTYPE html>llama2-7b, batch 16")
    bad = outcome_of("model: 3\n", stand_in, LIMITS)
    assert bad.status == "bad_input"
    assert {trouble["line"] for trouble in bad.troubles} == {1}
    assert (
        outcome_of(with_batch(93), stand_in, LIMITS).said
        == "this is a bug in apss-cp: ZeroDivisionError: one over none"
    )
    assert outcome_of(with_batch(94), stand_in, LIMITS) == Outcome("failed", said="out of memory")

    def interrupted(*_: object) -> tuple[str, str]:
        raise KeyboardInterrupt

    assert outcome_of(SPEC, interrupted, LIMITS).status == "stopped"
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # between plans nothing is interrupted


def test_what_cannot_be_told_is_told_of(as_it_was: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def untold(_trouble: object) -> dict[str, Any]:
        raise ValueError("no words")

    monkeypatch.setattr(planners, "trouble_for_page", untold)
    assert outcome_of("model: 3\n", stand_in, LIMITS).said == "this is a bug in apss-cp: ValueError: no words"


def test_a_worker_stays_for_the_next_spec() -> None:
    async def run() -> None:
        async with started() as planner:
            first = await planner.plan(SPEC, here)
            known = pid(planner)
            second = await planner.plan(with_batch(32), here)
            assert (await planner.plan("model: [", here)).status == "bad_input"
            assert [first.page[-2:], second.page[-2:], pid(planner)] == ["16", "32", known]
            assert not planner.stop()

    asyncio.run(run())


def test_one_plan_at_a_time_and_stop_asks_for_what_is_known() -> None:
    async def run() -> None:
        async with started() as planner:
            first = asyncio.ensure_future(planner.plan(with_batch(90), here))
            await asyncio.to_thread(waits_for, "asleep")
            with pytest.raises(BusyError):
                await planner.plan(SPEC, here)
            assert planner.stop()
            assert (await first).status == "feasible"
            assert (await planner.plan(SPEC, here)).status == "optimal"

    asyncio.run(run())


def test_a_stop_is_not_lost_on_a_worker_that_starts() -> None:
    async def run() -> None:
        async with started() as planner:
            first = asyncio.ensure_future(planner.plan(with_batch(91), here))
            await asyncio.sleep(0)  # now the worker is made, and has not begun
            stopped = pid(planner)
            assert planner.stop()
            assert (await first).status == "stopped"
            assert (await planner.plan(SPEC, here)).status == "optimal"  # and the next plan is not stopped
            assert pid(planner) != stopped  # what was cut short there, an import say, is no part of it

    asyncio.run(run())


def outcome_after(batch: int, is_gone: Callable[[], Awaitable[bool]], limits: PageLimits = LIMITS) -> Outcome:
    """The outcome of a plan that ends its worker; the next one has another."""

    async def run() -> Outcome:
        async with started(limits) as planner:
            first = asyncio.ensure_future(planner.plan(with_batch(batch), is_gone))
            while pid(planner) is None:
                await asyncio.sleep(0.01)
            ended = pid(planner)
            outcome = await first
            assert ended is not None
            with pytest.raises(ProcessLookupError):
                os.kill(ended, 0)
            planner.limits = LIMITS  # the next is not in a hurry
            assert (await planner.plan(SPEC, here)).status == "optimal"
            assert pid(planner) != ended
            return outcome

    return asyncio.run(run())


def test_nobody_works_for_one_who_has_left() -> None:
    assert outcome_after(91, gone).status == "stopped"


def test_what_is_long_overdue_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planners, "_OVERDUE_S", 1.0)
    outcome = outcome_after(91, here, PageLimits(1.0))
    assert outcome.status == "failed"
    assert "time limit of 1 s" in outcome.said


def test_a_worker_that_dies_is_told_of() -> None:
    assert outcome_after(92, here).said == "the search ended without an answer (exit code 7)"


def test_a_worker_that_is_killed_is_told_of() -> None:
    async def run() -> Outcome:
        async with started() as planner:
            asked = asyncio.ensure_future(planner.plan(with_batch(91), here))
            await asyncio.to_thread(waits_for, "asleep")
            known = pid(planner)
            assert known is not None
            os.kill(known, signal.SIGSTOP)  # not even one that is stopped stays
            os.kill(known, signal.SIGKILL)
            return await asked

    assert "want of memory" in asyncio.run(run()).said


def test_closing_ends_the_plan_that_is_made() -> None:
    async def run() -> tuple[Outcome, float]:
        async with started() as planner:
            asked = asyncio.ensure_future(planner.plan(with_batch(91), here))
            await asyncio.to_thread(waits_for, "asleep")
            began = time.monotonic()
            planner.close()
            return await asked, time.monotonic() - began

    outcome, took_s = asyncio.run(run())
    assert outcome == Outcome("failed", said="the server ends")
    assert took_s < 5
