"""Jobs whose nodes share a folder: a batch script of Slurm, and a loop of ssh over a list of hosts."""

from __future__ import annotations

from collections.abc import Iterator

from cpsolver.doors.export.jobs import Job, NodeGroup
from cpsolver.inputs.errors import one_line
from cpsolver.inputs.language import say


def sbatch(job: Job) -> tuple[dict[str, str], tuple[str, ...]]:
    """A batch script; with several chip types a heterogeneous job, one component each.

    By Slurm's documentation of heterogeneous jobs the tasks of one srun over several components are numbered through,
    in the components' order (SLURM_PROCID), and the batch script runs on the first node of the first component.
    """
    several = len(job.groups) > 1
    text = _SBATCH.format(
        title=job.title,
        options="\n#SBATCH hetjob\n".join("\n".join(_options(job, group)) for group in job.groups),
        hosts="SLURM_JOB_NODELIST_HET_GROUP_0" if several else "SLURM_JOB_NODELIST",
        groups=f" --het-group=0-{len(job.groups) - 1}" if several else "",
        nodes=job.nodes,
    )
    notes = [say("sbatch job.sbatch, in the folder of these files, which all nodes share; fill in job.env first")]
    if several:
        chips = say("; ").join(
            say("component {at}: {chip}", at=at, chip=one_line(group.chip)) for at, group in enumerate(job.groups)
        )
        notes.append(say("give each component the partition or constraint of its chips ({chips})", chips=chips))
    return {"job.sbatch": text}, tuple(notes)


def _options(job: Job, group: NodeGroup) -> Iterator[str]:
    first = group.first == 0
    if len(job.groups) > 1:
        yield f"# nodes {group.first} to {group.first + group.nodes - 1}: {one_line(group.chip)}"
        yield f"##SBATCH --constraint={group.label}"
    yield f"#SBATCH --nodes={group.nodes}"
    yield "#SBATCH --ntasks-per-node=1"
    yield f"#SBATCH --gres=gpu:{group.devices}"
    yield "#SBATCH --exclusive"
    if first:
        yield f"#SBATCH --job-name={job.name}"
        yield "#SBATCH --output=slurm-%x-%j.log"
        yield "#SBATCH --open-mode=append"
        yield "#SBATCH --requeue"


def ssh(job: Job) -> tuple[dict[str, str], tuple[str, ...]]:
    """A loop over the hosts of a list, in the order of the node ranks; all are stopped where one fails."""
    head = "# Put your own names in place of host0, ...; the order is that of the node ranks."
    lines = [head, *(f"{host.name}  # {one_line(host.chip)}" for host in job.hosts)]
    notes = (say("bash ssh.sh, in a folder that all hosts of hosts.txt share; fill in job.env and hosts.txt first"),)
    return {"ssh.sh": _SSH.format(title=job.title, nodes=job.nodes), "hosts.txt": "\n".join(lines) + "\n"}, notes


_SBATCH = """#!/bin/bash
# {title}.
{options}
set -euo pipefail
cd "${{SLURM_SUBMIT_DIR:?submit from the folder of these files}}"
# shellcheck source=/dev/null
. ./job.env
read -r MASTER_ADDR < <(scontrol show hostnames "${hosts}")
export MASTER_ADDR
container=()
if [ -n "$IMAGE" ]; then container=(--container-image="$IMAGE" --container-mounts="$PWD:$PWD${{MOUNTS:+,$MOUNTS}}"); fi
# A task a node, {nodes} in all: its number is the node's rank.
code=0
srun{groups} --kill-on-bad-exit=1 ${{container[@]+"${{container[@]}}"}} \\
  bash -c 'NODE_RANK=$SLURM_PROCID exec bash "$0/node.sh"' "$PWD" || code=$?
if [ "$code" -ne 0 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt "$MAX_RESTARTS" ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""

_SSH = """#!/usr/bin/env bash
# {title}. Starts node.sh on every host of hosts.txt and waits; output goes to logs/.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=/dev/null
. "$here/job.env"
hosts=()
while read -r host _; do
  case $host in '' | '#'*) ;; *) hosts+=("$host") ;; esac
done < "$here/hosts.txt"
if [ "${{#hosts[@]}}" -ne {nodes} ]; then
  echo "hosts.txt has ${{#hosts[@]}} hosts, and the plan {nodes} nodes" >&2
  exit 2
fi
mkdir -p "$here/logs"

# All nodes at once; the first that fails ends the others.
run() {{
  local rank pids=() words failed=0
  for rank in "${{!hosts[@]}}"; do
    words=()
    if [ -n "$IMAGE" ]; then
      words=(docker run --rm --network host --ipc host -v "$here:$here" ${{DOCKER_ARGS[@]+"${{DOCKER_ARGS[@]}}"}})
      words+=(-e "NODE_RANK=$rank" -e "MASTER_ADDR=${{hosts[0]}}" "$IMAGE")
    fi
    words=(env "NODE_RANK=$rank" "MASTER_ADDR=${{hosts[0]}}" ${{words[@]+"${{words[@]}}"}} bash "$here/node.sh")
    ssh -tt -o BatchMode=yes "${{hosts[rank]}}" "$(printf '%q ' "${{words[@]}}")" \\
      < /dev/null >> "$here/logs/node-$rank.log" 2>&1 &
    pids+=("$!")
  done
  trap 'kill "${{pids[@]}}" 2> /dev/null || true' EXIT
  for _ in "${{pids[@]}}"; do
    wait -n || {{ failed=1; break; }}
  done
  if [ "$failed" -ne 0 ]; then kill "${{pids[@]}}" 2> /dev/null || true; fi
  wait || true
  trap - EXIT
  return "$failed"
}}

for ((attempt = 0; attempt <= MAX_RESTARTS; attempt++)); do
  if run; then exit 0; fi
  echo "a node failed, of attempt $((attempt + 1)): see logs/" >&2
done
exit 1
"""
