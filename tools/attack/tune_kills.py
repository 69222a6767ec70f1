"""SIGKILL to each of tune's three processes: the tuner, a trial's supervisor, the command that trains.

Afterwards tune goes on to the end of its plans. No trial may be lost, run twice or be without an end, no plan may be
measured twice, and nothing that was started may still be alive.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

from tools.attack.findings import Report
from tools.attack.processes import Command, Stuck, all_gone, command_line, killed, left_behind, output, run, tracebacks

PLANS = 20
SPEC = f"""\
model: {{layers: 8, hidden: 1024, ffn: 4096, heads: 16, vocab: 32000}}
cluster: {{num_gpus: 8, gpus_per_node: 8, chips: h100}}
training: {{global_batch_size: 32, sequence_length: 1024}}
launcher: megatron-lm
search: {{top: {PLANS}, diverse: false, pin: {{pp: [1, 2], cp: 1, vpp: 1, flash_attention: true}}}}
"""
TRAINING = """\
echo "$1" >> ledger
sleep 300 &
for n in 1 2 3 4 5 6 7 8; do
  echo " iteration        $n/     100 | consumed samples: $n | elapsed time per iteration (ms): 2000.0 |\
 global batch size:    32 | number of skipped iterations:   0 | number of nan iterations:   0 |"
  sleep 0.03
done
"""
"""Prints Megatron-LM's lines (training_log), and leaves a process behind that nobody but its supervisor can end."""
STEP_S = 2.0
WORDS = ("tune", "spec.yaml", "--policy", "top", "--top", str(PLANS))
Trials = dict[int, dict[str, Any]]
"""Rows of a state by their number."""


def start(folder: Path, first: bool = False) -> Command:
    """The tuner, which goes on where another was killed."""
    template = ("--run", f"sh {folder / 'train.sh'} {{trial}}") if first else ()
    return Command(folder, *WORDS, *template)


def prepare(folder: Path) -> None:
    """The files of a session, and a first trial, after which the state knows the command."""
    (folder / "spec.yaml").write_text(SPEC, encoding="utf-8")
    (folder / "train.sh").write_text(TRAINING, encoding="utf-8")
    template = ("--run", f"sh {folder / 'train.sh'} {{trial}}", "--max-trials", "1")
    if (code := run(folder, *WORDS, *template)) != 0:
        raise Stuck(f"the first trial ended with exit code {code}: {output(folder)[-400:]}")


def kill_tuners(folder: Path, rng: Random, most: int) -> int:
    """Kill the tuner at random moments, and start it again; how often it was there to be killed."""
    count = 0
    for _ in range(most):
        tuner = start(folder)
        time.sleep(rng.uniform(0, 1.0))
        if not tuner.kill():
            return count
        count += 1
    return count


def kill_supervisors(folder: Path, rng: Random, most: int) -> int:
    """Kill supervisors at random moments of their trials, while the tuner awaits them."""
    return _while_it_runs(folder, most, lambda claim: rng.uniform(0, 0.3), lambda claim: claim)


def kill_commands(folder: Path, rng: Random, most: int) -> int:
    """Kill every other trial's command: three failures in a row would end the tuning."""
    return _while_it_runs(folder, most, lambda claim: rng.uniform(0, 0.2), lambda claim: _command(folder), every=2)


def _while_it_runs(
    folder: Path, most: int, wait_s: Callable[[int], float], victim: Callable[[int], int | None], every: int = 1
) -> int:
    tuner, count = start(folder), 0
    for turn, supervisor in enumerate(_supervisors(folder, tuner)):
        if turn % every or count >= most:
            continue
        time.sleep(wait_s(supervisor))
        process = victim(supervisor)
        count += process is not None and killed(process, folder)
    tuner.code()
    return count


def _supervisors(folder: Path, tuner: Command) -> Iterator[int]:
    """Numbers of the supervisors' processes as they come, until the tuner ends."""
    seen = {claim.parent.name for claim in (folder / "spec.tune").glob("*/claim.json")}
    while tuner.runs:
        for claim in sorted((folder / "spec.tune").glob("*/claim.json")):
            if claim.parent.name not in seen and (text := claim.read_text(encoding="utf-8")).endswith("}"):
                seen.add(claim.parent.name)
                yield json.loads(text)["pid"]
        time.sleep(0.01)


def _command(folder: Path) -> int | None:
    """The process of the running trial's command."""
    shells = [process for process in left_behind(folder) if command_line(process).startswith("sh ")]
    return min(shells, default=None)


def trials(folder: Path) -> Trials:
    """What the state has kept."""
    with closing(sqlite3.connect(folder / "spec.tune" / "tune.sqlite")) as database:
        database.row_factory = sqlite3.Row
        return {row["number"]: dict(row) for row in database.execute("SELECT * FROM trials")}


def wrong_after(folder: Path, kept: Trials, report: Report) -> Iterator[str]:
    """Go on to the end, and say what must not be; `kept`: what the state had before some kill."""
    code = 2
    for _ in range(8):  # failures that are alike stop a tuning: the next one goes on
        code = run(folder, *WORDS) or 0
        if "were tried" in output(folder)[-2000:]:
            break
    if code != 0:
        yield f"exit code {code} of the last tuner: {output(folder)[-400:]}"
    now, ran = trials(folder), Counter((folder / "ledger").read_text(encoding="utf-8").split())
    report.counts["kills: trials afterwards"] += len(now)
    for number, row in kept.items():
        if row["outcome"] != "running" and now.get(number) != row:
            yield f"trial {number} was kept and is lost or another one"
    if sorted(now) != list(range(1, len(now) + 1)):
        yield f"trials {sorted(now)} are not numbered one by one"
    if twice := [number for number, times in ran.items() if times > 1]:
        yield f"trials {twice} ran twice"
    if unknown := [number for number in ran if int(number) not in now]:
        yield f"trials {unknown} ran and are not kept"
    yield from wrong_ends(now, ran)
    if not all_gone(folder):
        yield f"processes are left: {[command_line(one) for one in left_behind(folder)][:4]}"
    yield from tracebacks(folder)


def wrong_ends(now: Trials, ran: Counter[str]) -> Iterator[str]:
    """Trials that did not end, or not as they ran, and plans that were settled twice or not at all."""
    for number, row in now.items():
        if row["outcome"] not in ("ok", "failed", "interrupted"):
            yield f"trial {number} is {row['outcome']}"
        if row["outcome"] == "ok" and (str(number) not in ran or abs(row["step_time_s"] - STEP_S) > 1e-9):
            yield f"trial {number} is ok, and did not run or took {row['step_time_s']} s"
    settled = Counter(row["strategy"] for row in now.values() if row["step_time_s"] or row["outcome"] == "failed")
    if more := [plan for plan, times in settled.items() if times > 1]:
        yield f"{len(more)} plans were settled twice"
    if len(settled) < PLANS:
        yield f"{PLANS - len(settled)} plans of {PLANS} were not settled"
