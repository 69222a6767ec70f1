"""A launch as a job: what starts a framework's script on every node, by Slurm, Kubernetes or ssh.

Every node runs `node.sh`, which reads `job.env` and starts the target's own script; the job says who is which node.
What is the user's (data, checkpoints, image, restarts) stands in `job.env` alone, but for images of Kubernetes, which
its manifests name for each group of nodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

from cpsolver.doors.export.launch import CannotExpress, Launch, refuse
from cpsolver.doors.export.shared import Host, hosts
from cpsolver.inputs.document import load_yaml
from cpsolver.inputs.errors import InputError, Trouble, nearest_names, one_line
from cpsolver.inputs.language import say
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem

JOBS = {
    "sbatch": "slurm:sbatch",
    "kubernetes": "kubernetes:indexed_jobs",
    "pytorchjob": "kubernetes:pytorch_job",
    "volcano": "kubernetes:volcano_job",
    "ssh": "slurm:ssh",
}
"""Name of a job -> "module:function", the module `job_<module>` of this package."""


@dataclass(frozen=True)
class NodeGroup:
    """Neighbouring nodes of one chip type: the first one's rank, how many they are, and devices in each."""

    chip: str
    label: str
    vendor: str
    first: int
    nodes: int
    devices: int


@dataclass(frozen=True)
class Job:
    """What a job is written from. `name` is a label that Slurm and Kubernetes take, `title` a comment of one line."""

    name: str
    title: str
    groups: tuple[NodeGroup, ...]
    hosts: tuple[Host, ...]
    launch: Launch

    @property
    def nodes(self) -> int:
        """Nodes in all."""
        return len(self.hosts)


@cache
def facts() -> Mapping[str, Any]:
    """jobs.yaml: `defaults` and `resources`, each entry with its source."""
    found: Mapping[str, Any] = load_yaml(str(Path(__file__).with_name("jobs.yaml"))).data
    return found


def default(name: str) -> int:
    """A default of jobs.yaml: restarts, port."""
    return int(facts()["defaults"][name]["value"])


Writer = Callable[[Job], tuple[Mapping[str, str], tuple[str, ...]]]
"""The files of a job, the one that starts it first, and its notes."""


def with_job(problem: Problem, s: Strategy, launch: Launch, kind: str) -> Launch:
    """The launch with a job of that kind around its script.

    Raises InputError for an unknown kind, where the target starts its nodes itself, where two chip types would share a
    node, and where the kind has one sort of node only.
    """
    if kind not in JOBS:
        raise InputError(Trouble("--job", "unknown job", kind, ", ".join(JOBS), nearest_names(kind, JOBS)))
    try:
        return _with_job(problem, s, launch, kind)
    except CannotExpress as refused:
        raise InputError([Trouble("--job", reason, kind) for reason in refused.reasons]) from refused


def _with_job(problem: Problem, s: Strategy, launch: Launch, kind: str) -> Launch:
    if launch.node_script is None:
        refuse(
            [
                say(
                    "{target} starts its nodes itself, from a host file or with a runner of its own",
                    target=launch.target,
                )
            ]
        )
    listed = hosts(problem, s)
    title = f"{one_line(problem.model.name)} on {s.devices} devices, written by apss-cp export"
    job = Job(f"apss-{label(problem.model.name)}", title, node_groups(problem, listed), listed, launch)
    module, function = JOBS[kind].split(":")
    writer: Writer = getattr(import_module(f"cpsolver.doors.export.job_{module}"), function)
    started = replace(launch, files={**launch.files, **_node_files(job)})
    files, notes = writer(replace(job, launch=started))
    return replace(started, files={**started.files, **files}, main=next(iter(files)), notes=(*notes, *launch.notes))


def node_groups(problem: Problem, listed: tuple[Host, ...]) -> tuple[NodeGroup, ...]:
    """The nodes in the order of their ranks, by chip type."""
    runs = [(chip, tuple(run)) for chip, run in groupby(listed, key=lambda host: host.chip)]
    firsts = accumulate((len(run) for _, run in runs), initial=0)
    return tuple(
        NodeGroup(chip, label(chip), problem.supply(chip).chip.vendor, first, len(run), run[0].slots)
        for (chip, run), first in zip(runs, firsts, strict=False)
    )


def label(text: str) -> str:
    """A name as a label: lower-case letters, digits and hyphens, at most 40, a letter or digit first and last."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:40].strip("-") or "plan"


def _node_files(job: Job) -> dict[str, str]:
    return {
        "job.env": _ENVIRONMENT.format(title=job.title, port=default("port"), restarts=default("restarts")),
        "node.sh": _NODE.format(title=job.title, script=job.launch.node_script),
    }


_ENVIRONMENT = """# {title}. What is yours, as bash reads it: fill in, then start the job.
# Data, tokenizer, checkpoints: paths as the nodes, or their containers, see them.
export DATA_PATH=${{DATA_PATH:-}}
export TOKENIZER_PATH=${{TOKENIZER_PATH:-}}
export CHECKPOINT_PATH=${{CHECKPOINT_PATH:-}}
# More options of the training script, such as (--save "$CHECKPOINT_PATH" --load "$CHECKPOINT_PATH").
TRAIN_ARGS=()
# The framework's folder, in which the script starts; empty: where it starts anyway.
WORK_DIR=${{WORK_DIR:-}}
# Container image of Slurm (pyxis) and of ssh (docker), none where empty; docker's options for devices and folders.
IMAGE=${{IMAGE:-}}
MOUNTS=${{MOUNTS:-}}
DOCKER_ARGS=()
# A file of output a node in this folder; empty: only where the job keeps output.
LOG_DIR=${{LOG_DIR:-}}
export MASTER_PORT=${{MASTER_PORT:-{port}}}
# How often a run that failed starts anew, from the checkpoints that TRAIN_ARGS load.
MAX_RESTARTS=${{MAX_RESTARTS:-{restarts}}}
"""

_NODE = """#!/usr/bin/env bash
# {title}. What every node runs; the job gives NODE_RANK and MASTER_ADDR.
set -euo pipefail
: "${{NODE_RANK:?number of this node, from 0}}" "${{MASTER_ADDR:?name of node 0}}"
export NODE_RANK MASTER_ADDR
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=/dev/null
. "$here/job.env"
if [ -n "$LOG_DIR" ]; then
  mkdir -p "$LOG_DIR"
  exec > >(tee -a "$LOG_DIR/node-$NODE_RANK.log") 2>&1
fi
if [ -n "$WORK_DIR" ]; then cd "$WORK_DIR"; fi
exec bash "$here/{script}" ${{TRAIN_ARGS[@]+"${{TRAIN_ARGS[@]}}"}} "$@"
"""
