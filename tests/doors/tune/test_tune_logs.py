"""Reading logs: what an iteration took, memory, warm-up, what was run, and what is no step time."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Iterable
from dataclasses import replace
from io import StringIO

import pytest

from cpsolver.doors.tune import logs
from cpsolver.doors.tune.logs import Expected, LogReading, Scanner, log_facts
from tests.support.fake_training import iteration_line, memory_line

EXPECTED = Expected(tokens=32 * 4096, num_gpus=8, values={"tp": "4", "gbs": "32", "num_gpus": "8"})


def read(lines: Iterable[str], skip: int = 2) -> LogReading:
    scanner = Scanner(EXPECTED, skip)
    scanner.feed(lines)
    return scanner.reading()


def test_the_median_of_what_follows_the_warm_up() -> None:
    times = [9000, 5000, 2000, 2010, 1990, 2600, 2005]
    found = read(iteration_line(number, ms) for number, ms in enumerate(times, 1))
    assert (found.step_time_s, found.iterations) == (2.005, 5)
    assert found.spread == pytest.approx((2.010 - 2.000) / 2 / 2.005)  # quartiles of 1.99 2.0 2.005 2.01 2.6


def test_skip_iterations() -> None:
    lines = [iteration_line(number, ms) for number, ms in enumerate([9000, 5000, 2000], 1)]
    assert read(lines, skip=0).step_time_s == 5.0
    assert read(lines, skip=1).step_time_s == 3.5
    assert read(lines, skip=3).step_time_s is None
    assert "all 3 iterations" in read(lines, skip=3).notes[0]
    assert read(lines[:1]).notes == ("the one iteration in the log is warm-up (--skip-iterations 2)",)


def test_a_line_of_several_iterations_counts_as_many_and_is_warm_up_if_it_holds_any() -> None:
    found = read(iteration_line(number, ms) for number, ms in [(10, 4000), (20, 2000), (30, 2100)])
    assert (found.step_time_s, found.iterations) == (2.05, 20)


def test_one_line_over_everything_is_no_measurement() -> None:
    found = read([iteration_line(10, 3000)])
    assert found.step_time_s is None
    assert "--log-interval 1" in found.notes[0]


def test_warm_up_is_counted_from_the_checkpoint() -> None:
    found = read(iteration_line(number, ms) for number, ms in [(1001, 9000), (1002, 5000), (1003, 2000)])
    assert (found.step_time_s, found.iterations) == (2.0, 1)


def test_skipped_iterations_are_left_out_and_nan_is_told() -> None:
    lines = [iteration_line(number, 2000) for number in range(1, 5)]
    found = read([*lines, iteration_line(5, 100, skipped=1), iteration_line(6, 2000, nan=1)])
    assert (found.step_time_s, found.iterations) == (2.0, 3)
    assert found.notes == (
        "1 line with skipped iterations left out",
        "1 measured iteration had a loss that is not a number",
    )


def test_of_ranks_that_log_the_same_iteration_the_slowest_counts() -> None:
    lines = [iteration_line(number, ms) for number in (1, 2, 3, 4) for ms in (1900, 2000, 1950)]
    assert read(lines).step_time_s == 2.0


def test_prefixes_and_colours_do_not_matter() -> None:
    found = read("\x1b[32m[default7]:" + iteration_line(number, 2000) + "\x1b[0m\r\n" for number in range(1, 5))
    assert found.step_time_s == 2.0


def test_megatron_deepspeed_tells_seconds() -> None:
    lines = [iteration_line(n, 2000).replace("iteration (ms): 2000.0", "iteration (s): 2.00") for n in range(1, 5)]
    assert read(lines).step_time_s == 2.0


def test_torchtitan_tells_tokens_a_second_and_gpu() -> None:
    lines = [
        f"[titan] INFO - step: {n:2}  loss: 12.2721  grad_norm:  4.1  memory: 48.87GiB(51.44%)  tps: 8,192  mfu: 25.62%"
        for n in range(1, 5)
    ]
    found = read(lines)
    assert found.step_time_s == 2.0  # 32 * 4096 tokens / (8192 * 8)
    assert (found.peak_memory_gib, found.memory_kind) == (48.87, "reserved")


def test_memory_is_the_largest_over_ranks_in_mebibytes() -> None:
    found = read([memory_line(0, 10240, 20480), memory_line(8, 15360, 18432)])
    assert (found.peak_memory_gib, found.memory_kind) == (15.0, "allocated")


def test_megatron_bridge_counts_gigabytes_of_a_thousand_million() -> None:
    line = (
        "[Rank 0] (after 2 iterations) memory (GB) | mem-allocated-gigabytes: 1.0 | mem-max-allocated-gigabytes: 53.687"
    )
    assert read([line]).peak_memory_gib == pytest.approx(53.687e9 / 2**30)


def test_a_json_line_says_it_all_and_the_last_counts() -> None:
    found = read(
        ['{"step_time_s": 3.0}', 'rank 0: {"step_time_s": 2.5, "peak_memory_gib": 61.2, "memory_kind": "device"}']
    )
    assert (found.step_time_s, found.peak_memory_gib, found.memory_kind) == (2.5, 61.2, "device")
    assert read(['{"tokens_per_s": 65536}']).step_time_s == 2.0
    assert read(['{"step_time_s": broken}']).step_time_s is None


@pytest.mark.parametrize("value", ["-2.0", "0", "1e9", "NaN", '"fast"', "null", "1e-9"])
def test_what_is_no_time_is_refused_by_name(value: str) -> None:
    found = read([f'{{"step_time_s": {value}}}'])
    assert found.step_time_s is None
    assert "no step takes that" in str(found.wrong)
    assert found.iterations == 0


def test_a_zero_of_megatron_is_refused_too() -> None:
    found = read(iteration_line(number, 0.0) for number in range(1, 5))
    assert found.step_time_s is None
    assert "0.0 ms" in str(found.wrong)


@pytest.mark.parametrize(
    "line",
    [
        "max allocated: 1.2.3",
        "max allocated: ... MiB",
        "max allocated: .",
        "mem-max-allocated-gigabytes: 3..2",
        "[titan] step: 9 loss: 1 memory: 1.2.3GiB(5%) tps: ,",
        "max reserved: " + "9" * 400,
        iteration_line(9, 1.0).replace(": 1.0 |", ": 1.2.3 |", 1),
        iteration_line(9, 1.0).replace("iteration        9", "iteration " + "9" * 400),
        iteration_line(9, 1.0).replace("iteration        9", "iteration 99999999999"),
        '{"step_time_s": 9.8, "iterations": 1e30}',
        '{"step_time_s": 9.8, "iterations": 1e308}',
        '{"step_time_s": 9.8, "peak_memory_gib": ' + "9" * 400 + "}",
        '{"tokens_per_s": ' + "9" * 400 + "}",
        '{"step_time_s": ' + "[" * 1900 + "}",
    ],
)
def test_a_line_with_a_number_that_is_none_is_passed_over(line: str) -> None:
    good = [iteration_line(number, 2000) for number in range(1, 5)]
    assert replace(read([*good[:2], line, *good[2:]]), tail=()) == replace(read(good), tail=())


def test_a_long_log_is_read_in_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_PIECE", 2**14)
    noise = "x" * 100_000 + "\n\n" + "yyyyyyyyy\n" * 5_000
    ends = [f"{iteration_line(number, 2000)}\n{noise}" for number in range(1, 6)]
    file = StringIO("".join(ends) + "z" * 300_000 + "torch.OutOfMemoryError\nlast\n" + iteration_line(6, 2000))
    scanner = Scanner(EXPECTED, 2)
    tracemalloc.start()
    while scanner.feed_from(file):
        pass
    scanner.end_line()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    found = scanner.reading()
    assert (found.step_time_s, found.iterations, found.out_of_memory) == (2.0, 4, None)
    assert (len(found.tail), found.tail[-2]) == (15, "last")
    assert peak < 1.5e6  # its lines at once have 2.6 MB


def test_iterations_beyond_any_need_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_MOST_ITERATIONS", 5)
    assert read(iteration_line(number, 2000) for number in range(1, 50)).iterations == 3


def test_another_layout_in_the_log_is_told() -> None:
    lines = [iteration_line(number, 2000) for number in range(1, 5)]
    same = "  tensor_model_parallel_size ...................... 4"
    assert read([same, *lines]).wrong is None
    found = read([same.replace("4", "2"), *lines])
    assert "tp is 2 in the log and 4 in the plan" in str(found.wrong)
    assert "gbs is 64" in str(read(iteration_line(n, 2000, batch=64) for n in range(1, 5)).wrong)


@pytest.mark.parametrize(
    "line",
    [
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity",
        "torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 80.00 MiB.",
        "RuntimeError: NPU out of memory. Tried to allocate 5.03 GiB (NPU 3; 60.96 GiB total capacity; 49.47 GiB",
        "RuntimeError: CUDA error: out of memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "node1:77:90 [2] NCCL WARN Cuda failure 2 'out of memory'",
        "cuMemCreate failed: CUDA_ERROR_OUT_OF_MEMORY",
        "hipMalloc: hipErrorOutOfMemory",
        "aclrtMalloc failed, ret = 207001, size=10485760",
        "[PID: 1] 2026-03-24-12:14:45.885.234 Memory_Allocation_Failure(EL0004): Failed to allocate memory.",
    ],
)
def test_out_of_device_memory_is_recognised(line: str) -> None:
    assert read([line]).out_of_memory == line.strip()


@pytest.mark.parametrize(
    "line",
    [
        "set expandable_segments to avoid CUDA out of memory errors",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed.",
    ],
)
def test_other_words_about_memory_are_not(line: str) -> None:
    assert read([line]).out_of_memory is None


def test_the_error_is_the_last_one_but_for_the_launchers_own() -> None:
    lines = ["ValueError: first", "  AssertionError: tp must divide heads", "torch.distributed.ChildFailedError: "]
    assert read(lines).error == "AssertionError: tp must divide heads"


def test_every_pattern_compiles_and_every_fact_has_its_source() -> None:
    facts = log_facts()
    for entry in (*facts["formats"], *facts["memory"], *facts["out_of_memory"], *facts["host_out_of_memory"]):
        assert entry["source"]
        assert all(re.compile(entry[name]) for name in ("pattern", "iteration", "time") if name in entry)
